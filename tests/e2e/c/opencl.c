/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Adds vectors with OpenCL for a given number of rounds and prints a ledger of every call, every byte and
 * every launch. It checks the results, which proves that it ran.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 32

struct count {
	const char *name;
	unsigned long n;
};

static struct count calls[MOST], launches[MOST];
static unsigned long allocated, freed, allocations, frees, failed_allocations;
static unsigned long h2d, d2h, d2d, waiting;

static void add(struct count *counts, const char *name, unsigned long n)
{
	for (int i = 0; i < MOST; i++) {
		if (counts[i].name && strcmp(counts[i].name, name))
			continue;
		counts[i].name = name;
		counts[i].n += n;
		return;
	}
	fprintf(stderr, "the ledger has no room for %s\n", name);
	exit(3);
}

static void check(const char *name, cl_int status)
{
	if (status != CL_SUCCESS) {
		fprintf(stderr, "%s: %d\n", name, status);
		exit(1);
	}
}

/* counts a call, and exits if it fails */
#define CALL(function, ...)                                                                                  \
	do {                                                                                                 \
		add(calls, #function, 1);                                                                    \
		check(#function, function(__VA_ARGS__));                                                     \
	} while (0)

/* the same for functions that return their status in an argument */
#define MAKE(variable, function, ...)                                                                        \
	do {                                                                                                 \
		cl_int status = 1;                                                                           \
		add(calls, #function, 1);                                                                    \
		variable = function(__VA_ARGS__, &status);                                                   \
		check(#function, status);                                                                    \
	} while (0)

static const char *source =
    "__kernel void vector_add(__global const int *a, __global const int *b, __global int *c)"
    "{ size_t i = get_global_id(0); c[i] = a[i] + b[i]; }"
    "__kernel void twice(__global int *c) { c[get_global_id(0)] *= 2; }";

static cl_mem buffer(cl_context context, size_t bytes)
{
	cl_mem made;

	MAKE(made, clCreateBuffer, context, CL_MEM_READ_WRITE, bytes, NULL);
	allocations++;
	allocated += bytes;
	return made;
}

static void release(cl_mem buffer, size_t bytes)
{
	CALL(clReleaseMemObject, buffer);
	frees++;
	freed += bytes;
}

/* A size of 0 is refused. The argument for the status may be NULL. */
static void refused(cl_context context)
{
	cl_int status = 0;

	add(calls, "clCreateBuffer", 2);
	failed_allocations += 2;
	if (clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, &status) ||
	    status != CL_INVALID_BUFFER_SIZE || clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, NULL))
		check("clCreateBuffer of nothing", status ? status : 1);
}

static void launch(cl_command_queue queue, cl_kernel kernel, const char *name, size_t threads)
{
	CALL(clEnqueueNDRangeKernel, queue, kernel, 1, NULL, &threads, NULL, 0, NULL, NULL);
	add(launches, name, 1);
}

static void write_buffer(cl_command_queue queue, cl_mem to, cl_bool waits, size_t bytes, const int *from)
{
	CALL(clEnqueueWriteBuffer, queue, to, waits, 0, bytes, from, 0, NULL, NULL);
	h2d += bytes;
	waiting += waits ? 1 : 0;
}

static void one_round(cl_context context, cl_command_queue queue, cl_kernel add_kernel, cl_kernel twice,
		      int round)
{
	size_t n = 256 * (1 + round % 3), bytes = n * sizeof(int);
	int *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
	cl_mem da = buffer(context, bytes), db = buffer(context, bytes), dc = buffer(context, bytes);

	for (size_t i = 0; i < n; i++) {
		a[i] = (int)i + round;
		b[i] = 3 * (int)i;
	}
	write_buffer(queue, da, CL_TRUE, bytes, a);
	write_buffer(queue, db, CL_FALSE, bytes, b);
	check("clSetKernelArg", clSetKernelArg(add_kernel, 0, sizeof(da), &da));
	check("clSetKernelArg", clSetKernelArg(add_kernel, 1, sizeof(db), &db));
	check("clSetKernelArg", clSetKernelArg(add_kernel, 2, sizeof(dc), &dc));
	check("clSetKernelArg", clSetKernelArg(twice, 0, sizeof(dc), &dc));
	launch(queue, add_kernel, "vector_add", n);
	if (round % 2)
		launch(queue, twice, "twice", n);
	CALL(clEnqueueCopyBuffer, queue, dc, da, 0, 0, bytes, 0, NULL, NULL);
	d2d += bytes;
	CALL(clEnqueueReadBuffer, queue, da, CL_TRUE, 0, bytes, c, 0, NULL, NULL);
	d2h += bytes;
	waiting++;
	CALL(clFinish, queue);
	for (size_t i = 0; i < n; i++) {
		if (c[i] != (a[i] + b[i]) * (round % 2 ? 2 : 1)) {
			fprintf(stderr, "round %d: %zu is %d\n", round, i, c[i]);
			exit(4);
		}
	}
	release(da, bytes);
	release(db, bytes);
	/* one buffer of the first round is not freed */
	if (round)
		release(dc, bytes);
	free(a);
	free(b);
	free(c);
}

static void print_counts(const char *name, const struct count *counts)
{
	printf("\"%s\": {", name);
	for (int i = 0; i < MOST && counts[i].name; i++)
		printf("%s\"%s\": %lu", i ? ", " : "", counts[i].name, counts[i].n);
	printf("}, ");
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 4;
	cl_platform_id platform;
	cl_device_id device;
	cl_context context;
	cl_command_queue queue;
	cl_program program;
	cl_kernel add_kernel, twice;

	check("clGetPlatformIDs", clGetPlatformIDs(1, &platform, NULL));
	check("clGetDeviceIDs", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	MAKE(context, clCreateContext, NULL, 1, &device, NULL, NULL);
	MAKE(queue, clCreateCommandQueue, context, device, 0);
	MAKE(program, clCreateProgramWithSource, context, 1, &source, NULL);
	CALL(clBuildProgram, program, 1, &device, "", NULL, NULL);
	MAKE(add_kernel, clCreateKernel, program, "vector_add");
	MAKE(twice, clCreateKernel, program, "twice");
	refused(context);
	for (int round = 0; round < rounds; round++)
		one_round(context, queue, add_kernel, twice, round);
	CALL(clReleaseKernel, twice);
	CALL(clReleaseKernel, add_kernel);
	CALL(clReleaseProgram, program);
	CALL(clReleaseCommandQueue, queue);
	CALL(clReleaseContext, context);
	printf("{\"pid\": %d, ", getpid());
	print_counts("calls", calls);
	print_counts("launches", launches);
	printf("\"allocations\": %lu, \"allocated\": %lu, \"frees\": %lu, \"freed\": %lu, \"failed\": %lu, ",
	       allocations, allocated, frees, freed, failed_allocations);
	printf("\"H2D\": %lu, \"D2H\": %lu, \"D2D\": %lu, \"waiting\": %lu}\n", h2d, d2h, d2d, waiting);
	return 0;
}
