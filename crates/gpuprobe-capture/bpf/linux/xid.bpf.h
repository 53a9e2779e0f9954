/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * GPU errors (XIDs), by the tracepoint of the NVIDIA kernel module, or by the function that calls it. They
 * are reported where the module detects them, in an interrupt or in a thread of its own, so the current
 * process need not be the cause.
 */
#ifndef GP_XID_BPF_H
#define GP_XID_BPF_H

#include "../core/common.bpf.h"

/* the record without the arguments of the message */
#define GP_XID_HEAD __builtin_offsetof(struct gp_xid_record, words)

static __always_inline void describe(struct gp_xid_record *record, struct pci_dev *gpu, __u32 number,
				     const char *message)
{
	__builtin_memset(record, 0, GP_XID_HEAD);
	record->kind = GP_RECORD_XID;
	record->number = number;
	record->id = __sync_fetch_and_add(&gp_next_id, 1);
	record->at_ns = bpf_ktime_get_ns();
	bpf_probe_read_kernel_str(record->gpu, sizeof(record->gpu), BPF_CORE_READ(gpu, dev.kobj.name));
	bpf_probe_read_kernel_str(record->message, sizeof(record->message), message);
}

SEC("raw_tp/nvidia_dev_xid")
int on_xid(struct bpf_raw_tracepoint_args *ctx)
{
	/* its message is complete, so no arguments follow */
	struct gp_xid_record *record = bpf_ringbuf_reserve(&control, GP_XID_HEAD, 0);

	if (!record) {
		count_loss(GP_LOSS_RING_FULL);
		return 0;
	}
	describe(record, (struct pci_dev *)ctx->args[0], ctx->args[1], (const char *)ctx->args[2]);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* A va_list: how a function stores its variable arguments by the calling convention. */
struct gp_arguments {
#if defined(__TARGET_ARCH_x86)
	__u32 of_registers;
	__u32 of_vectors;
	__u64 on_stack;
	__u64 registers;
#else
	__u64 on_stack;
	__u64 registers_end;
	__u64 vectors_end;
	__s32 of_registers;
	__s32 of_vectors;
#endif
};

/* The address of the next argument. */
static __always_inline __u64 next_argument(struct gp_arguments *arguments)
{
	__u64 at;

#if defined(__TARGET_ARCH_x86)
	if (arguments->of_registers < 6 * sizeof(__u64)) {
		at = arguments->registers + arguments->of_registers;
#else
	if (arguments->of_registers < 0) {
		at = arguments->registers_end + arguments->of_registers;
#endif
		arguments->of_registers += sizeof(__u64);
		return at;
	}
	at = arguments->on_stack;
	arguments->on_stack += sizeof(__u64);
	return at;
}

/*
 * The function gets the message as a format and a va_list. User space formats it. Which arguments are
 * strings is not known here, so each one is read as a string, which fails for numbers.
 */
static __always_inline int report(struct pci_dev *gpu, __u32 number, const char *format, void *va_list_at)
{
	struct gp_xid_record *record = bpf_ringbuf_reserve(&control, sizeof(*record), 0);
	struct gp_arguments arguments = {};

	if (!record) {
		count_loss(GP_LOSS_RING_FULL);
		return 0;
	}
	describe(record, gpu, number, format);
	record->is_format = !bpf_probe_read_kernel(&arguments, sizeof(arguments), va_list_at);
	/* what cannot be read stays zero */
	for (int i = 0; i < GP_REPORT_WORDS; i++) {
		__u64 word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (void *)next_argument(&arguments));
		record->words[i] = word;
		bpf_probe_read_kernel_str(&record->texts[i * GP_REPORT_TEXT], GP_REPORT_TEXT, (void *)word);
	}
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

SEC("fentry")
int report_traced(__u64 *ctx)
{
	return report((struct pci_dev *)ctx[0], ctx[1], (const char *)ctx[2], (void *)ctx[3]);
}

SEC("kprobe")
int report_probed(struct pt_regs *ctx)
{
	return report((struct pci_dev *)PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx),
		      (const char *)PT_REGS_PARM3(ctx), (void *)PT_REGS_PARM4(ctx));
}

#endif
