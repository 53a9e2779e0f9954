// Copies 64 MiB to the GPU and back repeatedly, from pinned or pageable memory, and measures the time of each
// copy. Prints one JSON object, and waits for a line on stdin before it exits.
//
//   bandwidth pinned|pageable ROUNDS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

static const size_t BYTES = 64 << 20;

static void check(cudaError_t status, const char *what)
{
	if (status != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
		exit(1);
	}
}

static double timed_copy(void *target, const void *source, cudaMemcpyKind kind)
{
	auto start = std::chrono::steady_clock::now();
	check(cudaMemcpy(target, source, BYTES, kind), "cudaMemcpy");
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: bandwidth pinned|pageable ROUNDS\n");
		return 2;
	}
	bool pinned = !strcmp(argv[1], "pinned");
	int rounds = atoi(argv[2]);
	void *host = nullptr, *device = nullptr;
	if (pinned)
		check(cudaHostAlloc(&host, BYTES, cudaHostAllocDefault), "cudaHostAlloc");
	else
		host = malloc(BYTES);
	memset(host, 1, BYTES);
	check(cudaMalloc(&device, BYTES), "cudaMalloc");
	double to_device = 0, from_device = 0;
	for (int i = 0; i < rounds; i++) {
		to_device += timed_copy(device, host, cudaMemcpyHostToDevice);
		from_device += timed_copy(host, device, cudaMemcpyDeviceToHost);
	}
	printf("{\"pid\":%d,\"memory\":\"%s\",\"rounds\":%d,\"bytes\":%zu,\"seconds\":{\"H2D\":%.9f,\"D2H\":%"
	       ".9f}}\n",
	       getpid(), argv[1], rounds, rounds * BYTES, to_device, from_device);
	fflush(stdout);
	getchar();
	return 0;
}
