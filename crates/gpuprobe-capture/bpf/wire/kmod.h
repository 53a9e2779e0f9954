/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: what happens below CUDA, in the Linux kernel and in the NVIDIA kernel modules. */
#ifndef GP_KMOD_H
#define GP_KMOD_H

/* System calls on NVIDIA devices; their rows in `functions` follow one another in this order. */
enum gp_device_syscall {
	GP_IOCTL,
	GP_MMAP,
	GP_OPEN,
	GP_POLL,
	GP_DEVICE_SYSCALLS,
};

/* In the order of DeviceKind in gpuprobe-event. */
enum gp_device_kind : __u8 {
	GP_DEVICE_CONTROL,
	GP_DEVICE_GPU,
	GP_DEVICE_UVM,
	GP_DEVICE_MODESET,
	GP_DEVICE_CAPS,
	GP_DEVICE_NVSWITCH,
	GP_DEVICE_OTHER,
};

enum gp_minor {
	/* every device of a major number */
	GP_ANY_MINOR = 0xfffff,
};

/* Key: an ioctl, by its request and by the command or class in its argument. */
struct gp_command_key {
	__u64 instance;
	__u32 tgid;
	__u32 request;
	__u32 detail;
	__u32 device;
};

/* The counters of an ioctl. */
struct gp_command {
	__u64 calls;
	__u64 failures;
	__u64 total_ns;
};

/* Events of unified memory: a fault by a processor that does not have the page, or a migration. */
enum gp_unified_event {
	GP_CPU_FAULT,
	GP_GPU_FAULT,
	GP_MOVED_TO_GPU,
	GP_MOVED_TO_CPU,
	GP_MOVED_BETWEEN_GPUS,
	GP_UNIFIED_EVENTS,
};

/* The events of one process. */
struct gp_unified {
	__u64 events[GP_UNIFIED_EVENTS];
	__u64 bytes[GP_UNIFIED_EVENTS];
};

/* how many arguments of a message are read, and how many bytes of those that are strings */
#define GP_REPORT_WORDS 8
#define GP_REPORT_TEXT 96

/* A GPU error. */
struct gp_xid_record {
	__u16 kind;
	/* whether the message is a format, to be filled with what follows */
	__u16 is_format;
	__u32 number;
	__u64 id;
	__u64 at_ns;
	/* its PCI address, as text */
	char gpu[16];
	/* the NVIDIA kernel module's message */
	char message[256];
	/* the arguments of the message, and the text of those that are strings */
	__u64 words[GP_REPORT_WORDS];
	char texts[GP_REPORT_WORDS * GP_REPORT_TEXT];
};

#endif
