/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The prototype of counting inside the process: a library that is loaded before all others (LD_PRELOAD) and
 * gives the program wrappers instead of the functions of the CUDA driver. A program gets the address of a
 * function in three ways, and all three are interposed: the dynamic linker binds a direct call to the wrapper
 * of the same name; dlsym() is this library's; and so is cuGetProcAddress_v2, through either of the two.
 * cuGetExportTable is passed on untouched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
#include "interposer.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define TRAMPOLINE_OF(name) interposed_enter_##name

typedef int (*get_proc_address)(const char *, void **, int, uint64_t, int *);
typedef void *(*find_symbol)(void *, const char *);

/* trampolines.S jumps to it, and keeps the return address of its caller: RTLD_NEXT depends on it */
HIDDEN find_symbol real_dlsym;
/* trampolines.S reads them as well */
#define FUNCTION(name, registers, words)                                                                     \
	HIDDEN any_function original_##name;                                                                 \
	long TRAMPOLINE_OF(name)(void);
#include "functions.def"
#undef FUNCTION

static any_function *const originals[] = {
#define FUNCTION(name, registers, words) &original_##name,
#include "functions.def"
#undef FUNCTION
};
static const char *const names[] = {
#define FUNCTION(name, registers, words) #name,
#include "functions.def"
#undef FUNCTION
};

static struct counters *counters;
static struct thread_counters untracked;
static enum variant chosen = VARIANT_COUNT;
/* initial-exec: no call, and no allocation at a thread's first use */
static __thread struct thread_counters *own __attribute__((tls_model("initial-exec")));

static struct thread_counters *take_counters(void)
{
	uint32_t index =
	    counters ? __atomic_fetch_add(&counters->threads_used, 1, __ATOMIC_RELAXED) : MOST_THREADS;

	if (index >= MOST_THREADS)
		return own = &untracked;
	own = &counters->threads[index];
	own->pid = getpid();
	own->tid = gettid();
	return own;
}

/* One instruction, so that a signal handler that calls the same function cannot lose an addition. */
static inline void add(uint64_t *word, uint64_t value)
{
	__asm__("addq %1, %0" : "+m"(*word) : "er"(value) : "cc");
}

static inline uint64_t now(enum variant variant)
{
	struct timespec time;

	if (variant == VARIANT_TSC)
		return __rdtsc();
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static inline void count(enum function function, enum variant variant, long result, uint64_t begin)
{
	struct thread_counters *thread = own ? own : take_counters();
	struct function_counters *row = &thread->functions[function];

	add(&row->calls, 1);
	if ((int)result)
		add(&row->failures, 1);
	if (variant != VARIANT_COUNT) {
		uint64_t duration = now(variant) - begin;
		unsigned int bucket = 63 - __builtin_clzll(duration | 1);

		add(&row->duration, duration);
		add(&row->histogram[bucket < BUCKETS ? bucket : BUCKETS - 1], 1);
	}
}

/* Arguments are passed on as whole registers, whatever their type; none of these functions takes a float. */
#define PARAMETERS_0 void
#define PARAMETERS_1 long a
#define PARAMETERS_2 PARAMETERS_1, long b
#define PARAMETERS_3 PARAMETERS_2, long c
#define PARAMETERS_6 PARAMETERS_3, long d, long e, long f
#define PARAMETERS_11 PARAMETERS_6, long g, long h, long i, long j, long k
#define ARGUMENTS_0
#define ARGUMENTS_1 a
#define ARGUMENTS_2 a, b
#define ARGUMENTS_3 a, b, c
#define ARGUMENTS_6 a, b, c, d, e, f
#define ARGUMENTS_11 ARGUMENTS_6, g, h, i, j, k
#define WRAPPER(name, arguments, variant)                                                                    \
	static long variant##_##name(PARAMETERS_##arguments)                                                 \
	{                                                                                                    \
		uint64_t begin = variant == VARIANT_COUNT ? 0 : now(variant);                                \
		long result = ((long (*)(PARAMETERS_##arguments))original_##name)(ARGUMENTS_##arguments);    \
		count(FUNCTION_##name, variant, result, begin);                                              \
		return result;                                                                               \
	}
/*
 * trampolines.S: functions that do nothing, and begin with a 5-byte nop. A probe finds what is always needed
 * in registers, and can read the arguments of the call from memory.
 */
#define REPORT_PARAMETERS                                                                                    \
	enum function function, long result, uint64_t begin, uint64_t end, const long *arguments
void report_empty(REPORT_PARAMETERS);
void report_counted(REPORT_PARAMETERS);

#define REPORTER(name, total, report)                                                                        \
	static long report##_##name(PARAMETERS_##total)                                                      \
	{                                                                                                    \
		const long arguments[] = {ARGUMENTS_##total};                                                \
		uint64_t begin = __rdtsc();                                                                  \
		long result = ((long (*)(PARAMETERS_##total))original_##name)(ARGUMENTS_##total);            \
                                                                                                             \
		report(FUNCTION_##name, result, begin, __rdtsc(), arguments);                                \
		return result;                                                                               \
	}
#define WRAPPERS(name, arguments)                                                                            \
	REPORTER(name, arguments, report_empty)                                                              \
	REPORTER(name, arguments, report_counted)                                                            \
	WRAPPER(name, arguments, VARIANT_COUNT)                                                              \
	WRAPPER(name, arguments, VARIANT_TSC)                                                                \
	WRAPPER(name, arguments, VARIANT_CLOCK)
#define TOTAL_0_0 0
#define TOTAL_1_0 1
#define TOTAL_2_0 2
#define TOTAL_3_0 3
#define TOTAL_6_5 11
#define EXPANDED(name, arguments) WRAPPERS(name, arguments)
#define FUNCTION(name, registers, words) EXPANDED(name, TOTAL_##registers##_##words)
#include "functions.def"
#undef FUNCTION

static const any_function wrappers[FUNCTION_COUNT][VARIANT_COUNT_OF] = {
#define FUNCTION(name, registers, words)                                                                     \
	{(any_function)VARIANT_COUNT_##name, (any_function)VARIANT_TSC_##name,                               \
	 (any_function)VARIANT_CLOCK_##name, (any_function)TRAMPOLINE_OF(name),                              \
	 (any_function)report_empty_##name,  (any_function)report_counted_##name},
#include "functions.def"
#undef FUNCTION
};

static int number_of(const char *name)
{
	for (int i = 0; i < FUNCTION_COUNT; i++) {
		if (!strcmp(names[i], name))
			return i;
	}
	return -1;
}

any_function interposer_wrapper(enum variant variant, const char *name)
{
	int number = number_of(name);

	return number < 0 ? NULL : wrappers[number][variant];
}

void interposer_set_original(const char *name, any_function original)
{
	int number = number_of(name);

	if (number >= 0)
		*originals[number] = original;
}

/* The wrapper of a function whose address the program has just been given. */
static void *instead_of(const char *name, void *address)
{
	int number = number_of(name);

	if (!address || number < 0)
		return address;
	/* of two CUDA drivers in one process only the first is counted */
	if (!*originals[number])
		*originals[number] = (any_function)address;
	return *originals[number] == (any_function)address ? (void *)wrappers[number][chosen] : address;
}

static get_proc_address real_get_proc_address;

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	int result;

	/* a caller that was bound to this function before libcuda was loaded */
	if (!real_get_proc_address)
		real_get_proc_address = (get_proc_address)real_dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
	if (!real_get_proc_address)
		return 500;
	result = real_get_proc_address(name, address, version, flags, status);
	if (!result && address && name) {
		char versioned[64];

		/* the driver takes names without a version, and gives the function that the version asks for
		 */
		snprintf(versioned, sizeof(versioned), "%s_v2", name);
		*address = instead_of(number_of(versioned) < 0 ? name : versioned, *address);
	}
	return result;
}

/* dlsym() with a handle: see trampolines.S. */
HIDDEN void *interposed_dlsym(void *library, const char *name)
{
	void *address = real_dlsym(library, name);

	if (address && !strcmp(name, "cuGetProcAddress_v2")) {
		real_get_proc_address = (get_proc_address)address;
		return (void *)cuGetProcAddress_v2;
	}
	return instead_of(name, address);
}

/* Direct calls. The first one finds the function, as the dynamic linker would. */
#define DIRECT(name, arguments)                                                                              \
	long name(PARAMETERS_##arguments)                                                                    \
	{                                                                                                    \
		if (!original_##name)                                                                        \
			original_##name = (any_function)real_dlsym(RTLD_NEXT, #name);                        \
		return ((long (*)(PARAMETERS_##arguments))wrappers[FUNCTION_##name][chosen])(                \
		    ARGUMENTS_##arguments);                                                                  \
	}
#define EXPANDED_DIRECT(name, arguments) DIRECT(name, arguments)
#define FUNCTION(name, registers, words) EXPANDED_DIRECT(name, TOTAL_##registers##_##words)
#include "functions.def"
#undef FUNCTION

static void map_counters(void)
{
	char path[64];
	int file;

	snprintf(path, sizeof(path), COUNTERS_PATH, getpid());
	file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	counters = NULL;
	if (file < 0)
		return;
	if (!ftruncate(file, sizeof(*counters)))
		counters = mmap(NULL, sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (counters == MAP_FAILED)
		counters = NULL;
	if (counters)
		counters->magic = MAGIC;
}

/* The child would otherwise add to the rows of its parent. A child of vfork() or clone() does. */
static void after_fork(void)
{
	own = NULL;
	map_counters();
}

__attribute__((constructor)) static void start(void)
{
	const char *variant = getenv("GPUPROBE_VARIANT");

	real_dlsym = (find_symbol)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	chosen =
	    variant && atoi(variant) >= 0 && atoi(variant) < VARIANT_COUNT_OF ? atoi(variant) : VARIANT_COUNT;
	map_counters();
	pthread_atfork(NULL, NULL, after_fork);
}
