/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Empty programs, and programs that do what gpuprobe does for a counted call: find the state of the thread,
 * read the clock at entry and return, and add to a row of the function. For a call with probes at entry and
 * return, and for one through a trampoline.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define BUCKETS 40
#define ROWS 64

struct row {
	__u64 calls;
	__u64 failures;
	__u64 duration;
	__u64 histogram[BUCKETS];
};

struct open_call {
	__u64 begin;
	__u64 stack_pointer;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROWS);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, 1 /* BPF_F_NO_PREALLOC */);
	__type(key, int);
	__type(value, struct open_call);
} threads SEC(".maps");

extern bool bpf_session_is_return(void) __ksym;

static __always_inline int enter(struct pt_regs *ctx)
{
	struct open_call *call = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 1);

	if (!call)
		return 1;
	call->stack_pointer = PT_REGS_SP(ctx);
	call->begin = bpf_ktime_get_ns();
	return 0;
}

static __always_inline void add(struct row *row, __u64 duration, __u32 result)
{
	__u32 bucket = 0;

	for (int bit = 32; bit; bit /= 2) {
		if (duration >> bucket >> bit)
			bucket += bit;
	}
	row->calls++;
	row->failures += result != 0;
	row->duration += duration;
	if (bucket < BUCKETS)
		row->histogram[bucket]++;
}

static __always_inline int leave(struct pt_regs *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	struct open_call *call = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	__u32 index = bpf_get_attach_cookie(ctx);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!call || !row || !call->begin)
		return 0;
	add(row, now - call->begin, PT_REGS_RC(ctx));
	call->begin = 0;
	return 0;
}

/* The state of the thread is not needed to count, but gpuprobe would need it for what a call did. */
SEC("uprobe.multi")
int counted_report(struct pt_regs *ctx)
{
	struct open_call *call = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 1);
	__u32 index = bpf_get_attach_cookie(ctx);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!call || !row)
		return 0;
	call->begin = bpf_ktime_get_ns();
	add(row, PT_REGS_PARM4(ctx) - PT_REGS_PARM3(ctx), PT_REGS_PARM2(ctx));
	return 0;
}

SEC("uprobe.session")
int empty_pair(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.multi")
int empty_entry(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.session")
int counted_pair(struct pt_regs *ctx)
{
	return bpf_session_is_return() ? leave(ctx) : enter(ctx);
}

SEC("uprobe.multi")
int counted_enter(struct pt_regs *ctx)
{
	return enter(ctx);
}

SEC("uprobe.multi")
int counted_leave(struct pt_regs *ctx)
{
	return leave(ctx);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
