/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Allocates and frees memory over and over, by the libcuda that is named on the command line:
 *
 *     churn LIBRARY
 *
 * Prints "begun" after its first free. At a line on its standard input it stops, holds nothing and prints
 * {"pid","allocs","frees"}; at the next line it ends.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
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
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL, *context;
	unsigned long allocs = 0, frees = 0;
	int (*init)(unsigned), (*get)(int *, int), (*create)(void **, unsigned, int);
	int (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
	int device;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	init = function(library, "cuInit");
	get = function(library, "cuDeviceGet");
	create = function(library, "cuCtxCreate_v2");
	alloc = function(library, "cuMemAlloc_v2");
	release = function(library, "cuMemFree_v2");
	if (!init || !get || !create || !alloc || !release)
		return 1;
	if (init(0) || get(&device, 0) || create(&context, 0, device))
		return 1;
	while (!has_line()) {
		uint64_t block;

		if (alloc(&block, BYTES))
			return 1;
		allocs++;
		if (release(block))
			return 1;
		if (!frees++)
			puts("begun");
		/* leaves the CPU to others now and then, so that many of these run side by side */
		if (frees % 16 == 0)
			usleep(1000);
	}
	(void)getchar();
	printf("{\"pid\":%d,\"allocs\":%lu,\"frees\":%lu}\n", (int)getpid(), allocs, frees);
	(void)getchar();
	return 0;
}
