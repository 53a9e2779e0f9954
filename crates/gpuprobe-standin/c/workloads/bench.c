/*
 * bench ROUNDS CALLS MODE...: calls functions of the driver in rounds, CALLS times in each mode in turn. A
 * MODE is KIND:PATH, where PATH is a library, and KIND selects its functions: `count` and `stream` one each,
 * `memory` an allocation and the free of an older one, `launches` some kernels on two streams, and `copies`
 * from pinned memory; `other` is `count` with the probes of another program, for which it waits. With
 * KIND*N:PATH, N threads make as many calls each, at once. Prints {"ns"} per round, the CPU time of each mode
 * (with several threads their mean), and {"made"}, the calls or allocations of each mode.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_MODES 64
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
#define MOST_THREADS 64

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
	/* the threads that make the calls; NULL if it is the main thread */
	struct crew *crew;
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

/* One thread of several. It has a mode of its own, with its own memory. */
struct worker {
	struct crew *crew;
	struct mode mode;
	pthread_t thread;
	unsigned long long ns;
	int failed;
};

/* Threads that wait for a turn, make their calls at once, and wait for the next turn. */
struct crew {
	pthread_barrier_t begin;
	pthread_barrier_t end;
	/* how many calls each makes in this turn; 0 to end */
	unsigned long calls;
	unsigned int size;
	struct worker workers[MOST_THREADS];
};

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

static int free_live(struct mode *mode)
{
	int failed = 0;

	for (int i = 0; i < LIVE; i++) {
		if (mode->live[i])
			failed += mode->free(mode->live[i]) != 0;
	}
	return failed;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct crew *crew = worker->crew;
	unsigned long long begin;

	for (;;) {
		pthread_barrier_wait(&crew->begin);
		if (!crew->calls)
			break;
		begin = now_ns();
		worker->failed += worker->mode.run(&worker->mode, crew->calls);
		worker->ns = now_ns() - begin;
		worker->mode.made += crew->calls;
		pthread_barrier_wait(&crew->end);
	}
	worker->failed += free_live(&worker->mode);
	return NULL;
}

static struct crew *start_crew(const struct mode *mode, unsigned long size)
{
	struct crew *crew = size && size <= MOST_THREADS ? calloc(1, sizeof(*crew)) : NULL;

	if (!crew)
		return NULL;
	crew->size = size;
	pthread_barrier_init(&crew->begin, NULL, size + 1);
	pthread_barrier_init(&crew->end, NULL, size + 1);
	for (unsigned int i = 0; i < size; i++) {
		crew->workers[i].crew = crew;
		crew->workers[i].mode = *mode;
		if (pthread_create(&crew->workers[i].thread, NULL, work, &crew->workers[i]))
			return NULL;
	}
	return crew;
}

/* One turn of all threads. Returns the mean of their CPU times. */
static unsigned long long run_crew(struct crew *crew, unsigned long calls)
{
	unsigned long long ns = 0;

	crew->calls = calls;
	pthread_barrier_wait(&crew->begin);
	pthread_barrier_wait(&crew->end);
	for (unsigned int i = 0; i < crew->size; i++)
		ns += crew->workers[i].ns;
	return ns / crew->size;
}

/* Returns how many calls of the threads failed. */
static int end_crew(struct crew *crew)
{
	int failed = 0;

	crew->calls = 0;
	pthread_barrier_wait(&crew->begin);
	for (unsigned int i = 0; i < crew->size; i++) {
		pthread_join(crew->workers[i].thread, NULL);
		failed += crew->workers[i].failed;
	}
	return failed;
}

static int open_mode(struct mode *mode, char *word)
{
	char *path = strchr(word, ':'), *threads = path ? memchr(word, '*', path - word) : NULL;
	void *library = path ? dlopen(path + 1, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!library) {
		fprintf(stderr, "bench: %s: %s\n", word, path ? dlerror() : "there is no colon in it");
		return 0;
	}
	*path = 0;
	if (threads)
		*threads = 0;
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
	if (!mode->run || !mode->count || !mode->stream || !mode->alloc || !mode->free || !mode->alloc_host ||
	    !mode->copy || !mode->launch)
		return 0;
	if (threads)
		mode->crew = start_crew(mode, strtoul(threads + 1, NULL, 10));
	return !threads || mode->crew;
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

/* Makes the calls of a turn. Returns how much CPU time they took. */
static unsigned long long run_mode(struct mode *mode, unsigned long calls, int *failed)
{
	unsigned long long ns, begin = now_ns();

	if (mode->crew) {
		mode->made += calls * mode->crew->size;
		return run_crew(mode->crew, calls);
	}
	*failed += mode->run(mode, calls);
	ns = now_ns() - begin;
	mode->made += calls;
	return ns;
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

			numbers[turn] = run_mode(&modes[turn], calls, &failed);
		}
		print_list("ns", numbers, used);
	}
	for (int i = 0; i < used; i++) {
		numbers[i] = modes[i].made;
		failed += modes[i].crew ? end_crew(modes[i].crew) : free_live(&modes[i]);
	}
	print_list("made", numbers, used);
	return failed != 0;
}
