/*
 * prepared [--wait]: looks up and registers its kernels and pins memory. Then it prints {"pid","ready"},
 * continues after a line, launches each kernel and copies from each kind of host memory, and prints
 * {"pid","launches":{kernel: n},"copied":{"pinned before": bytes, "pinned after": bytes, "pageable": bytes}}:
 * before or after the line. With --wait it exits after another line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

#define ROOM 100000

/* host functions as nvcc makes them: they have the names of their kernels */
void plain_kernel(void)
{
	__asm__ volatile("");
}

void mangled_kernel(void) __asm__("_Z14mangled_kernelPfi");

void mangled_kernel(void)
{
	__asm__ volatile("nop");
}

static int failed;

static void *looked_up(const char *name)
{
	static void *module;
	void *function = NULL;

	if (!module)
		failed |= cuModuleLoadData(&module, "image");
	failed |= cuModuleGetFunction(&function, module, name);
	return function;
}

static void wait_for_line(void)
{
	fflush(stdout);
	for (int c = getchar(); c != '\n' && c != EOF; c = getchar())
		;
}

static void launch(void *function, int times)
{
	for (int i = 0; i < times; i++)
		failed |= cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL);
}

static void launch_host(void (*function)(void), int times)
{
	struct dim3 one = {1, 1, 1};

	for (int i = 0; i < times; i++)
		failed |= cudaLaunchKernel((const void *)function, one, one, NULL, 0, NULL);
}

static void register_kernel(void **binary, void (*function)(void), char *name)
{
	__cudaRegisterFunction(binary, (const char *)function, name, name, -1, NULL, NULL, NULL, NULL, NULL);
}

int main(int count, char **words)
{
	void *pinned = NULL, *pinned_after = NULL, *context = NULL, **binary;
	static char registered[ROOM], pageable[ROOM];
	void *scale, *plain;
	uint64_t device = 0;

	failed |= cuInit(0);
	failed |= cuCtxCreate_v2(&context, 0, 0);
	failed |= cuMemAlloc_v2(&device, ROOM);
	failed |= cuMemHostAlloc(&pinned, ROOM, 0);
	failed |= cuMemHostRegister_v2(registered, ROOM, 0);
	scale = looked_up("_Z12driver_scalePfi");
	plain = looked_up("driver_plain");
	binary = __cudaRegisterFatBinary(NULL);
	register_kernel(binary, plain_kernel, "plain_kernel");
	register_kernel(binary, mangled_kernel, "_Z14mangled_kernelPfi");
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	wait_for_line();
	launch(scale, 2);
	launch(plain, 3);
	launch_host(plain_kernel, 5);
	launch_host(mangled_kernel, 7);
	failed |= cuMemHostAlloc(&pinned_after, ROOM, 0);
	failed |= cuMemcpyHtoD_v2(device, pinned, 11000);
	failed |= cuMemcpyHtoD_v2(device, registered, 1300);
	failed |= cuMemcpyHtoD_v2(device, pageable, 170);
	failed |= cuMemcpyHtoD_v2(device, pinned_after, 19);
	printf(
	    "{\"pid\":%d,\"launches\":{\"driver_scale(float*, int)\":2,\"driver_plain\":3,\"plain_kernel\":5,"
	    "\"mangled_kernel(float*, int)\":7},"
	    "\"copied\":{\"pinned before\":12300,\"pageable\":170,\"pinned after\":19}}\n",
	    (int)getpid());
	if (count > 1 && !strcmp(words[1], "--wait"))
		wait_for_line();
	return failed;
}
