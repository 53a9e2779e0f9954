// Adds two vectors on the GPU and prints each step: allocate, copy in, launch, synchronize, copy out, free.
//
//   basic [--json]      --json prints the calls as one object at the end, for comparison with a trace
//
// Exits with 0 if every sum is right, with 1 if a call failed or a sum is wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

constexpr int ELEMENTS = 1000;
constexpr unsigned int THREADS = 256;

__global__ void add(const float *a, const float *b, float *sum, int count)
{
	int i = int(blockIdx.x * blockDim.x + threadIdx.x);

	if (i < count)
		sum[i] = a[i] + b[i];
}

static void check(cudaError_t status, const char *call)
{
	if (status != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const bool json = argc > 1 && !strcmp(argv[1], "--json");
	const size_t bytes = ELEMENTS * sizeof(float);
	std::vector<float> a(ELEMENTS), b(ELEMENTS), sum(ELEMENTS);
	void *device[3];

	for (int i = 0; i < ELEMENTS; i++) {
		a[i] = float(i + 1);
		b[i] = float(2 * i);
	}
	for (void *&pointer : device) {
		check(cudaMalloc(&pointer, bytes), "cudaMalloc");
		printf("allocated %zu bytes at %p\n", bytes, pointer);
	}
	check(cudaMemcpy(device[0], a.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	check(cudaMemcpy(device[1], b.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	printf("copied 2 x %zu bytes to the device\n", bytes);

	const dim3 grid((ELEMENTS + THREADS - 1) / THREADS), block(THREADS);
	int count = ELEMENTS;
	void *arguments[] = {&device[0], &device[1], &device[2], &count};
	check(cudaLaunchKernel((const void *)add, grid, block, arguments, 0, nullptr), "cudaLaunchKernel");
	printf("launched %u blocks of %u threads\n", grid.x, block.x);
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	check(cudaMemcpy(sum.data(), device[2], bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
	printf("copied %zu bytes from the device\n", bytes);
	for (void *pointer : device)
		check(cudaFree(pointer), "cudaFree");
	printf("freed all 3 allocations\n");

	int right = 0;
	for (int i = 0; i < ELEMENTS; i++)
		right += sum[i] == a[i] + b[i];
	printf("%d of %d sums are right\n", right, ELEMENTS);
	if (json)
		printf("{\"calls\":{\"cudaMalloc\":3,\"cudaMemcpy\":3,\"cudaLaunchKernel\":1,"
		       "\"cudaDeviceSynchronize\":1,\"cudaFree\":3},\"errors\":{},\"launches\":1,"
		       "\"copied\":{\"H2D\":%zu,\"D2H\":%zu},\"allocated\":{\"device\":%zu},\"live\":{},"
		       "\"right\":%d}\n",
		       2 * bytes, bytes, 3 * bytes, right);
	return right == ELEMENTS ? 0 : 1;
}
