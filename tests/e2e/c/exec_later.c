/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Launches CUDA kernels, waits until they are recorded, and executes another program:
 *
 *     exec_later LIBCUDA PROGRAM [ARGUMENT...]
 *
 * The other program gets the ledger of CUPTI that OTHER_LEDGER names.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LAUNCHES 50
#define RECORDED_US 1500000

int main(int count, char **arguments)
{
	void *cuda = count > 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
	int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		      unsigned int, unsigned int, void *, void **, void **);
	int (*init)(unsigned int), (*load)(void **, const void *);
	int (*get_function)(void **, void *, const char *);
	void *module = NULL, *kernel = NULL;
	const char *ledger = getenv("OTHER_LEDGER");
	int result;

	if (!cuda || !ledger)
		return 2;
	init = dlsym(cuda, "cuInit");
	load = dlsym(cuda, "cuModuleLoadData");
	get_function = dlsym(cuda, "cuModuleGetFunction");
	launch = dlsym(cuda, "cuLaunchKernel");
	result = init(0) | load(&module, "image") | get_function(&kernel, module, "gemm");
	for (int i = 0; i < LAUNCHES; i++)
		result |= launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
	if (result)
		return result;
	usleep(RECORDED_US);
	setenv("STANDIN_CUPTI_LEDGER", ledger, 1);
	execv(arguments[2], arguments + 2);
	return 3;
}
