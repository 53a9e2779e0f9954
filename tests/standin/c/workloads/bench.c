/*
 * bench ROUNDS CALLS MODE...: calls functions of the driver in rounds, CALLS times in each mode in turn. A
 * MODE is `count:PATH`, `stream:PATH` or `memory:PATH`: which function of which library; `memory` is an
 * allocation and the free of an older one. Prints {"ns"} per round, the CPU time that each mode took, and
 * {"made"}, the calls or allocations of each mode.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_MODES 16
/* allocations that are held while others come and go */
#define HELD 64
#define BYTES 4096

typedef int (*count_call)(void);
typedef int (*stream_call)(void *);
typedef int (*alloc_call)(unsigned long long *, size_t);
typedef int (*free_call)(unsigned long long);

struct mode {
	count_call count;
	stream_call stream;
	alloc_call alloc;
	free_call free;
	unsigned long long held[HELD];
	unsigned long made;
};

/* Of this thread: what others did meanwhile is not in it. */
static unsigned long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* How many of the calls failed. */
static int work(struct mode *mode, unsigned long calls)
{
	int failed = 0;

	if (mode->count) {
		for (unsigned long i = 0; i < calls; i++)
			failed += mode->count() != 0;
	} else if (mode->stream) {
		for (unsigned long i = 0; i < calls; i++)
			failed += mode->stream(NULL) != 0;
	} else {
		for (unsigned long i = 0; i < calls; i++) {
			unsigned long long *oldest = &mode->held[(mode->made + i) % HELD];

			if (*oldest)
				failed += mode->free(*oldest) != 0;
			failed += mode->alloc(oldest, BYTES) != 0;
		}
	}
	mode->made += calls;
	return failed;
}

static int open_mode(struct mode *mode, char *word)
{
	char *path = strchr(word, ':');
	void *library = path ? dlopen(path + 1, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!library) {
		fprintf(stderr, "bench: %s: %s\n", word, path ? dlerror() : "there is no colon in it");
		return 0;
	}
	if (!strncmp(word, "count:", 6))
		return !!(mode->count = (count_call)dlsym(library, "cuCtxSynchronize"));
	if (!strncmp(word, "stream:", 7))
		return !!(mode->stream = (stream_call)dlsym(library, "cuStreamSynchronize"));
	mode->alloc = (alloc_call)dlsym(library, "cuMemAlloc_v2");
	mode->free = (free_call)dlsym(library, "cuMemFree_v2");
	return !strncmp(word, "memory:", 7) && mode->alloc && mode->free;
}

static void print_list(const char *name, const unsigned long long *numbers, int count)
{
	printf("{\"%s\":[", name);
	for (int i = 0; i < count; i++)
		printf("%s%llu", i ? "," : "", numbers[i]);
	printf("]}\n");
	fflush(stdout);
}

int main(int count, char **words)
{
	static struct mode modes[MOST_MODES];
	unsigned long long numbers[MOST_MODES];
	unsigned long rounds = count > 1 ? strtoul(words[1], NULL, 10) : 0;
	unsigned long calls = count > 2 ? strtoul(words[2], NULL, 10) : 0;
	int used = count - 3, failed = 0;

	if (used < 1 || used > MOST_MODES || !rounds || !calls)
		return 2;
	for (int i = 0; i < used; i++) {
		if (!open_mode(&modes[i], words[3 + i]))
			return 2;
	}
	for (unsigned long round = 0; round < rounds; round++) {
		for (int i = 0; i < used; i++) {
			/* none of them is always the one after the same other */
			int turn = (i + round) % used;
			unsigned long long begin = now_ns();

			failed += work(&modes[turn], calls);
			numbers[turn] = now_ns() - begin;
		}
		print_list("ns", numbers, used);
	}
	for (int i = 0; i < used; i++) {
		numbers[i] = modes[i].made;
		for (int held = 0; held < HELD && modes[i].free; held++) {
			if (modes[i].held[held])
				failed += modes[i].free(modes[i].held[held]) != 0;
		}
	}
	print_list("made", numbers, used);
	return failed != 0;
}
