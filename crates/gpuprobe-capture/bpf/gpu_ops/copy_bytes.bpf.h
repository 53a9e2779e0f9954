/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The bytes that a call moved, where no argument contains them but a struct or a list does. They are read
 * when the call has returned: by then the library has read them itself, so their pages are present.
 */
#ifndef GP_COPY_BYTES_BPF_H
#define GP_COPY_BYTES_BPF_H

#include "../memory/objects.bpf.h"

/* the most operations that are counted per call */
#define GP_MOST_COPIES 65536

/* The product of the dimensions in one struct. */
static __always_inline __u64 box_bytes(__u64 at, const struct gp_extent *extent, bool *failed)
{
	__u32 word = extent->word;
	__u64 bytes;

	at += extent->offset;
	bytes = times(user_word(at, word, failed), user_word(at + word, word, failed));
	return extent->dimensions == 3 ? times(bytes, user_word(at + 2 * word, word, failed)) : bytes;
}

struct pieces {
	const struct gp_function *function;
	__u64 at;
	__u64 bytes;
	bool failed;
};

/* Adds one size of a list, or one struct. */
static long add_piece(__u64 index, struct pieces *pieces)
{
	const struct gp_extent *extent = &pieces->function->extent;
	bool failed = false;

	if (pieces->function->size_rule == GP_SIZE_LIST)
		pieces->bytes = plus(pieces->bytes, user_word(pieces->at + index * 8, 8, &failed));
	else
		pieces->bytes =
		    plus(pieces->bytes, box_bytes(pieces->at + index * extent->stride, extent, &failed));
	if (!failed)
		return 0;
	pieces->failed = true;
	return 1;
}

/*
 * Adds up the bytes that structs or a list describe, of at most GP_MOST_COPIES entries. Returns whether
 * they could be read.
 */
GP_GLOBAL_FUNC int described_bytes(const struct gp_call *call, const struct gp_function *function,
				   __u64 *bytes)
{
	struct pieces pieces = {};
	__u64 count = 1;

	if (!call || !function || !bytes)
		return 0;
	pieces.function = function;
	argument(call, function->size_a, &pieces.at);
	argument(call, function->size_b, &count);
	if (count > GP_MOST_COPIES)
		count = GP_MOST_COPIES;
	bpf_loop(count, add_piece, &pieces, 0);
	*bytes = pieces.bytes;
	return !pieces.failed;
}

/* An extent passed by value: three consecutive argument words. */
static __always_inline __u64 extent_bytes(const struct gp_call *call, struct gp_arg_loc loc)
{
	__u64 bytes = 1;

	for (int i = 0; i < 3; i++) {
		__u64 word = 0;

		argument(call, loc, &word);
		bytes = times(bytes, word);
		loc.index++;
	}
	return bytes;
}

/* Sets the bytes of a copy or memset that has succeeded. */
static __always_inline void set_bytes_moved(struct gp_call *call, const struct gp_function *function)
{
	__u64 bytes = 0;

	if (function->size_rule == GP_SIZE_EXTENT) {
		call->bytes = extent_bytes(call, function->size_a);
	} else if (function->size_rule >= GP_SIZE_BOX) {
		/* if copies are counted, counting them also counts what could not be read */
		if (!described_bytes(call, function, &bytes) && !function->op_desc.op_kind)
			count_loss(GP_LOSS_UNREAD_GPU_OP);
		call->bytes = function->flags & GP_OBJECT ? times_pixel(call, function, bytes) : bytes;
	}
	call->bytes = plausible(call->bytes);
}

#endif
