/*
 * Enough for any C++ compiler to compile a CUDA C++ program that launches with cudaLaunchKernel, and to link
 * it with a stand-in. Kernels compile but never run.
 */
#ifndef STANDIN_CUDA_RUNTIME_H
#define STANDIN_CUDA_RUNTIME_H

#include <stddef.h>

#define __global__

struct dim3 {
	unsigned int x, y, z;
	dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z)
	{
	}
};

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost };
typedef struct CUstream_st *cudaStream_t;

static const dim3 blockIdx, blockDim, threadIdx;

extern "C" {
cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, cudaMemcpyKind kind);
cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
			     cudaStream_t stream);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetDevice(int *device);
const char *cudaGetErrorString(cudaError_t error);
}

#endif
