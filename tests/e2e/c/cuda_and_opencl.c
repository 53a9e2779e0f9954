/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Uses the CUDA driver and OpenCL in turns and prints a ledger of both. Arguments: the path of libcuda,
 * rounds.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *libcuda;
static cl_context context;
static cl_command_queue queue;
static cl_device_id device;
static cl_platform_id platform;

static void check(int status)
{
	if (status) {
		fprintf(stderr, "failed: %d\n", status);
		exit(1);
	}
}

static int cuda(const char *name, void *a, unsigned long b, unsigned long c, unsigned long d)
{
	int (*function)(void *, unsigned long, unsigned long, unsigned long) = dlsym(libcuda, name);

	return function ? function(a, b, c, d) : -1;
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 10;
	char host[5000] = "";
	unsigned long memory = 0, moved = 0;
	int gpu = 0, status;
	void *current = NULL;

	libcuda = dlopen(argv[1], RTLD_NOW);
	if (!libcuda) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	check(cuda("cuInit", NULL, 0, 0, 0));
	check(cuda("cuDeviceGet", &gpu, 0, 0, 0));
	check(cuda("cuDevicePrimaryCtxRetain", &current, gpu, 0, 0));
	/* gpuprobe does not record cuDeviceGet and this one: they are called all the time */
	check(cuda("cuCtxSetCurrent", current, 0, 0, 0));
	check(clGetPlatformIDs(1, &platform, NULL));
	check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
	check(status);
	queue = clCreateCommandQueue(context, device, 0, &status);
	check(status);
	for (int i = 0; i < rounds; i++) {
		cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, 4000, NULL, &status);

		check(status);
		check(cuda("cuMemAlloc_v2", &memory, 5000, 0, 0));
		check(cuda("cuMemcpyHtoD_v2", (void *)memory, (unsigned long)host, 5000, 0));
		check(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, 4000, host, 0, NULL, NULL));
		moved++;
		check(clReleaseMemObject(buffer));
		check(cuda("cuMemFree_v2", (void *)memory, 0, 0, 0));
	}
	check(clReleaseCommandQueue(queue));
	check(clReleaseContext(context));
	printf("{\"pid\": %d, \"cuda\": {\"cuInit\": 1, \"cuDevicePrimaryCtxRetain\": 1, "
	       "\"cuMemAlloc_v2\": %d, \"cuMemcpyHtoD_v2\": %d, \"cuMemFree_v2\": %d}, ",
	       getpid(), rounds, rounds, rounds);
	printf("\"opencl\": {\"clGetPlatformIDs\": 1, \"clGetDeviceIDs\": 1, \"clCreateContext\": 1, "
	       "\"clCreateCommandQueue\": 1, \"clCreateBuffer\": %d, \"clEnqueueWriteBuffer\": %d, "
	       "\"clReleaseMemObject\": %d, \"clReleaseCommandQueue\": 1, \"clReleaseContext\": 1}, ",
	       rounds, rounds, rounds);
	printf("\"cuda_allocated\": %lu, \"cuda_freed\": %lu, \"cuda_copied\": %lu, ", 5000 * moved,
	       5000 * moved, 5000 * moved);
	printf("\"opencl_allocated\": %lu, \"opencl_freed\": %lu, \"opencl_copied\": %lu}\n", 4000 * moved,
	       4000 * moved, 4000 * moved);
	return 0;
}
