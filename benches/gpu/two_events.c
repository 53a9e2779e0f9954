/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * two_events OBJECT LIBRARY [FUNCTION...]: probes eleven functions of a CUDA runtime, two events a call, and
 * prints a line for each. Says `ready` on stderr, and at the end, by SIGINT, how many events came. A peer to
 * compare with, written for that alone.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <bpf/libbpf.h>
#include "two_events.h"

static const char *const functions[] = {
    "cudaMalloc",	    "cudaFree",
    "cudaMemcpy",	    "cudaLaunchKernel",
    "cudaStreamCreate",	    "cudaStreamSynchronize",
    "cudaGetDevice",	    "cudaSetDevice",
    "cudaEventCreate",	    "cudaEventRecord",
    "cudaEventSynchronize",
};
#define FUNCTIONS (sizeof(functions) / sizeof(*functions))

static volatile sig_atomic_t told_to_end;
static unsigned long long received;

static void end(int number)
{
	(void)number;
	told_to_end = 1;
}

static int print(void *unused, void *data, size_t bytes)
{
	const struct event *event = data;
	const char *name = event->function < FUNCTIONS ? functions[event->function] : "?";

	(void)unused;
	if (bytes < sizeof(*event))
		return 0;
	received++;
	if (event->is_return)
		printf("%llu %s %u %s returned %d\n", event->at_ns, event->program, event->pid, name,
		       event->result);
	else
		printf("%llu %s %u %s(0x%llx, 0x%llx, 0x%llx)\n", event->at_ns, event->program, event->pid,
		       name, event->arguments[0], event->arguments[1], event->arguments[2]);
	return 0;
}

static int attach(struct bpf_program *probe, const char *library, int is_return, int count, char **names)
{
	for (int i = 0; probe && i < count; i++) {
		LIBBPF_OPTS(bpf_uprobe_opts, options, .retprobe = is_return, .bpf_cookie = i,
			    .func_name = names[i]);

		if (!bpf_program__attach_uprobe_opts(probe, -1, library, 0, &options))
			return 0;
	}
	return probe != NULL;
}

int main(int count, char **words)
{
	int is_empty = count > 3, functions_count = is_empty ? count - 3 : (int)FUNCTIONS;
	char **names = is_empty ? words + 3 : (char **)functions;
	struct bpf_program *entry, *exit;
	struct bpf_object *object = count >= 3 ? bpf_object__open_file(words[1], NULL) : NULL;
	struct ring_buffer *ring;

	if (!object || bpf_object__load(object)) {
		fprintf(stderr, "two_events: cannot load\n");
		return 1;
	}
	ring = ring_buffer__new(bpf_object__find_map_fd_by_name(object, "events"), print, NULL, NULL);
	entry = bpf_object__find_program_by_name(object, is_empty ? "nothing_entered" : "entered");
	exit = bpf_object__find_program_by_name(object, is_empty ? "nothing_returned" : "returned");
	if (!ring || !attach(entry, words[2], 0, functions_count, names) ||
	    !attach(exit, words[2], 1, functions_count, names)) {
		fprintf(stderr, "two_events: cannot attach to %s\n", words[2]);
		return 1;
	}
	signal(SIGINT, end);
	fprintf(stderr, "ready\n");
	while (!told_to_end) {
		int taken = ring_buffer__poll(ring, 100);

		if (taken < 0 && taken != -EINTR)
			return 1;
	}
	fprintf(stderr, "%llu events\n", received);
	bpf_object__close(object);
	return 0;
}
