/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * With --lossless, calls wait before they begin while the ring is half full. The other half has room for
 * the records of all calls that are open: a thread sends few records for each time that it passes here, and
 * stacks are short if the ring is that full.
 *
 * The program that waits is a separate one, because only a program that may sleep lets other tasks run, and
 * such a program cannot use all maps that the others need.
 */
#ifndef GP_WAIT_FOR_ROOM_BPF_H
#define GP_WAIT_FOR_ROOM_BPF_H

#include "process_lifecycle.bpf.h"

/*
 * how long a call waits while nothing is read. Then its record may be lost, and is counted. Removing probes
 * may have to wait this long.
 */
#define GP_WAIT_UNREAD_NS 1000000000ULL

/*
 * How far the ring had been read when a call gave up waiting. Others do not wait before it is read further:
 * the reader may have been killed.
 */
volatile __u64 gp_given_up_at = ~0ULL;

/* A wait for room in the ring. */
struct room_wait {
	__u64 until_ns;
	/* how far the ring has been read */
	__u64 position;
	/* a readable address of the process */
	__u64 address;
};

static __always_inline bool is_half_full(void)
{
	return bpf_ringbuf_query(&calls, BPF_RB_AVAIL_DATA) >=
	       bpf_ringbuf_query(&calls, BPF_RB_RING_SIZE) / 2;
}

/* One step of a wait. Returns 1 when the wait is over. */
static long wait_for_room_step(__u64 step, struct room_wait *wait)
{
	__u64 position, now;
	__u32 ignored;

	/* see wait_sleeping_step() */
	bpf_copy_from_user_task(&ignored, sizeof(ignored), (void *)wait->address, bpf_get_current_task_btf(),
				0);
	if (!is_half_full() || gp_stop_ns)
		return 1;
	position = bpf_ringbuf_query(&calls, BPF_RB_CONS_POS);
	now = bpf_ktime_get_ns();
	if (position != wait->position) {
		wait->position = position;
		wait->until_ns = now + GP_WAIT_UNREAD_NS;
	} else if (now > wait->until_ns) {
		gp_given_up_at = position;
	}
	return gp_given_up_at == position;
}

static __always_inline void wait_for_room(__u64 address)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct room_wait wait = {.address = address};

	if (!is_half_full() || tgid == gp_config.own_tgid || !is_target(tgid))
		return;
	wait.position = bpf_ringbuf_query(&calls, BPF_RB_CONS_POS);
	wait.until_ns = bpf_ktime_get_ns() + GP_WAIT_UNREAD_NS;
	bpf_loop(GP_MOST_STEPS, wait_for_room_step, &wait, 0);
}

#endif
