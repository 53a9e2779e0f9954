/*
 * diary [FILE [THREADS]]: prints {"pid","ready"}, waits for a line, and has threads allocate and free until
 * another line comes. Each thread notes each of its calls; all notes are written to FILE, a line each:
 *
 *     TID BEGUN_NS DONE_NS BYTES
 *
 * in the order of each thread's calls, with times of CLOCK_MONOTONIC right before and right after the call,
 * and with 0 bytes for a free. Ends with {"pid","calls"}.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define MOST_THREADS 16
#define MOST_NOTES (1 << 19)
#define MOST_HELD 8
/* between two calls, so that the reader of events keeps up */
#define PAUSE_NS 4000

struct note {
	uint64_t begun_ns, done_ns, bytes;
};

struct diary {
	pthread_t thread;
	long tid;
	size_t notes;
	struct note *note;
};

static struct diary diaries[MOST_THREADS];
static atomic_int is_over;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *keep(void *given)
{
	struct diary *diary = given;
	void *held[MOST_HELD];
	uint64_t random = (uint64_t)(diary - diaries) + 1;
	int count = 0;

	diary->tid = gettid();
	while (!atomic_load(&is_over) && diary->notes < MOST_NOTES) {
		struct note *note = &diary->note[diary->notes++];
		int allocates;

		random = random * 6364136223846793005u + 1442695040888963407u;
		allocates = !count || (count < MOST_HELD && random >> 63);
		note->bytes = allocates ? 256 + (random >> 40 & 0xffff) : 0;
		note->begun_ns = now_ns();
		if (allocates ? cudaMalloc(&held[count], note->bytes) : cudaFree(held[count - 1]))
			abort();
		note->done_ns = now_ns();
		count += allocates ? 1 : -1;
		while (now_ns() < note->done_ns + PAUSE_NS)
			;
	}
	return NULL;
}

int main(int count, char **words)
{
	unsigned long threads = count > 2 ? strtoul(words[2], NULL, 10) : 1, calls = 0;
	FILE *file = fopen(count > 1 ? words[1] : "/dev/null", "w");

	if (!file || !threads || threads > MOST_THREADS)
		return 2;
	for (unsigned long i = 0; i < threads; i++) {
		diaries[i].note = calloc(MOST_NOTES, sizeof(struct note));
		if (!diaries[i].note)
			return 2;
	}
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	fflush(stdout);
	getchar();
	for (unsigned long i = 0; i < threads; i++) {
		if (pthread_create(&diaries[i].thread, NULL, keep, &diaries[i]))
			return 2;
	}
	getchar();
	atomic_store(&is_over, 1);
	for (unsigned long i = 0; i < threads; i++) {
		pthread_join(diaries[i].thread, NULL);
		for (size_t n = 0; n < diaries[i].notes; n++) {
			struct note *note = &diaries[i].note[n];

			fprintf(file, "%ld %lu %lu %lu\n", diaries[i].tid, note->begun_ns, note->done_ns,
				note->bytes);
		}
		calls += diaries[i].notes;
		free(diaries[i].note);
	}
	printf("{\"pid\":%d,\"calls\":%lu}\n", (int)getpid(), calls);
	return fclose(file) != 0;
}
