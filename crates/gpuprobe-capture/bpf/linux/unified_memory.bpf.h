/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Faults and migrations of unified memory, at the function by which the NVIDIA UVM module notifies its own
 * parts of each event. It runs wherever the module serves the event: a GPU fault in a thread of the module,
 * a migration that makes room in any process. So the current process does not matter; the event belongs to
 * the process that owns the memory, which the module stores with it.
 *
 * The types are the module's own and differ between releases. Without the type information of the loaded
 * module these programs do not load.
 */
#ifndef GP_UNIFIED_MEMORY_BPF_H
#define GP_UNIFIED_MEMORY_BPF_H

#include "../core/common.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef enum {
	UVM_PERF_EVENT_FAULT,
	UVM_PERF_EVENT_MIGRATION,
} uvm_perf_event_t;

/* 0 is the CPU */
typedef struct {
	__u32 val;
} uvm_processor_id_t;

struct uvm_va_space_mm_struct {
	struct mm_struct *mm;
};

struct uvm_va_space_struct {
	struct uvm_va_space_mm_struct va_space_mm;
};

typedef struct {
	struct uvm_va_space_struct *va_space;
} uvm_perf_va_space_events_t;

typedef union {
	struct {
		uvm_processor_id_t proc_id;
	} fault;
	struct {
		uvm_processor_id_t dst;
		uvm_processor_id_t src;
		__u64 bytes;
	} migration;
} uvm_perf_event_data_t;

#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_process_key);
	__type(value, struct gp_unified);
} unified SEC(".maps");

/*
 * The task that owns the memory; NULL if several processes share it, because then the owner is not known.
 */
static __always_inline struct task_struct *owner_of(uvm_perf_va_space_events_t *events)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct mm_struct *mm = BPF_CORE_READ(events, va_space, va_space_mm.mm);

	if (!mm)
		return NULL;
	if (mm == BPF_CORE_READ(task, mm))
		return task;
	return bpf_core_field_exists(mm->owner) ? BPF_CORE_READ(mm, owner) : NULL;
}

static __always_inline void count_unified(struct task_struct *owner, __u32 event, __u64 bytes)
{
	struct gp_process_key key = {};
	struct gp_unified *row, none = {};

	key.tgid = BPF_CORE_READ(owner, tgid);
	if (!is_target(key.tgid))
		return;
	key.instance = instance_of(owner);
	row = bpf_map_lookup_elem(&unified, &key);
	if (!row) {
		bpf_map_update_elem(&unified, &key, &none, BPF_NOEXIST);
		row = bpf_map_lookup_elem(&unified, &key);
	}
	if (!row || event >= GP_UNIFIED_EVENTS) {
		count_loss(GP_LOSS_PROCESSES_FULL);
		return;
	}
	__sync_fetch_and_add(&row->events[event], 1);
	__sync_fetch_and_add(&row->bytes[event], bytes);
}

static __always_inline int on_unified(uvm_perf_va_space_events_t *events, __u32 event,
				      uvm_perf_event_data_t *data)
{
	struct task_struct *owner;
	__u64 bytes = 0;
	__u32 what;

	if (event == bpf_core_enum_value(uvm_perf_event_t, UVM_PERF_EVENT_FAULT)) {
		what = BPF_CORE_READ(data, fault.proc_id.val) ? GP_GPU_FAULT : GP_CPU_FAULT;
	} else if (event == bpf_core_enum_value(uvm_perf_event_t, UVM_PERF_EVENT_MIGRATION)) {
		what = !BPF_CORE_READ(data, migration.dst.val)	 ? GP_MOVED_TO_CPU
		       : !BPF_CORE_READ(data, migration.src.val) ? GP_MOVED_TO_GPU
								 : GP_MOVED_BETWEEN_GPUS;
		bytes = BPF_CORE_READ(data, migration.bytes);
	} else {
		return 0;
	}
	owner = owner_of(events);
	if (owner)
		count_unified(owner, what, bytes);
	else
		count_loss(GP_LOSS_OWNER_UNKNOWN);
	return 0;
}

SEC("fentry")
int unified_traced(__u64 *ctx)
{
	return on_unified((void *)ctx[0], ctx[1], (void *)ctx[2]);
}

SEC("kprobe")
int unified_probed(struct pt_regs *ctx)
{
	return on_unified((void *)PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), (void *)PT_REGS_PARM3(ctx));
}

#endif
