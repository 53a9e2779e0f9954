/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Memory objects with a count of references, as OpenCL has them. Memory is freed when its last reference is
 * given up. An object may share the memory of another one, which then lives at least as long.
 */
#ifndef GP_OBJECTS_BPF_H
#define GP_OBJECTS_BPF_H

#include "../core/common.bpf.h"

/* Memory objects with something to remember; by handle. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gp_live_key);
	__type(value, struct gp_object);
} objects SEC(".maps");

/* an image may be made from a sub-buffer, and that from a buffer */
#define GP_MOST_SHARED 3

static __always_inline struct gp_live_key object_key(const struct gp_call *call, __u64 handle)
{
	return (struct gp_live_key){.pointer = handle, .instance = call->instance, .tgid = call->tgid};
}

static __always_inline void store_object(const struct gp_call *call, __u64 handle,
					 const struct gp_object *object)
{
	struct gp_live_key key = object_key(call, handle);

	if (bpf_map_update_elem(&objects, &key, object, BPF_ANY))
		count_loss(GP_LOSS_LIVE_FULL);
}

/* One more reference. */
GP_GLOBAL_FUNC int retain_object(const struct gp_call *call, __u64 handle)
{
	struct gp_object first = {.others = 1};
	struct gp_object *object;
	struct gp_live_key key;

	if (!call || !handle)
		return 0;
	key = object_key(call, handle);
	object = bpf_map_lookup_elem(&objects, &key);
	if (!object) {
		if (!bpf_map_update_elem(&objects, &key, &first, BPF_NOEXIST))
			return 0;
		/* another thread was faster, or the table is full */
		object = bpf_map_lookup_elem(&objects, &key);
	}
	if (object)
		__sync_fetch_and_add(&object->others, 1);
	else
		count_loss(GP_LOSS_LIVE_FULL);
	return 0;
}

/* The new object `handle` shares the memory of `parent`; 0 for memory that does not belong to OpenCL. */
static __always_inline void share_object(const struct gp_call *call, __u64 handle, __u64 parent, __u32 pixel)
{
	struct gp_object object = {.parent = parent, .pixel = pixel, .shares = 1};

	if (!handle)
		return;
	store_object(call, handle, &object);
	retain_object(call, parent);
}

/* Gives up a reference. Returns the object whose memory is freed by this; 0 if none is. */
GP_GLOBAL_FUNC __u64 release_object(const struct gp_call *call, __u64 handle)
{
	if (!call)
		return 0;
	for (int i = 0; i < GP_MOST_SHARED && handle; i++) {
		struct gp_live_key key = object_key(call, handle);
		struct gp_object *object = bpf_map_lookup_elem(&objects, &key);
		__u64 parent;
		bool shares;

		if (!object)
			return handle;
		/* of several threads, exactly one finds none left */
		if ((__s64)__sync_fetch_and_add(&object->others, -1) > 0)
			return 0;
		parent = object->parent;
		shares = object->shares;
		bpf_map_delete_elem(&objects, &key);
		if (!shares)
			return handle;
		handle = parent;
	}
	return 0;
}

/* Channels of an image format, by its channel order. */
static __always_inline __u32 channels_of(__u32 order)
{
	switch (order) {
	case 0x10b2: /* RG, RA, Rx */
	case 0x10b3:
	case 0x10ba:
		return 2;
	case 0x10b4: /* RGB, RGx, sRGB */
	case 0x10bb:
	case 0x10bf:
		return 3;
	case 0x10b5: /* RGBA, BGRA, ARGB, RGBx, and those of sRGB, ABGR */
	case 0x10b6:
	case 0x10b7:
	case 0x10bc:
	case 0x10c0:
	case 0x10c1:
	case 0x10c2:
	case 0x10c3:
		return 4;
	}
	return 1;
}

/* Bytes of a pixel in an image format. */
static __always_inline __u32 pixel_bytes(__u64 format)
{
	__u32 channels = channels_of((__u32)format);

	switch (format >> 32) {
	case 0x10d0: /* integers of 8 bits */
	case 0x10d2:
	case 0x10d7:
	case 0x10da:
		return channels;
	case 0x10d1: /* of 16 bits, and half */
	case 0x10d3:
	case 0x10d8:
	case 0x10db:
	case 0x10dd:
		return 2 * channels;
	case 0x10d4: /* all channels in 16 bits */
	case 0x10d5:
		return 2;
	case 0x10d6: /* in 32 bits */
	case 0x10df:
	case 0x10e0:
		return 4;
	}
	return 4 * channels;
}

static __always_inline __u32 pixel_of_new_image(const struct gp_call *call,
						const struct gp_function *function)
{
	__u64 at = 0, format;
	bool failed = false;

	argument(call, function->size_a, &at);
	format = user_word(at, 8, &failed);
	return failed ? 0 : pixel_bytes(format);
}

/* The bytes of a new image without its mip levels: of its pixels, not of what the library adds to its rows.
 */
GP_GLOBAL_FUNC __u64 image_bytes(const struct gp_call *call, const struct gp_function *function)
{
	struct gp_arg_loc side;
	const __u64 *desc;
	__u64 pixels, word = 0;
	__u32 type;

	if (!call || !function)
		return 0;
	pixels = pixel_of_new_image(call, function);
	if (function->size_rule == GP_SIZE_IMAGE_SIDES) {
		side = function->size_b;
		for (int i = 0; i < 3; i++) {
			if (i >= function->extent.dimensions)
				break;
			argument(call, side, &word);
			pixels = times(pixels, word);
			side.index++;
		}
		return pixels;
	}
	if (call->flags & GP_UNREAD_POINTEE)
		return 0;
	/* the description: type, width, height, depth, length of an array */
	desc = (const __u64 *)call->pointee.bytes;
	type = (__u32)desc[0];
	pixels = times(pixels, desc[1]);
	if (type >= 0x10f1 && type <= 0x10f3)
		pixels = times(pixels, desc[2]);
	if (type == 0x10f2)
		pixels = times(pixels, desc[3]);
	if (type == 0x10f3 || type == 0x10f5)
		pixels = times(pixels, desc[4]);
	return pixels;
}

/*
 * A memory object was made. Returns whether it shares the memory of another one, so that nothing was
 * allocated. Its handle may have been that of an object whose end was not observed.
 */
GP_GLOBAL_FUNC int is_shared_object(const struct gp_call *call, const struct gp_function *function)
{
	struct gp_object image = {};
	struct gp_live_key key;
	__u64 parent;

	if (!call || !function)
		return 0;
	if (function->size_rule < GP_SIZE_IMAGE) {
		key = object_key(call, call->result);
		bpf_map_delete_elem(&objects, &key);
		return 0;
	}
	image.pixel = pixel_of_new_image(call, function);
	parent = *(const __u64 *)(call->pointee.bytes + 64);
	if (function->size_rule == GP_SIZE_IMAGE && !(call->flags & GP_UNREAD_POINTEE) && parent) {
		share_object(call, call->result, parent, image.pixel);
		return 1;
	}
	store_object(call, call->result, &image);
	return 0;
}

/* The bytes of a region that is given in pixels. */
GP_GLOBAL_FUNC __u64 times_pixel(const struct gp_call *call, const struct gp_function *function, __u64 pixels)
{
	struct gp_object *object;
	struct gp_live_key key;
	__u64 image = 0;

	if (!call || !function || !argument(call, function->pointer, &image))
		return pixels;
	key = object_key(call, image);
	object = bpf_map_lookup_elem(&objects, &key);
	if (object && object->pixel)
		return times(pixels, object->pixel);
	/* the image was made before its functions were probed */
	count_loss(GP_LOSS_UNREAD_GPU_OP);
	return 0;
}

#endif
