/* Checks the behaviour of contexts, devices and physical memory; exits with the number of failed checks. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_api.h"

#define MIB ((size_t)1 << 20)

static int failures;

static void check(int condition, const char *text)
{
	if (!condition) {
		printf("failed: %s\n", text);
		failures++;
	}
}

#define CHECK(condition) check(condition, #condition)

static size_t used(void)
{
	size_t free_bytes = 0, total = 0;

	CHECK(!cudaMemGetInfo(&free_bytes, &total));
	return total - free_bytes;
}

static void visible_devices_are_those_chosen(void)
{
	const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
	char uuid[16] = {0};
	int count = -1;

	CHECK(!cuDeviceGetCount(&count));
	if (chosen) {
		/* "2,0,9,1": devices from the invalid entry on are not visible */
		CHECK(count == 2);
		CHECK(!cuDeviceGetUuid_v2(uuid, 0) && uuid[0] == 0x13);
		CHECK(!cuDeviceGetUuid_v2(uuid, 1) && uuid[0] == 0x11);
		CHECK(cuDeviceGetUuid_v2(uuid, 2) == 101);
		CHECK(cudaSetDevice(2) == 101);
		exit(failures);
	}
	CHECK(count == 4);
	CHECK(cudaSetDevice(4) == 101);
}

static void contexts_stack_up_on_a_thread(void)
{
	void *first, *second, *current;
	int device;

	CHECK(!cuCtxCreate_v2(&first, 0, 1) && !cuCtxGetDevice(&device) && device == 1);
	CHECK(!cuCtxCreate_v2(&second, 0, 2) && !cuCtxGetDevice(&device) && device == 2);
	CHECK(!cuCtxPopCurrent_v2(&current) && current == second);
	CHECK(!cuCtxGetCurrent(&current) && current == first);
	CHECK(!cuCtxSetCurrent(second) && !cuCtxGetCurrent(&current) && current == second);
	CHECK(!cuCtxDestroy_v2(first) && cuCtxDestroy_v2(first) == 201);
	CHECK(cuCtxPushCurrent_v2(first) == 201 && cuCtxSetCurrent(first) == 201);
	CHECK(!cuCtxDestroy_v2(second) && !cuCtxGetCurrent(&current) && !current);
	CHECK(cuCtxPopCurrent_v2(&current) == 201);
}

static void a_context_takes_its_memory_with_it(void)
{
	void *context, *other, *block, *pinned, *array;
	struct cudaChannelFormatDesc bytes = {8, 0, 0, 0, 1};
	char own[64];

	CHECK(!cuCtxCreate_v2(&context, 0, 3) && used() == 0);
	CHECK(!cudaMalloc(&block, 1000) && !cudaMallocHost(&pinned, 1000));
	CHECK(!cudaMallocArray(&array, &bytes, 10, 10, 0) && !cudaHostRegister(own, sizeof(own), 0));
	CHECK(cudaHostRegister(own, sizeof(own), 0) == 712 && used() == 1100);
	CHECK(!cuCtxDestroy_v2(context));
	CHECK(cudaFree(block) == 1 && cudaFreeHost(pinned) == 1 && cudaFreeArray(array) == 400);
	CHECK(cudaHostUnregister(own) == 713);
	CHECK(!cuCtxCreate_v2(&other, 0, 3) && other == context && used() == 0);
	CHECK(!cuCtxDestroy_v2(other));
}

static void the_last_release_ends_a_primary_context(void)
{
	uint64_t block;
	void *context, *same;

	CHECK(cuDevicePrimaryCtxRelease_v2(2) == 201);
	CHECK(!cuDevicePrimaryCtxRetain(&context, 2) && !cuDevicePrimaryCtxRetain(&same, 2) &&
	      context == same);
	CHECK(!cuCtxPushCurrent_v2(context) && !cuMemAlloc_v2(&block, 1000));
	CHECK(!cuDevicePrimaryCtxRelease_v2(2) && used() == 1000);
	CHECK(!cuDevicePrimaryCtxRelease_v2(2) && cuMemFree_v2(block) == 1);
	CHECK(cuMemAlloc_v2(&block, 1000) == 709);
	CHECK(!cuCtxPopCurrent_v2(&same) && cuDevicePrimaryCtxRelease_v2(2) == 201);
}

static void the_runtime_retains_what_it_chooses(void)
{
	void *context, *block;
	int device;

	CHECK(!cudaSetDevice(1) && !cuCtxGetDevice(&device) && device == 1);
	CHECK(!cudaMalloc(&block, 1000) && used() == 1000);
	CHECK(!cuDevicePrimaryCtxRetain(&context, 1) && !cuDevicePrimaryCtxRelease_v2(1) && used() == 1000);
	CHECK(!cudaDeviceReset() && used() == 0 && cudaFree(block) == 1);
	CHECK(!cudaMalloc(&block, 1000) && !cudaFree(block) && !cudaSetDevice(0));
}

static void mipmapped_arrays_halve(void)
{
	struct cudaChannelFormatDesc floats = {32, 32, 0, 0, 2};
	size_t before = used();
	void *array;

	CHECK(!cudaMallocMipmappedArray(&array, &floats, (struct cudaExtent){9, 4, 0}, 4, 0));
	CHECK(used() - before == (9 * 4 + 4 * 2 + 2 * 1 + 1 * 1) * 8);
	CHECK(cudaFreeArray(array) == 400 && !cudaFreeMipmappedArray(array) && used() == before);
}

static void physical_memory_is_where_its_properties_say(void)
{
	struct CUmemAllocationProp prop = {.type = 1, .location = {1, 1}};
	uint64_t base, handle, again;

	CHECK(!cudaSetDevice(0) && !cuMemAddressReserve(&base, 8 * MIB, 0, 0, 0));
	CHECK(!cuMemCreate(&handle, 2 * MIB, &prop, 0) && used() == 0);
	CHECK(!cudaSetDevice(1) && used() == 2 * MIB);
	CHECK(!cuMemMap(base, 2 * MIB, 0, handle, 0) && cuMemMap(base, 2 * MIB, 0, handle, 0) == 1);
	CHECK(!cuMemMap(base + 2 * MIB, 2 * MIB, 0, handle, 0));
	CHECK(cuMemUnmap(base, 3 * MIB) == 1 && cuMemUnmap(base, 8 * MIB) == 1);
	CHECK(!cuMemRelease(handle) && cuMemRelease(handle) == 1 && used() == 2 * MIB);
	CHECK(!cuMemRetainAllocationHandle(&again, base + 3 * MIB) && again == handle);
	CHECK(!cuMemUnmap(base, 4 * MIB) && used() == 2 * MIB && !cuMemRelease(again) && used() == 0);
	CHECK(!cuMemCreate(&again, 4 * MIB, &prop, 0) && again == handle && !cuMemRelease(again));
	prop.location.id = 4;
	CHECK(cuMemCreate(&again, 2 * MIB, &prop, 0) == 101);
	CHECK(!cudaSetDevice(0));
}

static void a_child_begins_anew(void)
{
	int status = -1;
	void *block;
	pid_t pid;

	CHECK(!cudaMalloc(&block, 1000));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		failures = 0;
		CHECK(used() == 0 && cudaFree(block) == 1);
		fflush(stdout);
		_exit(failures);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(used() == 1000 && !cudaFree(block));
}

int main(void)
{
	visible_devices_are_those_chosen();
	contexts_stack_up_on_a_thread();
	a_context_takes_its_memory_with_it();
	the_last_release_ends_a_primary_context();
	the_runtime_retains_what_it_chooses();
	mipmapped_arrays_halve();
	physical_memory_is_where_its_properties_say();
	a_child_begins_anew();
	return failures;
}
