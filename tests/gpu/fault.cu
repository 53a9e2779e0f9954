// A kernel that writes where nothing is: the GPU reports an error, and every call after it fails.
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
