/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Allocates with a libcuda: in each round another size. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Prints {"pid","allocations","bytes"}, waits for a line and exits. Returns 1 if that is not possible. */
static int allocate_rounds(const char *path, const char *number)
{
	int (*init)(unsigned), (*get)(int *, int), (*create)(void **, unsigned, int);
	int (*alloc)(uint64_t *, size_t), device;
	unsigned long rounds = strtoul(number, NULL, 10), bytes = 0;
	void *library = dlopen(path, RTLD_NOW), *context;
	uint64_t block;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	init = dlsym(library, "cuInit");
	get = dlsym(library, "cuDeviceGet");
	create = dlsym(library, "cuCtxCreate_v2");
	alloc = dlsym(library, "cuMemAlloc_v2");
	if (!init || !get || !create || !alloc || init(0) || get(&device, 0) || create(&context, 0, device))
		return 1;
	for (unsigned long i = 1; i <= rounds; i++) {
		if (alloc(&block, 256 * i))
			return 1;
		bytes += 256 * i;
	}
	printf("{\"pid\":%d,\"allocations\":%lu,\"bytes\":%lu}\n", (int)getpid(), rounds, bytes);
	fflush(stdout);
	(void)getchar();
	_exit(0);
}
