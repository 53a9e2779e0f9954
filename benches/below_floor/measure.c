/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * measure ROUNDS CALLS OBJECT FOLDER [GPUPROBE]: calls two functions of the CUDA driver in each mode in turn,
 * and prints the CPU time of a call and its ratio to a call with a pair of empty probes in the same round.
 * Runs with the interposer preloaded. FOLDER has the copies of the measured library. With GPUPROBE, one copy
 * is counted by `gpuprobe daemon`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include "interposer.h"
#include "odd_calls.h"

#define MOST_ROUNDS 2000
#define ROWS 64

typedef int (*sync_call)(void);
typedef int (*launch_call)(void *, long, long, long, long, long, long, long, void *, void **, void **);

enum how {
	BY_LIBRARY,
	BY_WRAPPER,
	/* a wrapper that passes the function of trampolines.S that `where` names */
	BY_REPORT,
	/* functions of trampolines.S, `FAMILY_enter_NAME` and `FAMILY_leave_NAME` */
	BY_TRAMPOLINE,
	BY_GPUPROBE,
};

struct mode {
	const char *label;
	enum how how;
	/* the copy of the library, or the family of trampolines */
	const char *where;
	enum variant variant;
	/* at the function, or at the entry of a trampoline and when its call has returned */
	const char *programs[2];
	void *function;
	/* the code that has the probe */
	void *place;
	double ns[MOST_ROUNDS];
};

static struct mode modes[] = {
    {"without probes", .where = "push.0"},
    {"empty pair of probes on a push (the floor)", .where = "push.1", .programs = {"empty_pair"}},
    {"empty probe at the entry, on a push", .where = "push.2", .programs = {"empty_entry"}},
    {"empty pair, on a 5-byte nop", .where = "nop.1", .programs = {"empty_pair"}},
    {"empty probe at the entry, on a 5-byte nop", .where = "nop.2", .programs = {"empty_entry"}},
    {"counted by BPF, pair on a push", .where = "push.3", .programs = {"counted_pair"}},
    {"counted by BPF, pair on a 5-byte nop", .where = "nop.3", .programs = {"counted_pair"}},
    {"counted by gpuprobe daemon, on a push", BY_GPUPROBE, .where = "libcuda.so.1"},
    {"trampoline without probes", BY_TRAMPOLINE, .where = "unprobed"},
    {"trampoline, empty probes on two pushes", BY_TRAMPOLINE, .where = "empty_push",
     .programs = {"empty_entry", "empty_entry"}},
    {"trampoline, empty probes on two 5-byte nops", BY_TRAMPOLINE, .where = "empty",
     .programs = {"empty_entry", "empty_entry"}},
    {"trampoline, counted by BPF on two 5-byte nops", BY_TRAMPOLINE, .where = "counted",
     .programs = {"counted_enter", "counted_leave"}},
    {"reported after the call, empty probe on a nop", BY_REPORT, .where = "report_empty",
     .variant = VARIANT_REPORT_EMPTY, .programs = {"empty_entry"}},
    {"reported after the call, counted by BPF", BY_REPORT, .where = "report_counted",
     .variant = VARIANT_REPORT_COUNTED, .programs = {"counted_report"}},
    {"in the process: calls and failures", BY_WRAPPER, .variant = VARIANT_COUNT},
    {"in the process: and time, by the TSC", BY_WRAPPER, .variant = VARIANT_TSC},
    {"in the process: and time, by clock_gettime", BY_WRAPPER, .variant = VARIANT_CLOCK},
};
#define MODES ((int)(sizeof(modes) / sizeof(*modes)))
#define FLOOR 1

static unsigned long calls_made;
static pid_t daemon_pid;

static int fail(const char *what, const char *name)
{
	fprintf(stderr, "measure: %s: %s\n", what, name);
	if (daemon_pid)
		kill(daemon_pid, SIGTERM);
	exit(1);
}

static void *function_of(void *library, const char *family, const char *point, const char *name)
{
	char symbol[96];
	void *found;

	snprintf(symbol, sizeof(symbol), "%s%s%s", family, point, name);
	/* by version where the interposer would answer */
	found = library ? dlvsym(library, symbol, "DRIVER") : dlsym(RTLD_DEFAULT, symbol);
	if (!found)
		fail("no function", symbol);
	return found;
}

static void attach(struct bpf_object *object, const char *program, const char *file, const char *symbol,
		   __u64 row, int is_session)
{
	LIBBPF_OPTS(bpf_uprobe_multi_opts, options, .syms = &symbol, .cookies = &row, .cnt = 1,
		    .session = is_session);

	if (!bpf_program__attach_uprobe_multi(bpf_object__find_program_by_name(object, program), -1, file,
					      NULL, &options))
		fail("cannot attach to", symbol);
}

static void start_gpuprobe(const char *gpuprobe, const char *library)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", getpid());
	daemon_pid = fork();
	if (!daemon_pid) {
		unsetenv("LD_PRELOAD");
		execl(gpuprobe, gpuprobe, "daemon", "-d", pid, "-p", library, "--display-interval", "0",
		      "--metrics-addr", "127.0.0.1:19437", NULL);
		_exit(127);
	}
}

/* Waits until a function has a breakpoint. */
static void wait_for_probe(const unsigned char *code)
{
	const struct timespec moment = {.tv_nsec = 10000000}, rest = {.tv_sec = 1};

	for (int i = 0; i < 3000; i++) {
		if (*(const volatile unsigned char *)code == 0xcc) {
			nanosleep(&rest, NULL);
			return;
		}
		nanosleep(&moment, NULL);
	}
	fail("gpuprobe has attached no probe", "cuLaunchKernel");
}

static void prepare(struct mode *mode, const char *name, struct bpf_object *object, const char *folder,
		    int row, const char *gpuprobe)
{
	char file[4096], symbol[96];
	int is_trampoline = mode->how == BY_TRAMPOLINE;
	int is_inside = is_trampoline || mode->how == BY_REPORT || mode->how == BY_WRAPPER;
	void *library = NULL;

	snprintf(file, sizeof(file), "%s/%s", folder, is_inside ? "interposer.so" : mode->where);
	if (mode->how == BY_WRAPPER || mode->how == BY_REPORT) {
		mode->function = (void *)interposer_wrapper(mode->variant, name);
		if (mode->how == BY_REPORT) {
			mode->place = function_of(NULL, mode->where, "", "");
			attach(object, mode->programs[0], file, mode->where, row, 0);
		}
		return;
	}
	if (is_trampoline) {
		mode->function = function_of(NULL, mode->where, "_enter_", name);
	} else {
		library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
		if (!library)
			fail("cannot load", dlerror());
		mode->function = function_of(library, "", "", name);
	}
	if (mode->how == BY_GPUPROBE && !daemon_pid)
		start_gpuprobe(gpuprobe, file);
	if (mode->how == BY_GPUPROBE)
		return wait_for_probe(mode->function);
	mode->place = mode->function;
	for (int i = 0; i < 2 && mode->programs[i]; i++) {
		snprintf(symbol, sizeof(symbol), "%s%s%s", is_trampoline ? mode->where : "",
			 !is_trampoline ? ""
			 : i		? "_leave_"
					: "_enter_",
			 name);
		attach(object, mode->programs[i], file, symbol, row, !!strstr(mode->programs[i], "pair"));
	}
}

static double thread_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* The memory behind a kernel handle: the CUDA driver has the name in its second word. */
static const struct kernel {
	const void *object;
	const char *name;
} kernels[] = {{kernels, "add"}, {kernels, "scale"}, {kernels, "norm"}, {kernels, "relu"}};
#define KERNELS ((long)(sizeof(kernels) / sizeof(*kernels)))

static int call_many(void *function, int is_launch, long calls)
{
	int failed = 0;

	for (long i = 0; i < calls; i++)
		failed += is_launch ? ((launch_call)function)((void *)&kernels[i % KERNELS], 1 + i % 4, 2, 1,
							      256, 1, 1, 1024, NULL, NULL, NULL)
				    : ((sync_call)function)();
	return failed;
}

static int ascending(const void *a, const void *b)
{
	double difference = *(const double *)a - *(const double *)b;

	return (difference > 0) - (difference < 0);
}

static double quantile(const double *values, int count, double part)
{
	double sorted[MOST_ROUNDS];

	memcpy(sorted, values, count * sizeof(*sorted));
	qsort(sorted, count, sizeof(*sorted), ascending);
	return sorted[(int)(part * (count - 1))];
}

static void print_mode(const struct mode *mode, int rounds)
{
	double ratio[MOST_ROUNDS];
	const char *place = "";

	for (int i = 0; i < rounds; i++)
		ratio[i] = mode->ns[i] / modes[FLOOR].ns[i];
	if (mode->programs[0])
		place = *(unsigned char *)mode->place == 0xe8 ? "call" : "breakpoint";
	printf("%-46s %8.1f ns  %6.1f to %6.1f  ratio %.3f  %.3f to %.3f  %s\n", mode->label,
	       quantile(mode->ns, rounds, 0.5), quantile(mode->ns, rounds, 0.25),
	       quantile(mode->ns, rounds, 0.75), quantile(ratio, rounds, 0.5), quantile(ratio, rounds, 0.25),
	       quantile(ratio, rounds, 0.75), place);
}

/* Every counted call must have been counted: in BPF, and in the process. */
static void check_counts(struct bpf_object *object, const char *name)
{
	int map = bpf_object__find_map_fd_by_name(object, "rows"), cpus = libbpf_num_possible_cpus();
	__u64 row[64][3 + BUCKETS];
	char command[128];

	for (__u32 i = 0; i < (__u32)MODES; i++) {
		unsigned long long counted = 0;

		if (!modes[i].programs[0] || strncmp(modes[i].programs[0], "counted", 7))
			continue;
		if (cpus > 64 || bpf_map_lookup_elem(map, &i, row))
			fail("cannot read", "rows");
		for (int cpu = 0; cpu < cpus; cpu++)
			counted += row[cpu][0];
		if (counted != calls_made)
			fprintf(stderr, "measure: %s: %llu of %lu counted\n", modes[i].label, counted,
				calls_made);
	}
	snprintf(command, sizeof(command), "LD_PRELOAD= $READ_COUNTERS %d | grep '^%s '", getpid(), name);
	printf("made %lu calls in each mode; counted in the process, by three modes: ", calls_made);
	fflush(stdout);
	if (system(command))
		fail("no counts of", name);
}

static void measure(const char *name, int rounds, long calls, const char *object_file, const char *folder,
		    const char *gpuprobe)
{
	struct bpf_object *object = bpf_object__open_file(object_file, NULL);
	int is_launch = !strcmp(name, "cuLaunchKernel"), failed = 0;

	if (!object || bpf_object__load(object))
		fail("cannot load", object_file);
	for (int i = 0; i < MODES; i++) {
		if (modes[i].how != BY_GPUPROBE || gpuprobe)
			prepare(&modes[i], name, object, folder, i, gpuprobe);
		if (!i)
			interposer_set_original(name, (any_function)modes[0].function);
	}
	calls_made = 0;
	for (int round = -1; round < rounds; round++) {
		for (int i = 0; i < MODES; i++) {
			/* changes the order, so that no mode always follows the same other mode */
			struct mode *mode = &modes[(i + round + 1) % MODES];
			double begin;

			if (!mode->function)
				continue;
			begin = thread_ns();
			failed += call_many(mode->function, is_launch, calls);
			if (round >= 0)
				mode->ns[round] = (thread_ns() - begin) / calls;
		}
		calls_made += calls;
	}
	if (failed)
		fail("calls failed", name);
	printf("\n%s, %d rounds of %ld calls in each mode\n", name, rounds, calls);
	for (int i = 0; i < MODES; i++) {
		if (modes[i].function)
			print_mode(&modes[i], rounds);
	}
	check_counts(object, name);
	bpf_object__close(object);
}

/* The trampoline passes on all arguments, and the result. */
static long weighted_sum(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j,
			 long k)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k;
}

static void check_arguments(void)
{
	static const enum variant variants[] = {VARIANT_COUNT, VARIANT_TSC, VARIANT_CLOCK, VARIANT_TRAMPOLINE,
						VARIANT_REPORT_EMPTY};

	interposer_set_original("cuLaunchKernel", (any_function)weighted_sum);
	for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); i++) {
		long (*wrapper)(long, long, long, long, long, long, long, long, long, long, long) =
		    (void *)interposer_wrapper(variants[i], "cuLaunchKernel");

		if (wrapper(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) != 506)
			fail("a wrapper changed an argument of", "cuLaunchKernel");
	}
}

/* Through a trampoline whose two places are probed: the probes stay until this program exits. */
static void check_odd_calls(void)
{
	any_function wrapper = (any_function)function_of(NULL, "counted", "_enter_", "cuCtxSynchronize");

	if (*(unsigned char *)wrapper != 0xe8 && *(unsigned char *)wrapper != 0xcc)
		fail("not probed any more", "counted_enter_cuCtxSynchronize");
	if (!odd_calls_pass("cuCtxSynchronize", wrapper))
		fail("an odd call did not pass through", "cuCtxSynchronize");
	printf("exceptions, longjmp and fibers passed through the probed trampoline\n");
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 0;
	long calls = count > 2 ? atol(words[2]) : 0;

	if (count < 5 || rounds < 1 || rounds > MOST_ROUNDS || calls < 1)
		return 2;
	measure("cuCtxSynchronize", rounds, calls, words[3], words[4], count > 5 ? words[5] : NULL);
	measure("cuLaunchKernel", rounds, calls, words[3], words[4], count > 5 ? words[5] : NULL);
	check_arguments();
	check_odd_calls();
	if (daemon_pid) {
		kill(daemon_pid, SIGTERM);
		waitpid(daemon_pid, NULL, 0);
	}
	return 0;
}
