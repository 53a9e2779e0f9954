/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* What the interposing library, its reader and the measuring program share. */
#ifndef INTERPOSER_H
#define INTERPOSER_H

#include <stdint.h>

enum function {
#define FUNCTION(name, registers, words) FUNCTION_##name,
#include "functions.def"
#undef FUNCTION
	FUNCTION_COUNT,
};

/* powers of two of the duration */
#define BUCKETS 40
/* later threads of a process are not counted; a product would count them together */
#define MOST_THREADS 256
#define MAGIC 0x65626f7270757067ULL
#define COUNTERS_PATH "/dev/shm/gpuprobe-counters.%d"

struct function_counters {
	uint64_t calls;
	uint64_t failures;
	uint64_t duration;
	uint64_t histogram[BUCKETS];
};

/* Only its thread writes it, so no addition needs to be locked. */
struct thread_counters {
	uint32_t pid;
	uint32_t tid;
	struct function_counters functions[FUNCTION_COUNT];
} __attribute__((aligned(64)));

/* A file in memory that the process creates and a reader maps. */
struct counters {
	uint64_t magic;
	uint32_t threads_used;
	struct thread_counters threads[MOST_THREADS];
};

/* What a wrapper does besides calling the function. */
enum variant {
	/* counts calls and failures */
	VARIANT_COUNT,
	/* and their time, by the processor's time stamp counter */
	VARIANT_TSC,
	/* and their time, by clock_gettime */
	VARIANT_CLOCK,
	/* passes two places that probes can be attached to; see trampolines.S */
	VARIANT_TRAMPOLINE,
	/* reads the TSC and passes one such place after the call, with what is known of it; one for each
	   measurement */
	VARIANT_REPORT_EMPTY,
	VARIANT_REPORT_COUNTED,
	VARIANT_COUNT_OF,
};

typedef long (*any_function)(void);

/* The wrapper of a function; NULL if it has none. */
any_function interposer_wrapper(enum variant variant, const char *name);
/* Sets what all wrappers of a function call. */
void interposer_set_original(const char *name, any_function original);

#endif
