/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Types of the unified memory part of the NVIDIA kernel module: only the fields that gpuprobe reads, with
 * their real names. Offsets and event numbers differ from all releases, so gpuprobe must look them up.
 */
#ifndef UNIFIED_H
#define UNIFIED_H

#include <linux/mm_types.h>
#include <linux/workqueue.h>

typedef enum {
	UVM_PERF_EVENT_REVOCATION = 11,
	UVM_PERF_EVENT_MIGRATION,
	UVM_PERF_EVENT_FAULT,
} uvm_perf_event_t;

typedef struct {
	u32 val;
} uvm_processor_id_t;

struct uvm_va_space_mm_struct {
	u64 unused;
	struct mm_struct *mm;
};
typedef struct uvm_va_space_mm_struct uvm_va_space_mm_t;

struct uvm_va_space_struct {
	u64 unused[5];
	uvm_va_space_mm_t va_space_mm;
};
typedef struct uvm_va_space_struct uvm_va_space_t;

typedef struct {
	u64 unused[3];
	uvm_va_space_t *va_space;
} uvm_perf_va_space_events_t;

typedef union {
	struct {
		uvm_va_space_t *space;
		u64 unused;
		uvm_processor_id_t proc_id;
	} fault;
	struct {
		u64 unused[2];
		uvm_processor_id_t dst;
		uvm_processor_id_t src;
		u64 address;
		u64 bytes;
	} migration;
} uvm_perf_event_data_t;

void uvm_perf_event_notify(uvm_perf_va_space_events_t *events, uvm_perf_event_t event,
			   uvm_perf_event_data_t *data);

/* Memory of a process, with the work item that serves its faults. */
struct touched {
	uvm_va_space_t space;
	uvm_perf_va_space_events_t events;
	struct work_struct work;
};

#endif
