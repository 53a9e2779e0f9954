/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of the wire: the turns in which sampled functions are observed. */
#ifndef GP_TURN_H
#define GP_TURN_H

/*
 * The turn of the sampled functions (GP_SAMPLED): their calls that begin in it are observed, and each stands
 * for `weight` calls.
 */
struct gp_turn {
	/* on the clock of bpf_ktime_get_ns() */
	__u64 from_ns;
	__u64 until_ns;
	/* from 1 on; it wraps around */
	__u64 number;
	/* calls that began in it and have not returned; too low if calls of an earlier turn have returned */
	__s64 open;
	__u64 weight;
};

#endif
