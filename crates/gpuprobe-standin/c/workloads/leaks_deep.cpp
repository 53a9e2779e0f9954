/*
 * Stacks with many frames: a hundred calls deep, with arrays of changing size between them, 20 KiB and more.
 * The same stack has a different stack pointer every time. Two stacks differ only in their outermost
 * function. The threads have small stacks, with unmapped memory above their ends. Options and the ledger are
 * in leaks.h.
 */
#include <alloca.h>
#include <sys/mman.h>

#include "leaks.h"

#define DEPTH 100
#define PAGE 4096ul
#define DEEP_STACK (64 * PAGE)
#define BYTES 3072

static CallSite deep_left("deep left", "bottom", "from_left", true);
static CallSite deep_right("deep right", "bottom", "from_right", false);
static CallSite shallow("shallow", "shallow_block", "Worker::round", false);

OWN_FRAME static void bottom(CallSite &call_site)
{
	void *block;

	int line = __LINE__ + 1;
	succeed(cudaMalloc(&block, BYTES), "cudaMalloc");
	call_site.allocated(BYTES, line);
	if (call_site.leaks)
		return;
	succeed(cudaFree(block), "cudaFree");
	call_site.freed(BYTES);
}

static void down(CallSite &call_site, int depth, unsigned long round);

/* A frame whose size is known at compile time. */
OWN_FRAME static void down_plain(CallSite &call_site, int depth, unsigned long round)
{
	char room[120];

	memset(room, depth, sizeof(room));
	asm volatile("" ::"r"(room) : "memory");
	down(call_site, depth, round);
	STAY();
}

/* A frame whose size is known only at run time. */
OWN_FRAME static void down(CallSite &call_site, int depth, unsigned long round)
{
	size_t bytes = 60 + 16 * ((round * 31 + depth * 7) % 17);
	char *room = (char *)alloca(bytes);

	memset(room, depth, bytes);
	asm volatile("" ::"r"(room) : "memory");
	if (depth <= 2)
		bottom(call_site);
	else
		down_plain(call_site, depth - 2, round);
	STAY();
}

OWN_FRAME static void from_left(unsigned long round)
{
	down(deep_left, DEPTH, round);
	STAY();
}

OWN_FRAME static void from_right(unsigned long round)
{
	down(deep_right, DEPTH, round);
	STAY();
}

/* The few frames of a thread that has just started. */
OWN_FRAME static void shallow_block()
{
	void *block;

	int line = __LINE__ + 1;
	succeed(cudaMalloc(&block, BYTES), "cudaMalloc");
	shallow.allocated(BYTES, line);
	succeed(cudaFree(block), "cudaFree");
	shallow.freed(BYTES);
}

/* A stack with unmapped memory above its end: copying too much of it fails. */
static const pthread_attr_t *with_small_stack()
{
	pthread_attr_t *attributes = new pthread_attr_t;
	char *base = (char *)mmap(NULL, DEEP_STACK + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED)
		exit(1);
	succeed(mprotect(base + PAGE, DEEP_STACK, PROT_READ | PROT_WRITE), "mprotect");
	succeed(pthread_attr_init(attributes), "pthread_attr_init");
	succeed(pthread_attr_setstack(attributes, base + PAGE, DEEP_STACK), "pthread_attr_setstack");
	return attributes;
}

struct Worker {
	OWN_FRAME void round(unsigned long round)
	{
		shallow_block();
		from_left(round);
		from_right(round);
		STAY();
	}

	static const pthread_attr_t *attributes()
	{
		return with_small_stack();
	}
};

int main(int count, char **words)
{
	return leaks_main<Worker>(200, count, words);
}
