/*
 * A short training loop for `gpuprobe demo`: two threads, named kernels, copies that take time, one call that
 * fails and one allocation that is never freed. Takes two to three seconds and ends with four lines for the
 * user.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_api.h"

#define STEPS 55
#define BATCH_BYTES 4000000
#define MODEL_BYTES 8000000
#define PREFETCHES 45

void vector_add(void)
{
	__asm__ volatile("");
}

void matmul_tile(void)
{
	__asm__ volatile("nop");
}

void reduce_sum(void)
{
	__asm__ volatile("nop; nop");
}

static char host[BATCH_BYTES];
static void **module;

static void register_kernel(void (*function)(void), char *name)
{
	__cudaRegisterFunction(module, (const char *)function, name, name, -1, NULL, NULL, NULL, NULL, NULL);
}

__attribute__((constructor)) static void register_kernels(void)
{
	/* delays similar to those of a small GPU; the caller's own are used as they are */
	setenv("STANDIN_DELAY",
	       "cuMemcpyHtoD_v2:900,cuMemcpyDtoH_v2:1100,cuMemcpyHtoDAsync_v2:40,cuStreamSynchronize:6000,"
	       "cuMemAlloc_v2:90,cuMemFree_v2:60,cuLaunchKernel:5",
	       0);
	module = __cudaRegisterFatBinary(NULL);
	register_kernel(vector_add, "vector_add");
	register_kernel(matmul_tile, "matmul_tile");
	register_kernel(reduce_sum, "reduce_sum");
	__cudaRegisterFatBinaryEnd(module);
}

static void launch(void (*function)(void), unsigned int blocks, unsigned int threads, void *stream)
{
	cudaLaunchKernel((const void *)function, (struct dim3){blocks, 1, 1}, (struct dim3){threads, 1, 1},
			 NULL, 0, stream);
}

static void pause_ms(long ms)
{
	struct timespec left = {0, ms * 1000000};

	while (nanosleep(&left, &left))
		;
}

static void *load_batches(void *unused)
{
	void *staging, *device, *stream;

	cudaStreamCreate(&stream);
	cudaMallocHost(&staging, 1 << 20);
	cudaMalloc(&device, 1 << 20);
	for (int i = 0; i < PREFETCHES; i++) {
		cudaMemcpyAsync(device, staging, 1 << 20, COPY_H2D, stream);
		launch(vector_add, 64, 256, stream);
		cudaStreamSynchronize(stream);
		pause_ms(40);
	}
	cudaFree(device);
	cudaFreeHost(staging);
	cudaStreamDestroy(stream);
	return unused;
}

int main(void)
{
	void *models[3], *batch, *stream, *huge;
	pthread_t loader;
	float loss;
	int failed;

	if (pthread_create(&loader, NULL, load_batches, NULL))
		return 1;
	cudaStreamCreate(&stream);
	for (int i = 0; i < 3; i++)
		cudaMalloc(&models[i], MODEL_BYTES);
	cudaMalloc(&batch, BATCH_BYTES);
	for (int step = 0; step < STEPS; step++) {
		cudaMemcpy(batch, host, BATCH_BYTES, COPY_H2D);
		for (int layer = 0; layer < 4; layer++)
			launch(matmul_tile, 128, 256, stream);
		launch(reduce_sum, 16, 512, stream);
		cudaStreamSynchronize(stream);
		cudaMemcpy(&loss, models[0], sizeof(loss), COPY_D2H);
		pause_ms(35);
	}
	failed = cudaMalloc(&huge, (size_t)2 << 40);
	cudaGetLastError();
	cudaFree(batch);
	cudaFree(models[0]);
	cudaFree(models[2]);
	cudaStreamDestroy(stream);
	pthread_join(loader, NULL);
	printf("trained %d steps on a stand-in GPU, with a second thread that loaded %d batches\n", STEPS,
	       PREFETCHES);
	printf("launched matmul_tile %d, reduce_sum %d and vector_add %d times\n", 4 * STEPS, STEPS,
	       PREFETCHES);
	printf("copied %.1f MB to the device; one allocation of 2 TiB failed with %s\n",
	       (STEPS * (double)BATCH_BYTES + PREFETCHES * (double)(1 << 20)) / 1e6,
	       cudaGetErrorName(failed));
	printf("forgot to free one of three allocations of %d bytes\n", MODEL_BYTES);
	__cudaUnregisterFatBinary(module);
	return 0;
}
