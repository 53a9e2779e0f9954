/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Uses OpenCL in several threads and prints a ledger of every call, every byte, every launch and every error.
 * It checks results of kernels, which proves that it ran. Arguments: rounds of each thread, threads, and
 * `pause` to wait for a line of input after it has printed its live memory.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 64

struct count {
	const char *name;
	unsigned long n;
};

struct ledger {
	struct count calls[MOST], launches[MOST], errors[MOST];
	unsigned long allocated, freed, allocations, frees, failed_allocations;
	unsigned long h2d, d2h, d2d, fill, waiting, work_items;
};

static struct ledger total;
static __thread struct ledger *own = &total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cl_context context;
static cl_device_id device;
static cl_program program;

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
		add(own->calls, #function, 1);                                                               \
		check(#function, function(__VA_ARGS__));                                                     \
	} while (0)

/* the same for functions that return their status in an argument */
#define MAKE(variable, function, ...)                                                                        \
	do {                                                                                                 \
		cl_int status = 1;                                                                           \
		add(own->calls, #function, 1);                                                               \
		variable = function(__VA_ARGS__, &status);                                                   \
		check(#function, status);                                                                    \
	} while (0)

static const char *source =
    "__kernel void vector_add(__global const int *a, __global const int *b, __global int *c)"
    "{ size_t i = get_global_id(0); c[i] = a[i] + b[i]; }"
    "__kernel void twice(__global int *c) { c[get_global_id(0)] *= 2; }"
    "__kernel void plane(__global int *c) { c[get_global_id(1) * get_global_size(0) + get_global_id(0)] = 7; "
    "}";

static void *allocated(void *made, size_t bytes)
{
	own->allocations++;
	own->allocated += bytes;
	return made;
}

static cl_mem buffer(size_t bytes)
{
	cl_mem made;

	MAKE(made, clCreateBuffer, context, CL_MEM_READ_WRITE, bytes, NULL);
	return allocated(made, bytes);
}

/* Gives up a reference to an object; `bytes` if it is the last one. */
static void release(cl_mem object, size_t bytes)
{
	CALL(clReleaseMemObject, object);
	own->frees += bytes ? 1 : 0;
	own->freed += bytes;
}

static void fails(const char *error, cl_int expected, cl_int status)
{
	if (status != expected)
		check(error, status ? status : 1);
	add(own->errors, error, 1);
}

/* Calls that the library refuses. The argument for the status may be NULL. */
static void refused(cl_command_queue queue, cl_kernel kernel)
{
	cl_int status = 0;
	size_t none[3] = {0, 0, 0}, one = 1;

	add(own->calls, "clCreateBuffer", 2);
	own->failed_allocations += 2;
	clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, &status);
	fails("CL_INVALID_BUFFER_SIZE", CL_INVALID_BUFFER_SIZE, status);
	if (clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, NULL))
		check("clCreateBuffer of nothing", 1);
	add(own->errors, "returned NULL", 1);
	add(own->calls, "clEnqueueNDRangeKernel", 1);
	fails("CL_INVALID_WORK_DIMENSION", CL_INVALID_WORK_DIMENSION,
	      clEnqueueNDRangeKernel(queue, kernel, 4, NULL, none, NULL, 0, NULL, NULL));
	add(own->calls, "clEnqueueReadBuffer", 1);
	fails("CL_INVALID_MEM_OBJECT", CL_INVALID_MEM_OBJECT,
	      clEnqueueReadBuffer(queue, NULL, CL_TRUE, 0, one, none, 0, NULL, NULL));
	add(own->calls, "clCreateKernel", 1);
	clCreateKernel(program, "absent", &status);
	fails("CL_INVALID_KERNEL_NAME", CL_INVALID_KERNEL_NAME, status);
}

static void launch(cl_command_queue queue, cl_kernel kernel, const char *name, cl_uint dimensions,
		   const size_t *global, const size_t *local)
{
	unsigned long items = 1;

	for (cl_uint i = 0; i < dimensions; i++)
		items *= global[i];
	CALL(clEnqueueNDRangeKernel, queue, kernel, dimensions, NULL, global, local, 0, NULL, NULL);
	add(own->launches, name, 1);
	own->work_items += items;
}

static void write_buffer(cl_command_queue queue, cl_mem to, cl_bool waits, size_t bytes, const int *from)
{
	CALL(clEnqueueWriteBuffer, queue, to, waits, 0, bytes, from, 0, NULL, NULL);
	own->h2d += bytes;
	own->waiting += waits ? 1 : 0;
}

static void one_round(cl_command_queue queue, cl_kernel add_kernel, cl_kernel twice, int round, cl_mem *kept)
{
	size_t n = 64 * (1 + round % 3), bytes = n * sizeof(int), local = 32;
	int a[192], b[192], c[192];
	cl_mem da = buffer(bytes), db = buffer(bytes), dc = buffer(bytes);

	for (size_t i = 0; i < n; i++) {
		a[i] = (int)i + round;
		b[i] = 3 * (int)i;
	}
	write_buffer(queue, da, CL_TRUE, bytes, a);
	write_buffer(queue, db, CL_FALSE, bytes, b);
	CALL(clSetKernelArg, add_kernel, 0, sizeof(da), &da);
	CALL(clSetKernelArg, add_kernel, 1, sizeof(db), &db);
	CALL(clSetKernelArg, add_kernel, 2, sizeof(dc), &dc);
	launch(queue, add_kernel, "vector_add", 1, &n, round % 4 ? &local : NULL);
	if (round % 8 == 0) {
		CALL(clSetKernelArg, twice, 0, sizeof(dc), &dc);
		launch(queue, twice, "twice", 1, &n, NULL);
	}
	CALL(clEnqueueReadBuffer, queue, dc, CL_TRUE, 0, bytes, c, 0, NULL, NULL);
	own->d2h += bytes;
	own->waiting++;
	for (size_t i = 0; i < n; i++) {
		if (c[i] != (a[i] + b[i]) * (round % 8 ? 1 : 2)) {
			fprintf(stderr, "round %d: %zu is %d\n", round, i, c[i]);
			exit(4);
		}
	}
	release(da, bytes);
	release(db, bytes);
	/* one buffer of the first round is not freed */
	if (round)
		release(dc, bytes);
	else
		*kept = dc;
}

/* References, sub-buffers, images, SVM, pixels, rectangles, fills, maps: what a thread does once. */
static void objects(cl_command_queue queue)
{
	size_t origin[3] = {0, 0, 0}, region[3] = {64, 8, 1}, size[2] = {1024, 4}, local[2] = {16, 2};
	cl_buffer_region part = {.origin = 4096, .size = 4096};
	cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 64, .image_height = 16};
	cl_mem whole = buffer(16384), other = buffer(16384), sub, image;
	cl_kernel kernel, clone, all[4];
	char name[32], host[4096];
	cl_uint found;
	int zero = 0;
	void *svm, *mapped;

	/* a reference more, and two objects that share its memory, which they keep */
	CALL(clRetainMemObject, whole);
	MAKE(sub, clCreateSubBuffer, whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &part);
	release(whole, 0);
	release(whole, 0);
	CALL(clEnqueueFillBuffer, queue, sub, &zero, sizeof(zero), 0, 4096, 0, NULL, NULL);
	own->fill += 4096;
	CALL(clEnqueueCopyBuffer, queue, sub, other, 0, 0, 4096, 0, NULL, NULL);
	own->d2d += 4096;
	CALL(clEnqueueWriteBufferRect, queue, other, CL_TRUE, origin, origin, region, 0, 0, 0, 0, host, 0,
	     NULL, NULL);
	own->h2d += 512;
	own->waiting++;
	MAKE(mapped, clEnqueueMapBuffer, queue, other, CL_TRUE, CL_MAP_READ, 0, 4096, 0, NULL, NULL);
	CALL(clEnqueueUnmapMemObject, queue, other, mapped, 0, NULL, NULL);
	MAKE(image, clCreateImage, context, CL_MEM_READ_WRITE, &format, &desc, NULL);
	allocated(image, 64 * 16 * 4);
	CALL(clEnqueueWriteImage, queue, image, CL_TRUE, origin, region, 0, 0, host, 0, NULL, NULL);
	CALL(clEnqueueReadImage, queue, image, CL_TRUE, origin, region, 0, 0, host, 0, NULL, NULL);
	own->h2d += 64 * 8 * 4;
	own->d2h += 64 * 8 * 4;
	own->waiting += 2;
	release(image, 64 * 16 * 4);
	add(own->calls, "clSVMAlloc", 1);
	svm = allocated(clSVMAlloc(context, CL_MEM_READ_WRITE, 8192, 0), 8192);
	if (!svm)
		check("clSVMAlloc", 1);
	add(own->calls, "clSVMFree", 1);
	clSVMFree(context, svm);
	own->frees++;
	own->freed += 8192;
	/* kernels whose handles may be the same, one after the other */
	MAKE(kernel, clCreateKernel, program, "plane");
	CALL(clSetKernelArg, kernel, 0, sizeof(other), &other);
	launch(queue, kernel, "plane", 2, size, local);
	CALL(clFinish, queue);
	CALL(clReleaseKernel, kernel);
	CALL(clCreateKernelsInProgram, program, 4, all, &found);
	for (cl_uint i = 0; i < found; i++) {
		CALL(clGetKernelInfo, all[i], CL_KERNEL_FUNCTION_NAME, sizeof(name), name, NULL);
		if (!strcmp(name, "twice")) {
			MAKE(clone, clCloneKernel, all[i]);
			CALL(clSetKernelArg, clone, 0, sizeof(other), &other);
			launch(queue, clone, "twice", 1, &size[0], NULL);
			CALL(clFinish, queue);
			CALL(clReleaseKernel, clone);
		}
		CALL(clReleaseKernel, all[i]);
	}
	release(other, 16384);
	/* its memory, and that of the buffer that it is a part of */
	release(sub, 16384);
}

static void merge(const struct count *from, struct count *to)
{
	for (int i = 0; i < MOST && from[i].name; i++)
		add(to, from[i].name, from[i].n);
}

static int rounds;

static void *thread(void *unused)
{
	struct ledger mine = {0};
	unsigned long *to = &total.allocated, *from = &mine.allocated;
	cl_kernel add_kernel, twice;
	cl_command_queue queue;
	cl_mem kept = NULL;

	(void)unused;
	own = &mine;
	MAKE(queue, clCreateCommandQueue, context, device, 0);
	MAKE(add_kernel, clCreateKernel, program, "vector_add");
	MAKE(twice, clCreateKernel, program, "twice");
	refused(queue, twice);
	objects(queue);
	for (int round = 0; round < rounds; round++)
		one_round(queue, add_kernel, twice, round, &kept);
	CALL(clFinish, queue);
	CALL(clReleaseKernel, twice);
	CALL(clReleaseKernel, add_kernel);
	CALL(clReleaseCommandQueue, queue);
	pthread_mutex_lock(&lock);
	merge(mine.calls, total.calls);
	merge(mine.launches, total.launches);
	merge(mine.errors, total.errors);
	for (size_t i = 0; i < (sizeof(mine) - offsetof(struct ledger, allocated)) / sizeof(*to); i++)
		to[i] += from[i];
	pthread_mutex_unlock(&lock);
	return kept;
}

static void print_counts(const char *name, const struct count *counts)
{
	printf("\"%s\": {", name);
	for (int i = 0; i < MOST && counts[i].name; i++)
		printf("%s\"%s\": %lu", i ? ", " : "", counts[i].name, counts[i].n);
	printf("}, ");
}

static void print(void)
{
	printf("{\"pid\": %d, ", getpid());
	print_counts("calls", total.calls);
	print_counts("launches", total.launches);
	print_counts("errors", total.errors);
	printf("\"allocations\": %lu, \"allocated\": %lu, \"frees\": %lu, \"freed\": %lu, \"failed\": %lu, ",
	       total.allocations, total.allocated, total.frees, total.freed, total.failed_allocations);
	printf("\"live\": %lu, \"work_items\": %lu, \"fill\": %lu, ", total.allocated - total.freed,
	       total.work_items, total.fill);
	printf("\"H2D\": %lu, \"D2H\": %lu, \"D2D\": %lu, \"waiting\": %lu}\n", total.h2d, total.d2h,
	       total.d2d, total.waiting);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[2]) : 1;
	cl_platform_id platform;
	pthread_t running[64];
	void *kept[64];

	rounds = argc > 1 ? atoi(argv[1]) : 4;
	if (threads > 64)
		threads = 64;
	CALL(clGetPlatformIDs, 1, &platform, NULL);
	CALL(clGetDeviceIDs, platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL);
	MAKE(context, clCreateContext, NULL, 1, &device, NULL, NULL);
	MAKE(program, clCreateProgramWithSource, context, 1, &source, NULL);
	CALL(clBuildProgram, program, 1, &device, "", NULL, NULL);
	for (int i = 0; i < threads; i++)
		pthread_create(&running[i], NULL, thread, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(running[i], &kept[i]);
	if (argc > 3) {
		print();
		getchar();
		for (int i = 0; i < threads; i++)
			release(kept[i], 256);
		print();
		getchar();
	}
	CALL(clReleaseProgram, program);
	CALL(clReleaseContext, context);
	print();
	return 0;
}
