/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Names of CUDA kernels. A launch has only a handle. Names come from the calls that register or look up
 * CUDA kernels. Besides, a handle points to an object of the CUDA driver that contains a pointer to the
 * name. So for a handle with a known name we report which words of the object point to it, and for a handle
 * that was never seen before the text that the word found so far points to.
 */
#ifndef GP_CUDA_KERNEL_NAMES_BPF_H
#define GP_CUDA_KERNEL_NAMES_BPF_H

#include "../core/common.bpf.h"

/* how many bytes of a name are compared */
#define GP_COMPARED_BYTES 64

/* The upper bits that distinguish kernels of different names whose handle is the same, one after the other.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, __u64);
} named_kernels SEC(".maps");

struct gp_short_name {
	struct gp_name_record head;
	char text[GP_TEXT_SHORT];
};

struct gp_middle_name {
	struct gp_name_record head;
	char text[GP_TEXT_MIDDLE];
};

struct gp_long_name {
	struct gp_name_record head;
	char text[GP_TEXT_LONG];
};

/*
 * Sends a name in a record of one size. False if the text does not fit and a larger record should be tried.
 */
#define GP_SEND_NAME(type, filled, address, is_last)                                                         \
	({                                                                                                   \
		type *record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);                              \
		bool done = true;                                                                            \
		if (!record) {                                                                               \
			count_loss(GP_LOSS_LOST_NAME);                                                       \
		} else {                                                                                     \
			long length =                                                                        \
			    bpf_probe_read_user_str(record->text, sizeof(record->text), (void *)(address));  \
			done = is_last || length < (long)sizeof(record->text);                               \
			record->head = *(filled);                                                            \
			record->head.address = (address);                                                    \
			record->head.length = length > 0 ? length : 0;                                       \
			if (done)                                                                            \
				bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);                                \
			else                                                                                 \
				bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);                               \
		}                                                                                            \
		done;                                                                                        \
	})

/* Sends a name in the smallest record that it fits into. Ring records are reserved with a constant size. */
static __noinline int send_name(struct gp_name_record *head, __u64 address)
{
	if (!head)
		return 0;
	if (!GP_SEND_NAME(struct gp_short_name, head, address, false) &&
	    !GP_SEND_NAME(struct gp_middle_name, head, address, false))
		GP_SEND_NAME(struct gp_long_name, head, address, true);
	return 0;
}

static __always_inline void name_head(struct gp_name_record *head, const struct gp_call *call, __u32 how,
				      __u64 handle)
{
	__builtin_memset(head, 0, sizeof(*head));
	head->kind = GP_RECORD_NAME;
	head->how = how;
	head->tgid = call->tgid;
	head->instance = call->instance;
	head->library = call->library;
	head->handle = handle;
}

static __always_inline void read_compared(__u64 *text, __u64 address)
{
	__builtin_memset(text, 0, GP_COMPARED_BYTES);
	bpf_probe_read_user_str(text, GP_COMPARED_BYTES, (void *)address);
}

struct matching {
	__u64 object;
	__u32 matches;
	__u32 reserved;
	__u64 text[GP_COMPARED_BYTES / 8];
};

static long match_word(__u64 index, struct matching *matching)
{
	__u64 other[GP_COMPARED_BYTES / 8], word = 0, differs = 0;

	if (bpf_probe_read_user(&word, sizeof(word), (void *)(matching->object + 8 * index)))
		return 1;
	read_compared(other, word);
	for (int i = 0; i < GP_COMPARED_BYTES / 8; i++)
		differs |= matching->text[i] ^ other[i];
	if (!differs)
		matching->matches |= 1u << (index & (GP_HANDLE_WORDS - 1));
	return 0;
}

/* The words of the object that point to this text, as bits. */
static __always_inline __u32 words_pointing_to(__u64 object, __u64 text_address)
{
	struct matching matching = {.object = object};

	read_compared(matching.text, text_address);
	if (matching.text[0])
		bpf_loop(GP_HANDLE_WORDS, match_word, &matching, 0);
	return matching.matches;
}

/* The tag of a kernel object: see `named_kernels`. */
static __always_inline __u64 kernel_tag(const struct gp_call *call, __u64 handle)
{
	struct gp_live_key key = {.pointer = handle, .instance = call->instance, .tgid = call->tgid};
	__u64 *tag = bpf_map_lookup_elem(&named_kernels, &key);

	return tag ? *tag : 0;
}

/* Remembers a tag for a kernel object, which lives where another one with another name may have lived. */
GP_OWN_FRAME void set_kernel_tag(const struct gp_call *call, __u64 handle, __u64 tag)
{
	struct gp_live_key key = {.pointer = handle, .instance = call->instance, .tgid = call->tgid};

	if (bpf_map_update_elem(&named_kernels, &key, &tag, BPF_ANY))
		count_loss(GP_LOSS_LOST_NAME);
}

/* The tag that belongs to a name. Two names have the same in one of 65,536 cases. */
GP_OWN_FRAME __u64 tag_of_name(__u64 address)
{
	__u64 text[GP_COMPARED_BYTES / 8], sum = 0;

	read_compared(text, address);
	for (int i = 0; i < GP_COMPARED_BYTES / 8; i++)
		sum = (sum ^ text[i]) * GP_SCRAMBLE;
	return sum >> GP_KERNEL_TAG_BIT << GP_KERNEL_TAG_BIT;
}

/* Sends a name or an alias: a call that registers or looks up a CUDA kernel has succeeded. */
GP_OWN_FRAME void send_kernel_name(const struct gp_call *call, const struct gp_function *function)
{
	struct gp_name_record head;
	__u64 handle = 0, address = 0, other = 0;

	if (function->flags & (GP_HANDLE_IS_OUT | GP_NAME_IS_OUT) && call->flags & GP_UNREAD_OUT)
		return;
	if (function->flags & GP_HANDLE_IS_OUT)
		handle = call->out[0];
	else if (function->flags & GP_OUTPUT_IS_RESULT)
		handle = call->result;
	else
		argument(call, function->cuda_kernel, &handle);
	if (!handle)
		return;
	if (function->named_if &&
	    (!argument(call, function->device, &other) || (__u32)other != function->named_if))
		return;
	if (argument(call, function->alias, &other)) {
		if (function->flags & GP_OBJECT) {
			__u64 tag = kernel_tag(call, other);

			set_kernel_tag(call, handle, tag);
			handle |= tag;
			other |= tag;
		}
		name_head(&head, call, GP_NAME_ALIAS, handle);
		head.other = other;
		if (bpf_ringbuf_output(&calls, &head, sizeof(head), BPF_RB_NO_WAKEUP))
			count_loss(GP_LOSS_LOST_NAME);
		return;
	}
	if (function->flags & GP_NAME_IS_OUT)
		address = call->out[0];
	else
		argument(call, function->name, &address);
	if (function->name_at &&
	    bpf_probe_read_user(&address, sizeof(address), (void *)(address + function->name_at)))
		return;
	if (function->flags & GP_OBJECT) {
		other = tag_of_name(address);
		set_kernel_tag(call, handle, other);
		name_head(&head, call, GP_NAME_KNOWN, handle | other);
		send_name(&head, address);
		return;
	}
	name_head(&head, call, GP_NAME_KNOWN, handle);
	/*
	 * A handle that the program gives itself together with the name is a function of the program, not an
	 * object of the CUDA driver. A program registers thousands of them before it begins.
	 */
	if (function->flags & (GP_HANDLE_IS_OUT | GP_OUTPUT_IS_RESULT | GP_NAME_IS_OUT))
		head.matches = words_pointing_to(handle, address);
	send_name(&head, address);
}

/* Reports a handle at its first launch, with the text that its name word points to. */
GP_OWN_FRAME void report_new_kernel(const struct gp_call *call, const struct gp_function *function,
				    const struct gp_call *outer)
{
	struct gp_cuda_kernel_key key = {
	    .instance = call->instance, .tgid = call->tgid, .library = call->library};
	struct gp_name_record head;
	struct gp_function *around;
	__u32 one = 1, zero = 0, *word, index;
	__u64 address = 0;

	if (!argument(call, function->cuda_kernel, &key.handle) || bpf_map_lookup_elem(&cuda_kernels, &key))
		return;
	/* if the table is full, the handle is reported at every launch: slower, but nothing is lost */
	bpf_map_update_elem(&cuda_kernels, &key, &one, BPF_ANY);
	word = bpf_map_lookup_elem(&name_word, &zero);
	if (!word)
		return;
	name_head(&head, call, GP_NAME_CANDIDATE, key.handle);
	head.word = *word;
	if (outer) {
		index = outer->function & (GP_FUNCTIONS - 1);
		around = bpf_map_lookup_elem(&functions, &index);
		if (around && around->flags & GP_LAUNCH)
			argument(outer, around->cuda_kernel, &head.other);
	}
	bpf_probe_read_user(&address, sizeof(address), (void *)(key.handle + 8 * (__u64)head.word));
	send_name(&head, address);
}

#endif
