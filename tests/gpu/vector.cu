// A CUDA program that counts its calls: allocations, copies in both directions, launches of two kernels, frees,
// synchronizations, one allocation that is too large and one that is never freed. Prints one JSON object.
#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void vector_add(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] + b[i];
}

template <typename T> __global__ void scale(T *x, T factor, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		x[i] *= factor;
}

static void check(cudaError_t status, const char *what)
{
	if (status != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? atoi(argv[1]) : 1000;
	const int n = 1 << 20;
	const size_t bytes = n * sizeof(float);
	std::vector<float> host(n, 1.0f);
	float *device[3], *pinned, *managed, *pooled, *huge;
	cudaStream_t stream;

	for (auto &pointer : device)
		check(cudaMalloc(&pointer, bytes), "cudaMalloc");
	check(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault), "cudaHostAlloc");
	check(cudaMallocManaged(&managed, bytes), "cudaMallocManaged");
	check(cudaStreamCreate(&stream), "cudaStreamCreate");
	check(cudaMallocAsync(&pooled, bytes, stream), "cudaMallocAsync");
	check(cudaMemcpy(device[0], host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	check(cudaMemcpy(device[1], host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	for (int i = 0; i < steps; i++) {
		vector_add<<<(n + 255) / 256, 256, 0, stream>>>(device[0], device[1], device[2], n);
		scale<float><<<(n + 511) / 512, 512, 0, stream>>>(device[2], 0.5f, n);
		if (i % 100 == 0)
			check(cudaMemcpyAsync(pinned, device[2], bytes, cudaMemcpyDeviceToHost, stream), "async");
	}
	check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
	check(cudaMemcpy(host.data(), device[2], bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
	int failed = cudaMalloc(&huge, size_t(1) << 50);
	cudaGetLastError();
	check(cudaFreeAsync(pooled, stream), "cudaFreeAsync");
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	check(cudaFree(managed), "cudaFree");
	check(cudaFreeHost(pinned), "cudaFreeHost");
	check(cudaFree(device[0]), "cudaFree");
	check(cudaFree(device[1]), "cudaFree");
	check(cudaStreamDestroy(stream), "cudaStreamDestroy");

	const int asyncs = (steps + 99) / 100;
	printf("{\"calls\":{\"cudaMalloc\":4,\"cudaHostAlloc\":1,\"cudaMallocManaged\":1,\"cudaMallocAsync\":1,"
	       "\"cudaStreamCreate\":1,\"cudaMemcpy\":3,\"cudaMemcpyAsync\":%d,\"cudaLaunchKernel\":%d,"
	       "\"cudaStreamSynchronize\":1,\"cudaDeviceSynchronize\":1,\"cudaFreeAsync\":1,\"cudaFree\":3,"
	       "\"cudaFreeHost\":1,\"cudaStreamDestroy\":1},",
	       asyncs, 2 * steps);
	printf("\"errors\":{\"cudaMalloc\":{\"%d\":1}},", failed);
	printf("\"launches\":%d,\"copied\":{\"H2D\":%zu,\"D2H\":%zu},", 2 * steps, 2 * bytes, (asyncs + 1) * bytes);
	printf("\"allocated\":{\"device\":%zu,\"pinned\":%zu,\"managed\":%zu,\"pool\":%zu},", 3 * bytes, bytes, bytes,
	       bytes);
	printf("\"live\":{\"device\":%zu}}\n", bytes);
	return 0;
}
