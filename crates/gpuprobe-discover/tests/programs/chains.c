/* Call chains of many kinds, each ending in `probe`; the first argument selects one. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "record.h"

int middle(int (*callback)(int), int value);

/* Keeps an array alive. */
static volatile int sink;
#define USE(array) (sink = (array)[0])
/* Prevents a tail call, which would be a jump. */
#define DONE(result) return sink = (result)

NOINLINE int leaf(int value)
{
	LABEL();
	DONE(probe() + value);
}

NOINLINE int recurse(int depth)
{
	LABEL();
	int result = depth == 0 ? leaf(depth) : recurse(depth - 1);
	DONE(result + 1);
}

NOINLINE int large_frame(int value)
{
	LABEL();
	volatile char space[6000];
	space[0] = (char)value;
	int result = leaf(value);
	return result + USE(space);
}

NOINLINE int stacked(int depth)
{
	volatile char space[3000];
	space[0] = (char)depth;
	int result = depth == 0 ? leaf(depth) : stacked(depth - 1);
	return result + USE(space);
}

NOINLINE int any_size(int value)
{
	LABEL();
	volatile char *space = alloca((size_t)value * 100);
	space[0] = (char)value;
	int result = leaf(value);
	return result + USE(space);
}

NOINLINE int aligned(int a, int b, int c, int d, int e, int f, int g, int h)
{
	LABEL();
	volatile char space[128] __attribute__((aligned(64)));
	space[0] = (char)h;
	int result = leaf(a + b + c + d + e + f) + g;
	return result + USE(space);
}

NOINLINE int compare(const void *a, const void *b)
{
	leaf(0);
	return *(const int *)a - *(const int *)b;
}

NOINLINE void on_signal(int number)
{
	leaf(number);
	sink = number;
}

NOINLINE void *in_thread(void *argument)
{
	recurse(3);
	return argument;
}

static inline __attribute__((always_inline)) int within(int value)
{
	int result = probe();
	DONE(result + value);
}

NOINLINE int around(int value)
{
	int result = within(value);
	DONE(result + 1);
}

/* Code outside of any file, with a frame pointer: push rbp; mov rbp, rsp; call rdi; pop rbp; ret. */
NOINLINE int generated(void)
{
	LABEL();
	static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
	unsigned char *page =
	    mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(page, code, sizeof code);
	labels[label_count++] = NULL; /* the return address into the generated code is not known here */
	int result = ((int (*)(int (*)(int)))page)(leaf);
	DONE(result + 1);
}

int main(int argc, char **argv)
{
	LABEL();
	const char *kind = argc > 1 ? argv[1] : "";
	int numbers[] = {3, 1, 2}, result = 1;
	if (strcmp(kind, "recursion") == 0)
		result = recurse(12);
	if (strcmp(kind, "twenty") == 0)
		result = recurse(15);
	if (strcmp(kind, "deep") == 0)
		result = recurse(200);
	if (strcmp(kind, "stacked") == 0)
		result = stacked(20);
	if (strcmp(kind, "large_frame") == 0)
		result = large_frame(1);
	if (strcmp(kind, "any_size") == 0)
		result = any_size(argc * 5);
	if (strcmp(kind, "aligned") == 0)
		result = aligned(1, 2, 3, 4, 5, 6, 7, 8);
	if (strcmp(kind, "library") == 0)
		result = middle(recurse, 2);
	if (strcmp(kind, "generated") == 0)
		result = generated();
	if (strcmp(kind, "inlined") == 0)
		result = around(1);
	if (strcmp(kind, "callback") == 0)
		qsort(numbers, 3, sizeof *numbers, compare);
	if (strcmp(kind, "signal") == 0) {
		signal(SIGUSR1, on_signal);
		raise(SIGUSR1);
	}
	if (strcmp(kind, "thread") == 0) {
		pthread_t thread;
		pthread_create(&thread, NULL, in_thread, NULL);
		pthread_join(thread, NULL);
	}
	DONE(result);
}
