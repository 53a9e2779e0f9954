/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Shared by the BPF and the user-space part of two_events. */
#ifndef TWO_EVENTS_H
#define TWO_EVENTS_H

#define NAME_BYTES 16
#define DETAIL_BYTES 64

/* A call sends one at entry and one at return. */
struct event {
	unsigned int pid;
	unsigned int function;
	int is_return;
	int result;
	unsigned long long at_ns;
	unsigned long long arguments[3];
	char program[NAME_BYTES];
	char detail[DETAIL_BYTES];
};

#endif
