/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Uses CUDA, and then CUPTI itself, as a profiler in the process does:
 *
 *     cupti_user LIBCUDA LIBCUPTI
 *
 * At a first line on its standard input it launches CUDA kernels. At a second one it has CUPTI collect for
 * itself and launches as many again. At a third one it launches as many again, and prints {"records"}: those
 * that it has got from CUPTI.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LAUNCHES 50
#define BUFFER_BYTES (64 << 10)
#define KERNELS 10
#define FORCED 1

static int (*init)(unsigned int);
static int (*load)(void **, const void *);
static int (*get_function)(void **, void *, const char *);
static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, unsigned int, void *, void **, void **);
static int (*subscribe)(void **, void *, void *);
static int (*register_callbacks)(void *, void *);
static int (*enable)(uint32_t);
static int (*flush)(uint32_t);
static int (*next_record)(unsigned char *, size_t, unsigned char **);
static unsigned long records;

static void *function(void *library, const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(2);
	}
	return found;
}

static void request(unsigned char **buffer, size_t *size, size_t *most)
{
	*buffer = malloc(BUFFER_BYTES);
	*size = BUFFER_BYTES;
	*most = 0;
}

static void complete(void *context, uint32_t stream, unsigned char *buffer, size_t size, size_t valid)
{
	unsigned char *record = NULL;

	(void)context;
	(void)stream;
	(void)size;
	while (!next_record(buffer, valid, &record))
		records++;
	free(buffer);
}

static int launch_all(void *kernel)
{
	int result = 0;

	for (int i = 0; i < LAUNCHES; i++) {
		result |= launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
		usleep(200);
	}
	return result;
}

static void load_functions(char **paths)
{
	void *cuda = dlopen(paths[0], RTLD_NOW | RTLD_GLOBAL), *cupti;

	init = function(cuda, "cuInit");
	load = function(cuda, "cuModuleLoadData");
	get_function = function(cuda, "cuModuleGetFunction");
	launch = function(cuda, "cuLaunchKernel");
	cupti = dlopen(paths[1], RTLD_NOW | RTLD_GLOBAL);
	subscribe = function(cupti, "cuptiSubscribe");
	register_callbacks = function(cupti, "cuptiActivityRegisterCallbacks");
	enable = function(cupti, "cuptiActivityEnable");
	flush = function(cupti, "cuptiActivityFlushAll");
	next_record = function(cupti, "cuptiActivityGetNextRecord");
}

int main(int count, char **arguments)
{
	void *module = NULL, *kernel = NULL, *subscriber = NULL;
	int result;

	if (count != 3)
		return 2;
	load_functions(arguments + 1);
	result = init(0) | load(&module, "image") | get_function(&kernel, module, "gemm");
	getchar();
	result |= launch_all(kernel);
	getchar();
	result |= subscribe(&subscriber, (void *)launch_all, NULL);
	result |= register_callbacks((void *)request, (void *)complete);
	result |= enable(KERNELS);
	result |= launch_all(kernel);
	puts("launched");
	fflush(stdout);
	getchar();
	result |= launch_all(kernel);
	result |= flush(FORCED);
	printf("{\"records\":%lu,\"launches\":%d}\n", records, LAUNCHES);
	return result;
}
