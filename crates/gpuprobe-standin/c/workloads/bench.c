/*
 * bench ROUNDS CALLS MODE...: calls functions of the driver in rounds, CALLS times in each mode in turn. A
 * MODE is KIND:PATH, where PATH is a library, and KIND selects its functions: `count` and `stream` one each,
 * `memory` an allocation and the free of an older one, `launches` some kernels on two streams, and `copies`
 * from pinned memory; `other` is `count` with the probes of another program, for which it waits. Prints
 * {"ns"} per round, the CPU time of each mode, and {"made"}, the calls or allocations of each mode.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_MODES 32
/* allocations that stay live while others come and go */
#define LIVE 64
#define BYTES 4096
/* pinned memory as the source of copies */
#define PINNED 65536
/* as many as a small model launches per step */
#define KERNELS 16
#define STREAMS 2
/* a stub has at least this many bytes */
#define CODE_BYTES 10

typedef int (*count_call)(void);
typedef int (*stream_call)(void *);
typedef int (*alloc_call)(unsigned long long *, size_t);
typedef int (*free_call)(unsigned long long);
typedef int (*alloc_host_call)(void **, size_t);
typedef int (*copy_call)(unsigned long long, const void *, size_t);
typedef int (*launch_call)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
			   unsigned int, unsigned int, void *, void **, void **);

struct mode {
	int (*run)(struct mode *mode, unsigned long calls);
	count_call count;
	stream_call stream;
	alloc_call alloc;
	free_call free;
	alloc_host_call alloc_host;
	copy_call copy;
	launch_call launch;
	unsigned long long live[LIVE];
	char *pinned;
	unsigned long made;
};

/* The memory behind a kernel handle: the driver has the name in its second word. */
static const struct kernel {
	const void *object;
	const char *name;
} kernels[KERNELS] = {
    {kernels, "add"},	  {kernels, "scale"},  {kernels, "norm"},   {kernels, "relu"},
    {kernels, "gemm"},	  {kernels, "reduce"}, {kernels, "gather"}, {kernels, "scatter"},
    {kernels, "adam"},	  {kernels, "fill"},   {kernels, "copy"},   {kernels, "softmax"},
    {kernels, "dropout"}, {kernels, "embed"},  {kernels, "split"},  {kernels, "concat"},
};
static char streams[STREAMS];

/* CPU time of this thread, without what other threads did meanwhile. */
static unsigned long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* Each of these functions returns how many of its calls failed. */
static int count(struct mode *mode, unsigned long calls)
{
	int failed = 0;

	for (unsigned long i = 0; i < calls; i++)
		failed += mode->count() != 0;
	return failed;
}

static int stream(struct mode *mode, unsigned long calls)
{
	int failed = 0;

	for (unsigned long i = 0; i < calls; i++)
		failed += mode->stream(NULL) != 0;
	return failed;
}

static int memory(struct mode *mode, unsigned long calls)
{
	int failed = 0;

	for (unsigned long i = 0; i < calls; i++) {
		unsigned long long *oldest = &mode->live[(mode->made + i) % LIVE];

		if (*oldest)
			failed += mode->free(*oldest) != 0;
		failed += mode->alloc(oldest, BYTES) != 0;
	}
	return failed;
}

static int launches(struct mode *mode, unsigned long calls)
{
	int failed = 0;

	for (unsigned long i = 0; i < calls; i++) {
		void *kernel = (void *)&kernels[i % KERNELS];
		unsigned int blocks = 1 + i % 4;

		failed += mode->launch(kernel, blocks, 2, 1, 256, 1, 1, 1024, &streams[i / KERNELS % STREAMS],
				       NULL, NULL) != 0;
	}
	return failed;
}

/* To live memory, from memory that the driver has allocated too. */
static int copies(struct mode *mode, unsigned long calls)
{
	int failed = 0;

	for (unsigned long i = 0; !mode->pinned && i < LIVE; i++)
		failed += mode->alloc(&mode->live[i], BYTES) != 0;
	if (!mode->pinned)
		failed += mode->alloc_host((void **)&mode->pinned, PINNED) != 0;
	for (unsigned long i = 0; i < calls; i++)
		failed += mode->copy(mode->live[i % LIVE], mode->pinned + i * BYTES % PINNED, BYTES) != 0;
	return failed;
}

static const struct {
	const char *name;
	int (*run)(struct mode *mode, unsigned long calls);
} kinds[] = {
    {"count", count},	    {"stream", stream}, {"memory", memory},
    {"launches", launches}, {"copies", copies}, {"other", count},
};

static int open_mode(struct mode *mode, char *word)
{
	char *path = strchr(word, ':');
	void *library = path ? dlopen(path + 1, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!library) {
		fprintf(stderr, "bench: %s: %s\n", word, path ? dlerror() : "there is no colon in it");
		return 0;
	}
	*path = 0;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!strcmp(word, kinds[i].name))
			mode->run = kinds[i].run;
	}
	mode->count = (count_call)dlsym(library, "cuCtxSynchronize");
	mode->stream = (stream_call)dlsym(library, "cuStreamSynchronize");
	mode->alloc = (alloc_call)dlsym(library, "cuMemAlloc_v2");
	mode->free = (free_call)dlsym(library, "cuMemFree_v2");
	mode->alloc_host = (alloc_host_call)dlsym(library, "cuMemAllocHost_v2");
	mode->copy = (copy_call)dlsym(library, "cuMemcpyHtoD_v2");
	mode->launch = (launch_call)dlsym(library, "cuLaunchKernel");
	return mode->run && mode->count && mode->stream && mode->alloc && mode->free && mode->alloc_host &&
	       mode->copy && mode->launch;
}

/*
 * Waits until a function has a probe, which changes its code compared with a mode that has none. The program
 * that attaches it may attach more after that.
 */
static int wait_for_probes(const struct mode *mode, const struct mode *without)
{
	const struct timespec moment = {.tv_nsec = 10000000}, rest = {.tv_sec = 1};

	for (int i = 0; i < 3000; i++) {
		if (memcmp((const void *)mode->count, (const void *)without->count, CODE_BYTES)) {
			nanosleep(&rest, NULL);
			return 1;
		}
		nanosleep(&moment, NULL);
	}
	fprintf(stderr, "bench: the other program put no probe into cuCtxSynchronize within 30 s\n");
	return 0;
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
		if (!strcmp(words[3 + i], "other") && !wait_for_probes(&modes[i], &modes[0]))
			return 3;
	}
	for (unsigned long round = 0; round < rounds; round++) {
		for (int i = 0; i < used; i++) {
			/* changes the order, so that no mode always follows the same other mode */
			int turn = (i + round) % used;
			unsigned long long begin = now_ns();

			failed += modes[turn].run(&modes[turn], calls);
			numbers[turn] = now_ns() - begin;
			modes[turn].made += calls;
		}
		print_list("ns", numbers, used);
	}
	for (int i = 0; i < used; i++) {
		numbers[i] = modes[i].made;
		for (int live = 0; live < LIVE; live++) {
			if (modes[i].live[live])
				failed += modes[i].free(modes[i].live[live]) != 0;
		}
	}
	print_list("made", numbers, used);
	return failed != 0;
}
