/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Tables of rows that are addressed by number, so that a thread can remember the number: an array of rows, a
 * hash from keys to numbers, a queue of the numbers that were given back, and how many were ever used.
 */
#ifndef GP_TABLE_ROWS_BPF_H
#define GP_TABLE_ROWS_BPF_H

#include "maps.bpf.h"

static __always_inline void count_losses(__u32 cause, __u64 times)
{
	__u64 *count = bpf_map_lookup_elem(&losses, &cause);

	if (count)
		__sync_fetch_and_add(count, times);
}

static __always_inline void count_loss(__u32 cause)
{
	count_losses(cause, 1);
}

/* The number of a row that nobody has: one that was given back, or the next that was never used; 0 where
 * there is none. */
static __always_inline __u32 take_row(void *rows, void *unused, __u32 *used)
{
	__u32 row = 0;

	if (!bpf_map_pop_elem(unused, &row))
		return row;
	row = __sync_fetch_and_add(used, 1) + 1;
	if (bpf_map_lookup_elem(rows, &row))
		return row;
	__sync_fetch_and_add(used, -1);
	return 0;
}

static __always_inline void give_back_row(void *unused, __u32 row)
{
	if (row)
		bpf_map_push_elem(unused, &row, BPF_ANY);
}

/* Puts a row into the table. The number of the row that the key has then: of two threads that do this at
 * once, one wins. */
static __always_inline __u32 put_row(void *numbers, void *unused, const void *key, __u32 row)
{
	__u32 *known;

	if (row && !bpf_map_update_elem(numbers, key, &row, BPF_NOEXIST))
		return row;
	give_back_row(unused, row);
	known = bpf_map_lookup_elem(numbers, key);
	return known ? *known : 0;
}

/* The number of the row of a key, which gets one where it has none; 0 where there is no room, which is
 * counted. */
static __always_inline __u32 row_of(void *numbers, void *rows, void *unused, __u32 *used, const void *key,
				    __u32 loss)
{
	__u32 *known = bpf_map_lookup_elem(numbers, key), row;

	if (known)
		return *known;
	row = put_row(numbers, unused, key, take_row(rows, unused, used));
	if (!row)
		count_loss(loss);
	return row;
}

#endif
