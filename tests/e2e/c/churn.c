/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Allocates and frees memory over and over, by the libcuda that is named on the command line:
 *
 *     churn LIBRARY [TURNS]
 *
 * Each turn also registers host memory at an address that no turn before it had, and takes that back: the
 * next allocation of the driver has the address of the last one, so that it would put right whatever was
 * missed of that.
 *
 * Prints "begun" after its first free. At a line on its standard input, or after so many turns, it stops,
 * holds nothing and prints
 * {"pid","allocs","frees"}; at the next line it ends.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (64ull << 20)

static int has_line(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	return poll(&input, 1, 0) > 0;
}

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fprintf(stderr, "no %s\n", name);
	return found;
}

int main(int argc, char **argv)
{
	void *library = argc >= 2 ? dlopen(argv[1], RTLD_NOW) : NULL, *context;
	unsigned long allocs = 0, frees = 0, turns = argc > 2 ? strtoul(argv[2], NULL, 10) : -1UL;
	int (*init)(unsigned), (*get)(int *, int), (*create)(void **, unsigned, int);
	int (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
	int (*enlist)(void *, size_t, unsigned), (*discharge)(void *);
	uint64_t address = 0x10000000000;
	int device;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	/* it may run from a file system that stops answering: then nothing can be read any more */
	mlockall(MCL_CURRENT);
	init = function(library, "cuInit");
	get = function(library, "cuDeviceGet");
	create = function(library, "cuCtxCreate_v2");
	alloc = function(library, "cuMemAlloc_v2");
	release = function(library, "cuMemFree_v2");
	enlist = function(library, "cuMemHostRegister_v2");
	discharge = function(library, "cuMemHostUnregister");
	if (!init || !get || !create || !alloc || !release || !enlist || !discharge)
		return 1;
	if (init(0) || get(&device, 0) || create(&context, 0, device))
		return 1;
	while (frees < turns && !has_line()) {
		uint64_t block;

		if (alloc(&block, BYTES) || enlist((void *)address, BYTES, 0))
			return 1;
		allocs++;
		if (discharge((void *)address) || release(block))
			return 1;
		address += 4096;
		if (!frees++)
			puts("begun");
		/* leaves the CPU to others now and then, so that many of these run side by side */
		if (frees % 16 == 0)
			usleep(1000);
	}
	if (frees < turns)
		(void)getchar();
	printf("{\"pid\":%d,\"allocs\":%lu,\"frees\":%lu}\n", (int)getpid(), allocs, frees);
	(void)getchar();
	return 0;
}
