/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Tables whose rows are addressed by number, so that threads can cache the number. A table consists of an
 * array of rows, a hash from keys to row numbers, a stack of the row numbers that were returned, and a
 * count of the rows ever used.
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

/*
 * Takes a free row: one that was returned, or else the next one that was never used. Returns 0 if there is
 * none.
 */
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

/*
 * Stores the row number of a key. Returns the number that the key has afterwards: if two threads do this at
 * once, one wins and both use its row.
 */
static __always_inline __u32 put_row(void *numbers, void *unused, const void *key, __u32 row)
{
	__u32 *known;

	if (row && !bpf_map_update_elem(numbers, key, &row, BPF_NOEXIST))
		return row;
	give_back_row(unused, row);
	known = bpf_map_lookup_elem(numbers, key);
	return known ? *known : 0;
}

/*
 * The row number of a key, which gets a row if it has none. If there is no room it returns 0 and counts the
 * loss.
 */
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
