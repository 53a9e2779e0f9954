/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Allocates and frees memory repeatedly, with the libcuda named on the command line:
 *
 *     churn LIBRARY [TURNS]
 *
 * Each turn also registers and unregisters host memory at an address that no earlier turn used. A missed
 * free of device memory would be corrected by the next allocation, which has the same address; a missed
 * unregistration would not.
 *
 * Prints "begun" after its first free. At a line on its standard input, or after TURNS turns, it frees
 * everything, stops and prints {"pid","allocs","frees"}. At the next line it exits.
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
	/* its file system may stop answering: after that it cannot read anything */
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
		/* yields the CPU now and then, so that many of these can run at the same time */
		if (frees % 16 == 0)
			usleep(1000);
	}
	if (frees < turns)
		(void)getchar();
	printf("{\"pid\":%d,\"allocs\":%lu,\"frees\":%lu}\n", (int)getpid(), allocs, frees);
	(void)getchar();
	return 0;
}
