/* Checks the behaviour that programs rely on; exits with the number of failed checks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda_api.h"

static int failures;

static void check(int condition, const char *text)
{
	if (!condition) {
		printf("failed: %s\n", text);
		failures++;
	}
}

#define CHECK(condition) check(condition, #condition)

static void freed_addresses_are_reused_at_once(void)
{
	void *first, *second, *third, *again;

	CHECK(!cudaMalloc(&first, 1000));
	CHECK(!cudaMalloc(&second, 1000));
	CHECK(!cudaMalloc(&third, 1000));
	CHECK(first != second && second != third);
	CHECK(!cudaFree(first));
	CHECK(!cudaFree(third));
	CHECK(!cudaMalloc(&again, 1001));
	CHECK(again == third);
	CHECK(!cudaMalloc(&again, 900));
	CHECK(again == first);
	CHECK(!cudaMallocAsync(&again, 1000, NULL));
	CHECK(again != second);
	CHECK(!cudaFreeAsync(again, NULL));
}

static void host_visible_memory_can_be_written(void)
{
	void *pinned, *managed;

	CHECK(!cudaMallocHost(&pinned, 5000));
	CHECK(!cudaMallocManaged(&managed, 5000, 1));
	memset(pinned, 1, 5000);
	memset(managed, 2, 5000);
	CHECK(cudaFree(pinned) == 1);
	CHECK(!cudaFreeHost(pinned));
	CHECK(!cudaFree(managed));
}

static void failures_have_the_right_codes(void)
{
	void *out = (void *)0x1234;

	cudaGetLastError();
	CHECK(cudaMalloc(&out, (size_t)2 << 40) == 2);
	CHECK(cudaMalloc(&out, (size_t)81 << 30) == 2);
	CHECK(out == (void *)0x1234);
	CHECK(cudaPeekAtLastError() == 2);
	CHECK(cudaGetLastError() == 2);
	CHECK(cudaGetLastError() == 0);
	CHECK(cudaFree(NULL) == 0);
	CHECK(cudaFree((void *)0x666000000000) == 1);
	CHECK(cudaMalloc(&out, 64) == 0 && cudaFree(out) == 0 && cudaFree(out) == 1);
	CHECK(cudaSetDevice(7) == 101);
	CHECK(cudaMemcpy(out, out, 1, 9) == 21);
	CHECK(!strcmp(cudaGetErrorName(2), "cudaErrorMemoryAllocation"));
}

static void pitched_memory_has_rows_of_512(void)
{
	struct cudaPitchedPtr box;
	size_t pitch, free_bytes, total, now;
	void *out;

	CHECK(!cudaMemGetInfo(&free_bytes, &total) && total == (size_t)80 << 30);
	CHECK(!cudaMallocPitch(&out, &pitch, 513, 10) && pitch == 1024);
	CHECK(!cudaMemGetInfo(&now, &total) && free_bytes - now == 10240);
	CHECK(!cudaMalloc3D(&box, (struct cudaExtent){100, 4, 3}));
	CHECK(box.pitch == 512 && box.xsize == 100 && box.ysize == 4);
	CHECK(!cudaFree(out) && !cudaFree(box.ptr));
}

static void entry_points_are_the_exports(void)
{
	int (*get)(const char *, void **, int, unsigned long long, int *);
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found;

	CHECK(driver != NULL);
	if (!driver)
		return;
	*(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
	CHECK(!get("cuMemAlloc", &found, 12000, 0, NULL) && found == dlsym(driver, "cuMemAlloc_v2"));
	CHECK(!get("cuMemcpyHtoD", &found, 12000, 2, NULL) && found == dlsym(driver, "cuMemcpyHtoD_v2_ptds"));
	CHECK(!get("cuInit", &found, 12000, 0, NULL) && found == dlsym(driver, "cuInit"));
	CHECK(get("cuNoSuchThing", &found, 12000, 0, NULL) == 500);
}

int main(void)
{
	freed_addresses_are_reused_at_once();
	host_visible_memory_can_be_written();
	failures_have_the_right_codes();
	pitched_memory_has_rows_of_512();
	entry_points_are_the_exports();
	return failures;
}
