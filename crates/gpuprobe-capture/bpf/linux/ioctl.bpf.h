/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What an ioctl asks of the NVIDIA kernel module: its argument, the command in it, and the module's own
 * status.
 */
#ifndef GP_IOCTL_BPF_H
#define GP_IOCTL_BPF_H

#include "../core/open_calls.bpf.h"

/* how many bytes of an argument are read: enough for every command and status */
#define GP_ARGUMENT (GP_STACK_WORDS * 8)
/* for an argument of unknown length, if fewer bytes are readable */
#define GP_SHORT_ARGUMENT 32

/* ioctls of the resource manager have type 'F'; these are the numbers of those whose argument says more */
#define GP_TYPE_RM 0x46
#define GP_ESC_FREE 0x29
#define GP_ESC_CONTROL 0x2a
#define GP_ESC_ALLOC 0x2b
#define GP_ESC_XFER 211

/* The commands of each process, if they are counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_command_key);
	__type(value, struct gp_command);
} commands SEC(".maps");

/*
 * Copies the beginning of an ioctl's argument. If the ioctl wraps another one, the inner one's argument and
 * request are recorded instead.
 */
static __always_inline void read_ioctl(struct gp_call *call)
{
	__u32 request = call->registers[1], bytes = request >> 16 & 0x3fff;
	struct gp_device_call *device = &call->detail.device;
	__u64 address = call->registers[2];
	struct {
		__u32 command;
		__u32 bytes;
		__u64 address;
	} wrapped = {};

	if ((request >> 8 & 0xff) == GP_TYPE_RM && (request & 0xff) == GP_ESC_XFER &&
	    !bpf_probe_read_user(&wrapped, sizeof(wrapped), (void *)address)) {
		bytes = wrapped.bytes & 0x3fff;
		address = wrapped.address;
		request = (request & 0xc000ff00) | bytes << 16 | (wrapped.command & 0xff);
	}
	if (device->kind == GP_DEVICE_UVM)
		bytes = GP_ARGUMENT;
	if (bytes > GP_ARGUMENT)
		bytes = GP_ARGUMENT;
	device->request = request;
	device->argument_bytes = bytes;
	call->flags &= ~GP_UNREAD_STACK;
	if (!bytes || !bpf_probe_read_user(call->stack.argument, bytes, (void *)address))
		return;
	device->argument_bytes = GP_SHORT_ARGUMENT;
	if (device->kind != GP_DEVICE_UVM ||
	    bpf_probe_read_user(call->stack.argument, GP_SHORT_ARGUMENT, (void *)address)) {
		device->argument_bytes = 0;
		call->flags |= GP_UNREAD_STACK;
	}
}

/* Whether the argument was read and has the length that the kernel module expects. */
static __always_inline bool is_whole(const struct gp_call *call, __u32 escape, __u32 bytes)
{
	const struct gp_device_call *device = &call->detail.device;

	return (device->request & 0xff) == escape && device->argument_bytes == bytes &&
	       device->kind <= GP_DEVICE_GPU && !(call->flags & GP_UNREAD_STACK);
}

/* The command or class in the argument of an ioctl. */
static __always_inline __u32 detail_of(const struct gp_call *call)
{
	if (is_whole(call, GP_ESC_CONTROL, 32))
		return call->stack.argument[1];
	if (is_whole(call, GP_ESC_ALLOC, 32) || is_whole(call, GP_ESC_ALLOC, 48))
		return call->stack.argument[1] >> 32;
	return 0;
}

/* The kernel module's own status, if its position is known; 0 is success. */
static __always_inline __u32 status_of(const struct gp_call *call)
{
	if (is_whole(call, GP_ESC_FREE, 16))
		return call->stack.argument[1] >> 32;
	if (is_whole(call, GP_ESC_ALLOC, 48))
		return call->stack.argument[5];
	if (is_whole(call, GP_ESC_CONTROL, 32) || is_whole(call, GP_ESC_ALLOC, 32))
		return call->stack.argument[3] >> 32;
	return 0;
}

/*
 * The most rows for commands per process. A process can make up any number of commands, and other processes
 * need room too.
 */
#define GP_MOST_COMMANDS 512

/* Creates the row of a command, if there is room. */
static __always_inline void add_command_row(__u32 row, const struct gp_command_key *key)
{
	struct gp_memory *process = row ? bpf_map_lookup_elem(&memory_rows, &row) : NULL;
	struct gp_command none = {};

	if (!process)
		return;
	if (__sync_fetch_and_add(&process->command_rows, 1) >= GP_MOST_COMMANDS ||
	    bpf_map_update_elem(&commands, key, &none, BPF_NOEXIST))
		__sync_fetch_and_add(&process->command_rows, -1);
}

GP_OWN_FRAME int count_command(const struct gp_thread *thread, const struct gp_call *call, bool failed)
{
	struct gp_command_key key = {.instance = call->instance,
				     .tgid = call->tgid,
				     .request = call->detail.device.request,
				     .detail = detail_of(call),
				     .device = call->detail.device.kind};
	struct gp_command *command = bpf_map_lookup_elem(&commands, &key);

	if (!command) {
		add_command_row(thread->memory_row, &key);
		command = bpf_map_lookup_elem(&commands, &key);
	}
	if (!command) {
		count_loss(GP_LOSS_COUNTERS_FULL);
		return 0;
	}
	__sync_fetch_and_add(&command->calls, 1);
	__sync_fetch_and_add(&command->total_ns, call->duration_ns);
	if (failed)
		__sync_fetch_and_add(&command->failures, 1);
	return 0;
}

#endif
