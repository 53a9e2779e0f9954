// A CUDA kernel that writes to an unmapped address: the GPU reports an error, and every later call fails.
#include <cstdio>

__global__ void write_nowhere(int *nowhere)
{
	*nowhere = 1;
}

int main()
{
	write_nowhere<<<1, 1>>>((int *)0x10);
	cudaError_t error = cudaDeviceSynchronize();
	printf("{\"error\": %d, \"name\": \"%s\"}\n", error, cudaGetErrorName(error));
	return error == cudaSuccess;
}
