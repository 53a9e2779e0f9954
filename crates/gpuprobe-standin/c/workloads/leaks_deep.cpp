/*
 * Ways of many frames: a hundred calls deep, with room of changing size on the stack between them, 20 KiB and
 * more. The same way has another stack pointer every time. Two ways differ in their outermost function alone.
 * The threads have small stacks, with nothing above their ends. Options and books are in leaks.h.
 */
#include <alloca.h>
#include <sys/mman.h>

#include "leaks.h"

#define DEPTH 100
#define PAGE 4096ul
#define DEEP_STACK (64 * PAGE)
#define BYTES 3072

static Place deep_left("deep left", "bottom", "from_left", true);
static Place deep_right("deep right", "bottom", "from_right", false);
static Place shallow("shallow", "shallow_block", "Worker::round", false);

OWN_FRAME static void bottom(Place &place)
{
	void *block;

	int line = __LINE__ + 1;
	succeed(cudaMalloc(&block, BYTES), "cudaMalloc");
	place.allocated(BYTES, line);
	if (place.leaks)
		return;
	succeed(cudaFree(block), "cudaFree");
	place.freed(BYTES);
}

static void down(Place &place, int depth, unsigned long round);

/* With a frame whose size the compiler knows. */
OWN_FRAME static void down_plain(Place &place, int depth, unsigned long round)
{
	char room[120];

	memset(room, depth, sizeof(room));
	asm volatile("" ::"r"(room) : "memory");
	down(place, depth, round);
	STAY();
}

/* With a frame whose size nobody knows before. */
OWN_FRAME static void down(Place &place, int depth, unsigned long round)
{
	size_t bytes = 60 + 16 * ((round * 31 + depth * 7) % 17);
	char *room = (char *)alloca(bytes);

	memset(room, depth, bytes);
	asm volatile("" ::"r"(room) : "memory");
	if (depth <= 2)
		bottom(place);
	else
		down_plain(place, depth - 2, round);
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

/* The few frames of a thread that has hardly begun. */
OWN_FRAME static void shallow_block()
{
	void *block;

	int line = __LINE__ + 1;
	succeed(cudaMalloc(&block, BYTES), "cudaMalloc");
	shallow.allocated(BYTES, line);
	succeed(cudaFree(block), "cudaFree");
	shallow.freed(BYTES);
}

/* A stack at whose end the address space has a hole: who copies too much of it gets nothing. */
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
