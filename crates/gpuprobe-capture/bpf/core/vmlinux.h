/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The few Linux types that the programs use. CO-RE finds the fields at load time, so only names and kinds
 * matter here, not offsets, and no header has to be generated from the running kernel.
 */
#ifndef GP_VMLINUX_H
#define GP_VMLINUX_H

/* bpf_tracing.h checks for this to choose the Linux kernel's register names over those of user space */
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_RING_SIZE = 1,
	BPF_RB_CONS_POS = 2,
};

/* Registers as the Linux kernel saves them. This is ABI, so it is no CO-RE type. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long regs[31];
	unsigned long sp, pc, pstate;
	unsigned long orig_x0;
	int syscallno;
};

/* the context of a program on arm64, which bpf_tracing.h expects: the beginning of the above */
struct user_pt_regs {
	unsigned long regs[31];
	unsigned long sp, pc, pstate;
};
#else
#error "this architecture has no registers here yet"
#endif

/* the type by which the verifier recognises the context argument of a global function: Linux 6.1 by the name
 * of the struct, newer ones by that of the type
 */
#if defined(__TARGET_ARCH_x86)
typedef struct pt_regs bpf_user_pt_regs_t;
#else
typedef struct user_pt_regs bpf_user_pt_regs_t;
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct super_block {
	__u32 s_dev;
};

struct inode {
	unsigned long i_ino;
	__u32 i_rdev;
	struct super_block *i_sb;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct file *vm_file;
};

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
};

struct pci_dev {
	struct device dev;
};

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[];
};

struct signal_struct {
	atomic_t live;
};

/* a return address that a return probe has replaced, and its stack slot */
struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct mm_struct {
	struct uprobes_state uprobes_state;
	struct task_struct *owner;
	unsigned long start_stack;
};

#if defined(__TARGET_ARCH_arm64)
struct thread_info {
	__u64 preempt_count;
};

struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
};
#else
struct thread_struct {
	unsigned long fsbase;
	/* bits of the user shadow stack, since Linux 6.6 */
	unsigned long features;
};

/* per-CPU data in one cache line, on Linux 6.2 to 6.14 */
struct pcpu_hot {
	int preempt_count;
};
#endif

/* exists where fprobe follows returns by the function graph, since Linux 6.14 */
struct fprobe_hlist {
	int size;
};

struct kernfs_node {
	const char *name;
	struct kernfs_node *parent;
};

/* since Linux 6.15 */
struct kernfs_node___renamed {
	struct kernfs_node *__parent;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct task_struct {
#if defined(__TARGET_ARCH_arm64)
	struct thread_info thread_info;
#endif
	void *stack;
	struct mm_struct *mm;
	struct files_struct *files;
	struct css_set *cgroups;
	struct uprobe_task *utask;
	int pid;
	int tgid;
	int exit_code;
	unsigned int flags;
	unsigned int __state;
	struct sched_entity se;
	unsigned long nvcsw;
	__u64 start_boottime;
	__u64 self_exec_id;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct signal_struct *signal;
	struct pid *thread_pid;
	/* the alternate signal stack */
	unsigned long sas_ss_sp;
	unsigned long sas_ss_size;
	struct thread_struct thread;
	char comm[16];
};

union thread_union {
	unsigned long stack[1];
};

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
