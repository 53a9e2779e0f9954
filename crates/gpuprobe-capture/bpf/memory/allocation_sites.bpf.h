/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Where allocations come from, and other calls if that is asked for. User space unwinds the stack of a call
 * once and reports at which positions its return addresses are. From then on a few comparisons show that
 * another call has the same stack. A stack that is not known gets a new site number and is sent to user
 * space; memory counted under that number keeps it. In a Python program the native stack of many lines is
 * the same, so the Python frames are part of the key of the first comparison.
 */
#ifndef GP_ALLOCATION_SITES_BPF_H
#define GP_ALLOCATION_SITES_BPF_H

#include "live_totals.bpf.h"
#include "../core/stack_copy.bpf.h"

/* What happens to memory of a site. */
enum site_change {
	GP_SITE_NEW,
	GP_SITE_FREED,
	/* its free has failed */
	GP_SITE_BACK,
};

/* above a site_change: the gp_space of the memory */
#define GP_SPACE_SHIFT 8

/* A process and a site in one word: a BPF function has at most five arguments. */
static __always_inline __u64 process_and_site(__u32 tgid, __u32 site)
{
	return (__u64)tgid << 32 | site;
}

/*
 * Changes the counters of a site. `how` is a site_change and, above it, the kind of memory. Returns the site
 * to store with the memory: GP_NO_SITE_ROW if there was no room for a row.
 */
GP_GLOBAL_FUNC __u32 change_site(__u64 instance, __u64 context, __u64 where, __u64 bytes, __u32 how)
{
	__u32 change = how & ((1 << GP_SPACE_SHIFT) - 1);
	struct gp_site first = {.live_bytes = bytes,
				.live_allocations = 1,
				.allocations = change == GP_SITE_NEW,
				.allocated_bytes = change == GP_SITE_NEW ? bytes : 0,
				.space = how >> GP_SPACE_SHIFT};
	struct gp_site_key key = {
	    .instance = instance, .context = context, .tgid = where >> 32, .site = (__u32)where};
	__s64 sign = change == GP_SITE_FREED ? -1 : 1;
	struct gp_site *row;

	if (!gp_config.sites || key.site == GP_NO_SITE_ROW)
		return key.site;
	row = bpf_map_lookup_elem(&sites, &key);
	if (!row) {
		if (change == GP_SITE_FREED)
			return key.site;
		/*
		 * inserted with its counts, so that user space does not take an empty row for one that can
		 * be removed
		 */
		if (!bpf_map_update_elem(&sites, &key, &first, BPF_NOEXIST))
			return key.site;
		row = bpf_map_lookup_elem(&sites, &key);
		if (!row) {
			count_loss(GP_LOSS_SITES_FULL);
			return GP_NO_SITE_ROW;
		}
	}
	__sync_fetch_and_add(&row->live_bytes, sign * bytes);
	__sync_fetch_and_add(&row->live_allocations, sign);
	if (change == GP_SITE_NEW) {
		__sync_fetch_and_add(&row->allocations, 1);
		__sync_fetch_and_add(&row->allocated_bytes, bytes);
	}
	return key.site;
}

/* The same for the memory of a call. If sites are off, not even the function call is made. */
static __always_inline __u32 change_site_of_call(const struct gp_call *call, __u64 context, __u32 site,
						 __u32 change)
{
	if (!gp_config.sites)
		return site;
	return change_site(call->instance, context, process_and_site(call->tgid, site), call->bytes,
			   change | (__u32)call->space << GP_SPACE_SHIFT);
}

/* Whether the effect of a call has a site. */
static __always_inline bool has_site(const struct gp_call *call, const struct gp_function *function)
{
	return (function->action == GP_ALLOC && !(call->flags & GP_NESTED_ACTION)) ||
	       function->memory_op == GP_VMM_CREATE || function->memory_op == GP_VMM_IMPORT;
}

/* Begins a call whose site is wanted. The call inside it that does the same is not made by the program. */
static __always_inline void want_site(struct gp_call *call)
{
	if (!(call->actions & GP_OPEN_SITE))
		call->flags |= GP_WANTS_SITE;
	call->actions |= GP_OPEN_SITE;
}

/*
 * Whether a call that has returned gets a site. A failure gets one too, if it is not inside another call; but
 * a free, or another call that may end memory, has the site of that memory.
 */
static __always_inline bool gets_site(const struct gp_call *call, const struct gp_function *function,
				      bool failed)
{
	if (gp_config.sites && !failed && has_site(call, function))
		return true;
	if (!gp_config.call_sites)
		return false;
	return call->flags & GP_WANTS_SITE || (failed && function->flags & GP_STREAM && !call->parent &&
					       function->action != GP_FREE && !function->memory_op);
}

struct walk {
	__u64 stack_pointer;
	__u64 trampoline;
	__u64 word;
	__u32 distance;
	__u32 node;
	__u32 site;
	__u32 reserved;
};

/* A word of the stack. Where a return probe has put the return trampoline, the real return address. */
static __always_inline __u64 word_on_stack(const struct walk *walk, __u32 distance)
{
	__u64 slot = walk->stack_pointer + distance, word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)slot);
	word &= GP_ADDRESS_BITS;
	return word && word == walk->trampoline ? replaced_at(slot) : word;
}

static long walk_step(__u64 step, struct walk *walk)
{
	__u32 index = walk->node;
	struct gp_site_node *node = bpf_map_lookup_elem(&site_nodes, &index);

	if (!index || !node)
		return 1;
	if (node->distance != walk->distance) {
		walk->distance = node->distance;
		walk->word = word_on_stack(walk, node->distance) * GP_SCRAMBLE;
	}
	if (walk->word == node->address) {
		walk->site = node->site;
		walk->node = node->same;
	} else {
		walk->site = 0;
		walk->node = walk->word < node->address ? node->lower : node->higher;
	}
	return !walk->node;
}

/*
 * Sends an unknown stack, under a new number that is its site. The call has just been popped, so it is the
 * first slot above the open calls.
 */
GP_GLOBAL_FUNC __u32 new_site(bpf_user_pt_regs_t *context)
{
	struct pt_regs *ctx = (struct pt_regs *)context;
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	struct gp_copied_stack *copy;
	struct gp_short_stack *brief;
	struct gp_part_of_stack *part;
	struct gp_site_root_key key = {};
	struct gp_site_root *wanted;
	struct gp_call *call;
	__u64 waiting, room = bpf_ringbuf_query(&calls, BPF_RB_RING_SIZE), python;
	__u32 site, has_python;

	if (!thread)
		return 0;
	call = open_call(thread, thread->depth);
	python = thread->python.hash;
	key.instance = call->instance;
	key.tgid = call->tgid;
	wanted = bpf_map_lookup_elem(&site_roots, &key);
	if (wanted && wanted->node == GP_NO_STACKS) {
		count_loss(GP_LOSS_SITES_FULL);
		return 0;
	}
	waiting = bpf_ringbuf_query(&calls, BPF_RB_AVAIL_DATA);
	/* there may be very many launches, and their records are worth more than their stacks */
	if (call->flags & GP_WANTS_SITE && waiting > room / 4 * 3)
		goto lost;
	site = __sync_fetch_and_add(&gp_next_site, 1);
	has_python = send_python(site, GP_RECORD_SITE);
	/*
	 * when many arrive at once, most have the same stack as others among them, so a shorter copy is
	 * enough
	 */
	if (waiting > room / 2) {
		part = bpf_ringbuf_reserve(&calls, sizeof(*part), 0);
		if (!part)
			goto lost;
		describe_stack(&part->head, call, ctx);
		copy_part(part);
		set_site(&part->head, site, python, has_python);
		bpf_ringbuf_submit(part, BPF_RB_FORCE_WAKEUP);
	} else if (waiting < room / 4) {
		copy = bpf_ringbuf_reserve(&calls, sizeof(*copy), 0);
		if (!copy)
			goto lost;
		describe_stack(&copy->head, call, ctx);
		copy_pages(&copy->head, copy->bytes, GP_STACK_PAGES);
		set_site(&copy->head, site, python, has_python);
		bpf_ringbuf_submit(copy, BPF_RB_FORCE_WAKEUP);
	} else {
		brief = bpf_ringbuf_reserve(&calls, sizeof(*brief), 0);
		if (!brief)
			goto lost;
		describe_stack(&brief->head, call, ctx);
		copy_pages(&brief->head, brief->bytes, GP_FEW_STACK_PAGES);
		set_site(&brief->head, site, python, has_python);
		bpf_ringbuf_submit(brief, BPF_RB_FORCE_WAKEUP);
	}
	return site;
lost:
	count_loss(GP_LOSS_LOST_STACK);
	return 0;
}

/* The site of a call. */
GP_OWN_FRAME __u32 find_site(struct gp_thread *thread, struct gp_call *call, struct pt_regs *ctx)
{
	struct walk walk = {.stack_pointer = call->stack_pointer};
	struct gp_site_root_key key = {
	    .instance = call->instance, .address = call->return_address, .tgid = call->tgid};
	struct gp_site_root *root;

	if (!key.address)
		return 0;
	key.python = walk_python(call->tgid, call->stack_pointer);
	root = bpf_map_lookup_elem(&site_roots, &key);
	if (root) {
		if (!thread->trampoline)
			thread->trampoline = trampoline_of(bpf_get_current_task_btf());
		walk.trampoline = thread->trampoline;
		walk.node = root->node;
		walk.site = root->site;
		if (walk.node)
			bpf_loop(GP_SITE_STEPS, walk_step, &walk, 0);
		if (walk.site && !walk.node)
			return walk.site;
	}
	return new_site((bpf_user_pt_regs_t *)ctx);
}

#endif
