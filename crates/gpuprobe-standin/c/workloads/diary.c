/*
 * diary [FILE [THREADS]]: prints {"pid","ready"}, waits for a line, and lets threads allocate and free until
 * another line comes. Each thread records each of its calls; all records are written to FILE, one per line:
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
#define MOST_ENTRIES (1 << 19)
#define MOST_LIVE 8
/* the time between two calls, so that the reader of events keeps up */
#define PAUSE_NS 4000

struct entry {
	uint64_t begun_ns, done_ns, bytes;
};

struct diary {
	pthread_t thread;
	long tid;
	size_t entries;
	struct entry *entry;
};

static struct diary diaries[MOST_THREADS];
static atomic_int is_over;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *write_diary(void *argument)
{
	struct diary *diary = argument;
	void *live[MOST_LIVE];
	uint64_t random = (uint64_t)(diary - diaries) + 1;
	int count = 0;

	diary->tid = gettid();
	while (!atomic_load(&is_over) && diary->entries < MOST_ENTRIES) {
		struct entry *entry = &diary->entry[diary->entries++];
		int allocates;

		random = random * 6364136223846793005u + 1442695040888963407u;
		allocates = !count || (count < MOST_LIVE && random >> 63);
		entry->bytes = allocates ? 256 + (random >> 40 & 0xffff) : 0;
		entry->begun_ns = now_ns();
		if (allocates ? cudaMalloc(&live[count], entry->bytes) : cudaFree(live[count - 1]))
			abort();
		entry->done_ns = now_ns();
		count += allocates ? 1 : -1;
		while (now_ns() < entry->done_ns + PAUSE_NS)
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
		diaries[i].entry = calloc(MOST_ENTRIES, sizeof(struct entry));
		if (!diaries[i].entry)
			return 2;
	}
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	fflush(stdout);
	getchar();
	for (unsigned long i = 0; i < threads; i++) {
		if (pthread_create(&diaries[i].thread, NULL, write_diary, &diaries[i]))
			return 2;
	}
	getchar();
	atomic_store(&is_over, 1);
	for (unsigned long i = 0; i < threads; i++) {
		pthread_join(diaries[i].thread, NULL);
		for (size_t n = 0; n < diaries[i].entries; n++) {
			struct entry *entry = &diaries[i].entry[n];

			fprintf(file, "%ld %lu %lu %lu\n", diaries[i].tid, entry->begun_ns, entry->done_ns,
				entry->bytes);
		}
		calls += diaries[i].entries;
		free(diaries[i].entry);
	}
	printf("{\"pid\":%d,\"calls\":%lu}\n", (int)getpid(), calls);
	return fclose(file) != 0;
}
