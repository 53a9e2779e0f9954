/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Physical memory by handle. It is live from its creation until both the reference count and the mapping
 * count are zero.
 */
#ifndef GP_PHYSICAL_MEMORY_BPF_H
#define GP_PHYSICAL_MEMORY_BPF_H

#include "live_allocations.bpf.h"

#define GP_REFERENCE 1ULL
#define GP_MAPPING (1ULL << 32)
/* the granularity in which every GPU allocates and maps physical memory */
#define GP_GRANULARITY (2ULL << 20)
/* steps of that size over an address range: a terabyte */
#define GP_MOST_MAPPED (1 << 19)
/* offsets in struct CUmemAllocationProp */
#define GP_PROP_LOCATION_TYPE 8
#define GP_PROP_LOCATION_ID 12
#define GP_LOCATION_DEVICE 1

static __always_inline struct gp_live_key handle_key(struct gp_process_key process, __u64 handle)
{
	return (struct gp_live_key){.pointer = handle, .instance = process.instance, .tgid = process.tgid};
}

/*
 * Adds the bytes of one allocation or, if `change` is negative, subtracts them. `where` is
 * process_and_site(); `call` is the call that allocates, or NULL. Returns the site to store.
 */
GP_GLOBAL_FUNC __u32 change_physical(struct gp_call *call, __u64 instance, __u64 where, __u32 device,
				     __s64 change)
{
	__s64 sign = change < 0 ? -1 : 1;
	__u64 bytes = change < 0 ? -change : change, live_bytes;
	struct gp_process_key process = {.instance = instance, .tgid = where >> 32};
	struct gp_memory *memory = memory_of(process);
	struct gp_context *row = context_of(known_context(process, GP_OF_DEVICE(device)));

	/*
	 * if there was no room for its row, which is counted as a loss, the memory was never added and is
	 * not subtracted
	 */
	if (!memory || !row || (sign < 0 && !row->live_allocations[GP_SPACE_VMM]))
		return GP_NO_SITE_ROW;
	if (device != GP_NO_DEVICE)
		row->device = device + 1;
	live_bytes = change_live_bytes(memory, row, GP_SPACE_VMM, bytes, sign);
	if (sign > 0) {
		__sync_fetch_and_add(&memory->allocations, 1);
		__sync_fetch_and_add(&memory->allocated_bytes, bytes);
		if (call)
			annotate_live(call, memory, live_bytes);
		else
			raise_peak(memory, live_bytes);
	} else {
		__sync_fetch_and_add(&memory->frees, 1);
		__sync_fetch_and_add(&memory->freed_bytes, bytes);
	}
	return change_site(instance, GP_OF_DEVICE(device), where, bytes,
			   (sign > 0 ? GP_SITE_NEW : GP_SITE_FREED) | GP_SPACE_VMM << GP_SPACE_SHIFT);
}

/* The memory that a call ended. */
struct released_memory {
	__u64 bytes;
	__u64 allocations;
	__u32 device;
	/* the site of the last allocation that ended */
	__u32 site;
};

/* Drops references or mappings. Dropping the last one ends the memory. */
static __always_inline void drop_uses(struct gp_process_key process, __u64 id, __u64 uses,
				      struct released_memory *ended)
{
	struct gp_physical *memory = bpf_map_lookup_elem(&physical, &id);
	__u64 bytes;
	__u32 device, site;

	if (!memory || __sync_fetch_and_add(&memory->uses, -uses) != uses)
		return;
	bytes = memory->bytes;
	device = memory->device;
	site = memory->site;
	if (bpf_map_delete_elem(&physical, &id) || !bytes)
		return;
	change_physical(NULL, process.instance, process_and_site(process.tgid, site), device, -bytes);
	ended->bytes += bytes;
	ended->allocations++;
	ended->device = device;
	ended->site = site;
}

static __always_inline void annotate_release(struct gp_call *call, const struct released_memory *ended)
{
	call->bytes = ended->bytes;
	if (ended->bytes) {
		call->detail.released = (struct gp_released){.allocations = ended->allocations};
		call->device = ended->device;
		call->site = ended->site;
		call->effect = GP_EFFECT_PHYSICAL;
	}
}

/* The GPU in the properties of the allocation, which need not be the current one. */
static __always_inline __u32 device_of_prop(const struct gp_call *call)
{
	__u32 type = *(const __u32 *)(call->pointee.bytes + GP_PROP_LOCATION_TYPE);
	__u32 id = *(const __u32 *)(call->pointee.bytes + GP_PROP_LOCATION_ID);

	if (call->flags & GP_UNREAD_POINTEE || type != GP_LOCATION_DEVICE || id >= GP_NO_DEVICE)
		return GP_NO_DEVICE;
	return id;
}

/*
 * Adds new physical memory. It did not exist before this call, so no other thread drops it in the meantime.
 */
static __always_inline void add_physical(struct gp_call *call, __u64 id, __u32 device, __u64 bytes)
{
	struct gp_physical *memory = bpf_map_lookup_elem(&physical, &id);
	__u32 site = memory ? memory->site : 0;

	site = change_physical(call, call->instance, process_and_site(call->tgid, site), device, bytes);
	if (memory)
		memory->site = site;
	call->site = site;
}

/*
 * Memory was created, or imported from another process. The bytes of imported memory belong to the
 * exporting process until the memory is mapped here.
 */
static __always_inline void vmm_create(struct gp_call *call, bool imported)
{
	struct gp_physical new = {.since_ns = call->start_ns + call->duration_ns,
				  .uses = GP_REFERENCE,
				  .handle = call->out[0],
				  .instance = call->instance,
				  .tgid = call->tgid};
	struct gp_live_key key = handle_key(process_of(call), call->out[0]);
	__u64 id = call->id;

	if (call->flags & GP_UNREAD_OUT) {
		count_loss(GP_LOSS_UNREAD_ALLOCATION);
		return;
	}
	call->bytes = plausible(call->bytes);
	new.bytes = imported ? 0 : call->bytes;
	new.device = imported ? GP_NO_DEVICE : device_of_prop(call);
	new.site = call->site;
	if (bpf_map_update_elem(&physical, &id, &new, BPF_NOEXIST)) {
		count_loss(GP_LOSS_LIVE_FULL);
		return;
	}
	if (bpf_map_update_elem(&handles, &key, &id, BPF_ANY)) {
		bpf_map_delete_elem(&physical, &id);
		count_loss(GP_LOSS_LIVE_FULL);
		return;
	}
	call->pointer = call->out[0];
	call->device = new.device;
	if (!imported)
		add_physical(call, id, new.device, new.bytes);
}

struct searching {
	struct gp_process_key process;
	__u64 address;
	__u64 from;
	__u64 found;
};

/* Finds the mapping that an address is in, searching downwards. */
static long find_mapping(__u64 step, struct searching *searching)
{
	struct gp_live_key at = handle_key(searching->process, searching->from);
	struct gp_mapped *mapping = bpf_map_lookup_elem(&mapped, &at);

	if (mapping) {
		if (searching->address - searching->from < mapping->bytes)
			searching->found = mapping->physical;
		return 1;
	}
	searching->from -= GP_GRANULARITY;
	return 0;
}

/* Adds a reference to the memory mapped at an address. The handle is the one that it has, or had. */
static __always_inline void vmm_retain(struct gp_call *call, const struct gp_function *function)
{
	struct gp_live_key key = handle_key(process_of(call), call->out[0]);
	__u64 *known = bpf_map_lookup_elem(&handles, &key);
	struct gp_physical *memory;
	__u64 id;

	if (known) {
		id = *known;
	} else {
		/* its last handle was released while it was mapped */
		struct searching searching = {.process = process_of(call)};

		if (!argument(call, function->pointer, &searching.address))
			return;
		searching.from = searching.address & ~(GP_GRANULARITY - 1);
		bpf_loop(GP_MOST_MAPPED, find_mapping, &searching, 0);
		id = searching.found;
		if (!id || bpf_map_update_elem(&handles, &key, &id, BPF_ANY))
			return;
	}
	memory = bpf_map_lookup_elem(&physical, &id);
	if (memory)
		__sync_fetch_and_add(&memory->uses, GP_REFERENCE);
}

/*
 * A reference is dropped at the entry: after the last release the CUDA driver may give the handle to
 * another thread before this call returns.
 */
GP_OWN_FRAME void begin_release(struct gp_call *call, const struct gp_function *function)
{
	struct gp_physical *memory;
	struct gp_live_key key;
	__u64 *known, id;

	if (!argument(call, function->pointer, &call->pointer))
		return;
	key = handle_key(process_of(call), call->pointer);
	known = bpf_map_lookup_elem(&handles, &key);
	if (!known)
		return;
	/* its number, needed if the call fails */
	id = *known;
	memory = bpf_map_lookup_elem(&physical, &id);
	if (!memory)
		return;
	/* the handle ends with its last reference; the memory stays as long as it is mapped */
	if ((__u32)__sync_fetch_and_add(&memory->uses, -GP_REFERENCE) == 1)
		bpf_map_delete_elem(&handles, &key);
	call->effect = GP_EFFECT_PHYSICAL;
	call->detail.released.physical = id;
}

/* A release has returned: restores the reference if it failed, and ends the memory if nothing uses it. */
GP_OWN_FRAME void end_release(struct gp_call *call, bool failed)
{
	struct gp_live_key key = handle_key(process_of(call), call->pointer);
	struct gp_physical *memory;
	__u64 id = call->detail.released.physical;

	if (call->effect != GP_EFFECT_PHYSICAL)
		return;
	call->effect = GP_EFFECT_NONE;
	memory = bpf_map_lookup_elem(&physical, &id);
	if (!memory)
		return;
	if (failed) {
		__sync_fetch_and_add(&memory->uses, GP_REFERENCE);
		bpf_map_update_elem(&handles, &key, &id, BPF_NOEXIST);
	} else if (!memory->uses) {
		/*
		 * nothing uses it any more. If two threads see this, the one that deletes the entry
		 * accounts for it.
		 */
		struct released_memory ended = {
		    .bytes = memory->bytes, .allocations = 1, .device = memory->device, .site = memory->site};

		if (bpf_map_delete_elem(&physical, &id))
			return;
		if (ended.bytes)
			change_physical(NULL, call->instance, process_and_site(call->tgid, ended.site),
					ended.device, -ended.bytes);
		annotate_release(call, &ended);
	}
}

/* Physical memory was mapped. Imported memory is counted from its first mapping on. */
static __always_inline void vmm_map(struct gp_call *call, const struct gp_function *function)
{
	struct gp_live_key at, key;
	struct gp_mapped new = {};
	struct gp_physical *memory;
	__u64 handle = 0, address = 0, size = 0, *known;

	if (!argument(call, function->cuda_kernel, &handle) || !argument(call, function->pointer, &address) ||
	    !argument(call, function->size_a, &size))
		return;
	key = handle_key(process_of(call), handle);
	known = bpf_map_lookup_elem(&handles, &key);
	memory = known ? bpf_map_lookup_elem(&physical, known) : NULL;
	if (!memory)
		return;
	new.physical = *known;
	new.bytes = size;
	at = handle_key(process_of(call), address);
	if (bpf_map_update_elem(&mapped, &at, &new, BPF_ANY)) {
		count_loss(GP_LOSS_LIVE_FULL);
		return;
	}
	__sync_fetch_and_add(&memory->uses, GP_MAPPING);
	call->bytes = 0;
	/* imported memory has a size from now on */
	size = plausible(size);
	if (size && !memory->bytes && !__sync_val_compare_and_swap(&memory->bytes, 0, size)) {
		add_physical(call, new.physical, memory->device, size);
		call->bytes = size;
		call->device = memory->device;
	}
}

struct unmapping {
	struct gp_process_key process;
	__u64 from;
	__u64 to;
	struct released_memory ended;
};

static long unmap_one(__u64 step, struct unmapping *unmapping)
{
	struct gp_live_key at = handle_key(unmapping->process, unmapping->from);
	struct gp_mapped *mapping = bpf_map_lookup_elem(&mapped, &at);
	__u64 id, bytes;

	if (!mapping) {
		unmapping->from += GP_GRANULARITY;
		return unmapping->from >= unmapping->to;
	}
	id = mapping->physical;
	bytes = mapping->bytes;
	if (bpf_map_delete_elem(&mapped, &at))
		return 1;
	drop_uses(unmapping->process, id, GP_MAPPING, &unmapping->ended);
	unmapping->from += bytes;
	return unmapping->from >= unmapping->to;
}

/* One call may remove several adjacent mappings. */
GP_OWN_FRAME void vmm_unmap(struct gp_call *call, const struct gp_function *function)
{
	struct unmapping unmapping = {.process = process_of(call)};
	__u64 size = 0;

	if (!argument(call, function->pointer, &unmapping.from) || !argument(call, function->size_a, &size))
		return;
	unmapping.to = unmapping.from + size;
	bpf_loop(GP_MOST_MAPPED, unmap_one, &unmapping, 0);
	annotate_release(call, &unmapping.ended);
}

#endif
