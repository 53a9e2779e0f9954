/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * System calls on NVIDIA devices, by the tracepoints of system calls, which every kernel has. They are
 * pushed on the stack of open calls as functions are, so that the call that makes one is its parent. A
 * thread makes one system call at a time.
 */
#ifndef GP_DEVICE_SYSCALLS_BPF_H
#define GP_DEVICE_SYSCALLS_BPF_H

#include "ioctl.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define GP_NR_OPEN 2
#define GP_NR_POLL 7
#define GP_NR_MMAP 9
#define GP_NR_IOCTL 16
#define GP_NR_OPENAT 257
#define GP_NR_PPOLL 271
#else
#define GP_NR_IOCTL 29
#define GP_NR_OPENAT 56
#define GP_NR_PPOLL 73
#define GP_NR_MMAP 222
#endif

#define GP_ANONYMOUS 0x20
/* how many of the files that one poll waits for are examined */
#define GP_POLLED 4

/* NVIDIA devices, by device number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} devices SEC(".maps");

/* The gp_device_syscall of a system call number; GP_DEVICE_SYSCALLS if it is none of them. */
static __always_inline __u32 device_syscall(long number)
{
	switch (number) {
	case GP_NR_IOCTL:
		return GP_IOCTL;
	case GP_NR_MMAP:
		return GP_MMAP;
#if defined(__TARGET_ARCH_x86)
	case GP_NR_OPEN:
	case GP_NR_POLL:
		return number == GP_NR_OPEN ? GP_OPEN : GP_POLL;
#endif
	case GP_NR_OPENAT:
		return GP_OPEN;
	case GP_NR_PPOLL:
		return GP_POLL;
	default:
		return GP_DEVICE_SYSCALLS;
	}
}

/* The device number of a file, and its kind; false if it is not an NVIDIA device. */
GP_OWN_FRAME bool find_device(__u32 fd, __u32 *number, __u8 *kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files, *file = NULL;
	__u32 any;
	__u8 *found;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return false;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), files + fd) || !file)
		return false;
	*number = BPF_CORE_READ(file, f_inode, i_rdev);
	any = *number | GP_ANY_MINOR;
	found = *number ? bpf_map_lookup_elem(&devices, number) : NULL;
	if (!found && *number)
		found = bpf_map_lookup_elem(&devices, &any);
	if (!found)
		return false;
	*kind = *found;
	return true;
}

static __always_inline void save_syscall(struct gp_call *call, const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	call->registers[0] = regs->di;
	call->registers[1] = regs->si;
	call->registers[2] = regs->dx;
	call->registers[3] = regs->r10;
	call->registers[4] = regs->r8;
	call->registers[5] = regs->r9;
#else
	for (int i = 0; i < 6; i++)
		call->registers[i] = regs->regs[i];
#endif
}

static __always_inline __u64 syscall_argument(const struct pt_regs *regs, int index)
{
#if defined(__TARGET_ARCH_x86)
	return index == 0   ? regs->di
	       : index == 1 ? regs->si
	       : index == 2 ? regs->dx
	       : index == 3 ? regs->r10
			    : regs->r8;
#else
	return regs->regs[index];
#endif
}

/* The path argument of open or openat; only x86 has both. */
static __always_inline __u64 path_argument(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return syscall_argument(regs, regs->orig_ax == GP_NR_OPENAT);
#else
	return syscall_argument(regs, 1);
#endif
}

static __always_inline void begin_device_call(struct gp_call *call, const struct pt_regs *regs, __u32 number,
					      __u8 kind)
{
	call->effect = GP_EFFECT_DEVICE;
	call->detail.device = (struct gp_device_call){.number = number, .kind = kind};
	save_syscall(call, regs);
}

/*
 * Whether a path begins like those of the NVIDIA devices. A path in a page that was never touched cannot be
 * read. For a watched process it then counts as possible, and the opened file decides.
 */
static __always_inline bool may_name_device(__u64 address, bool is_watched)
{
	const char wanted[] = "/dev/nvidia";
	char name[sizeof(wanted)] = {};

	if (bpf_probe_read_user(name, sizeof(name) - 1, (void *)address))
		return is_watched;
	for (int i = 0; i < (int)sizeof(wanted) - 1; i++) {
		if (name[i] != wanted[i])
			return false;
	}
	return true;
}

/* Whether one of the first files that poll waits for is an NVIDIA device. */
static __always_inline bool find_polled(__u64 address, __u64 count, __u32 *number, __u8 *kind)
{
	for (__u32 i = 0; i < GP_POLLED && i < count; i++) {
		__u32 fd = 0;

		if (bpf_probe_read_user(&fd, sizeof(fd), (void *)(address + 8 * i)))
			return false;
		if (find_device(fd, number, kind))
			return true;
	}
	return false;
}

/* Whether the system call is on an NVIDIA device, and on which. For an open the device is not known yet. */
static __always_inline bool is_on_device(__u32 which, const struct pt_regs *regs, bool is_watched,
					 __u32 *number, __u8 *kind)
{
	if (which == GP_IOCTL)
		return find_device(syscall_argument(regs, 0), number, kind);
	if (which == GP_MMAP)
		return !(syscall_argument(regs, 3) & GP_ANONYMOUS) &&
		       find_device(syscall_argument(regs, 4), number, kind);
	if (which == GP_POLL)
		return find_polled(syscall_argument(regs, 0), syscall_argument(regs, 1), number, kind);
	return may_name_device(path_argument(regs), is_watched);
}

/* Copies the path that is opened. */
static __always_inline void read_name(struct gp_call *call, __u64 address)
{
	call->flags &= ~GP_UNREAD_STACK;
	if (bpf_probe_read_user_str(call->stack.path, sizeof(call->stack.path), (void *)address) < 0)
		call->flags |= GP_UNREAD_STACK;
}

/* Fills in the device that was opened; false if it is not an NVIDIA device after all. */
static __always_inline bool end_open(struct gp_call *call, const struct pt_regs *regs, long result)
{
	bool was_read = !(call->flags & GP_UNREAD_STACK);
	__u64 path = path_argument(regs);
	__u32 number = 0;
	__u8 kind = GP_DEVICE_OTHER;

	if (!was_read)
		read_name(call, path);
	if (result >= 0 && find_device(result, &number, &kind)) {
		call->detail.device.number = number;
		call->detail.device.kind = kind;
		return true;
	}
	return was_read || may_name_device(path, false);
}

/* Whether an open call is a system call. */
static __always_inline bool is_device_syscall(const struct gp_call *call)
{
	return call->function - gp_config.syscall_rows < GP_DEVICE_SYSCALLS;
}

/*
 * Drops calls that the program jumped out of, and system calls and Linux functions whose end was not seen.
 */
static __always_inline void drop_below(struct gp_thread *thread, __u64 stack_pointer)
{
	for (int i = 0; i < GP_DEPTH; i++) {
		struct gp_call *top;

		if (!thread->depth)
			return;
		top = open_call(thread, thread->depth - 1);
		if (top->stack_pointer >= stack_pointer && !is_device_syscall(top) && !is_linux_call(top))
			return;
		thread->depth--;
		count_loss(GP_LOSS_ABANDONED);
	}
}

/* Drops Linux functions whose end was not seen: when a system call ends, all of them have ended. */
static __always_inline void drop_linux_calls(struct gp_thread *thread)
{
	for (int i = 0; i < GP_DEPTH; i++) {
		if (!thread->depth || !is_linux_call(open_call(thread, thread->depth - 1)))
			return;
		thread->depth--;
		count_loss(GP_LOSS_ABANDONED);
	}
}

SEC("tp_btf/sys_enter")
int BPF_PROG(on_syscall, struct pt_regs *regs, long syscall)
{
	__u32 which = device_syscall(syscall), index, number = 0;
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct gp_function *function;
	struct gp_thread *thread;
	struct gp_call *call;
	__u8 kind = GP_DEVICE_OTHER;

	if (which == GP_DEVICE_SYSCALLS || pid_tgid >> 32 == gp_config.own_tgid || is_stopped())
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	if (!thread && !is_target(pid_tgid >> 32))
		return 0;
	/* if every process is watched, no state is created for a thread whose file may be no device */
	if (!is_on_device(which, regs, thread || gp_config.only_targets, &number, &kind))
		return 0;
	if (!thread)
		thread = new_thread(task, pid_tgid);
	if (!thread)
		return 0;
	index = gp_config.syscall_rows + which;
	function = bpf_map_lookup_elem(&functions, &index);
	if (!function)
		return 0;
	drop_below(thread, regs->sp);
	call = push_linux_call(thread, innermost(thread), function, index, regs->sp);
	if (!call)
		return 0;
	begin_device_call(call, regs, number, kind);
	if (which == GP_IOCTL)
		read_ioctl(call);
	else if (which == GP_OPEN)
		read_name(call, path_argument(regs));
	call->start_ns = bpf_ktime_get_ns();
	if (gp_config.phases || gp_config.entry_only)
		send_begin_record(call, function);
	if (gp_config.entry_only)
		thread->depth--;
	return 0;
}

/* Counts and sends a system call that has returned. */
static __always_inline void end_syscall(struct gp_thread *thread, struct gp_call *call,
					const struct gp_function *function, bool failed)
{
	call->entered = 1;
	call->device_ns = call->duration_ns;
	propagate_device_time(thread, call);
	if (function->flags & GP_COUNT) {
		struct gp_count *count = count_of(thread, call->function);

		if (count)
			count_latency(count, call, failed);
		if (call->function == gp_config.syscall_rows + GP_IOCTL)
			count_command(thread, call, failed);
	}
	if (function->flags & GP_STREAM && is_wanted(call, failed))
		send_call(call, function);
}

#if defined(__TARGET_ARCH_x86)
/*
 * The first device that an unknown process opens, with a path in a page that it had not touched yet: at the
 * entry the path could not be read. The duration is not known either.
 */
GP_OWN_FRAME int end_unseen_open(struct pt_regs *regs, long result, __u64 now)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 index = gp_config.syscall_rows + GP_OPEN, number = 0;
	struct gp_function *function = bpf_map_lookup_elem(&functions, &index);
	struct gp_thread *thread;
	struct gp_call *call;
	__u8 kind = GP_DEVICE_OTHER;

	if (result < 0 || !function || pid_tgid >> 32 == gp_config.own_tgid || gp_config.only_targets ||
	    gp_config.entry_only || !find_device(result, &number, &kind))
		return 0;
	thread = current_thread();
	call = thread ? push_linux_call(thread, innermost(thread), function, index, regs->sp) : NULL;
	if (!call)
		return 0;
	begin_device_call(call, regs, number, kind);
	read_name(call, path_argument(regs));
	call->start_ns = now;
	call->duration_ns = 0;
	call->result = result;
	thread->depth--;
	end_syscall(thread, call, function, false);
	return 0;
}
#endif

SEC("tp_btf/sys_exit")
int BPF_PROG(on_syscall_end, struct pt_regs *regs, long result)
{
	__u64 now = bpf_ktime_get_ns();
	struct gp_function *function;
	struct gp_thread *thread;
	struct gp_call *call;
	bool failed;
	__u32 index;

#if defined(__TARGET_ARCH_x86)
	if (device_syscall(regs->orig_ax) == GP_DEVICE_SYSCALLS)
		return 0;
#endif
	thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
#if defined(__TARGET_ARCH_x86)
	if (!thread && device_syscall(regs->orig_ax) == GP_OPEN)
		return end_unseen_open(regs, result, now);
#endif
	if (!thread || is_stopped_at(now))
		return 0;
	drop_linux_calls(thread);
	if (!thread->depth)
		return 0;
	call = open_call(thread, thread->depth - 1);
	if (!is_device_syscall(call) || call->stack_pointer != regs->sp)
		return 0;
	thread->depth--;
	index = call->function;
	function = bpf_map_lookup_elem(&functions, &index);
	if (!function)
		return 0;
	call->duration_ns = now - call->start_ns;
	call->result = result;
	if (index == gp_config.syscall_rows + GP_IOCTL)
		read_ioctl(call);
	else if (index == gp_config.syscall_rows + GP_OPEN && !end_open(call, regs, result))
		return 0;
	failed = result < 0;
	if (index == gp_config.syscall_rows + GP_IOCTL && status_of(call))
		failed = true;
	end_syscall(thread, call, function, failed);
	return 0;
}

#endif
