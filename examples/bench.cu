// Measures how long calls of the CUDA runtime take on average. Run it alone and under gpuprobe: the difference
// is the cost of a probe.
//
//   bench [--json] [ROUNDS]      each operation is called ROUNDS times (default 1000), after a tenth to warm up
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

constexpr size_t MEBIBYTE = 1 << 20;
// the most allocations that are live at the same time
constexpr int BATCH = 64;

__global__ void nothing()
{
}

static void check(cudaError_t status, const char *call)
{
	if (status != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
		exit(1);
	}
}

struct Operation {
	const char *name, *function;
	size_t bytes;
	int calls;
	double seconds;

	double average_us() const
	{
		return seconds / calls * 1e6;
	}
};

// The time of this many rounds, in seconds.
template <typename Call> static double timed(int rounds, Call call)
{
	const auto start = std::chrono::steady_clock::now();

	for (int i = 0; i < rounds; i++)
		call(i);
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Allocations and frees alternate in batches, so that at most one batch is live.
static void allocations(int rounds, Operation &allocate, Operation &release)
{
	void *live[BATCH];

	while (rounds > 0) {
		const int batch = rounds < BATCH ? rounds : BATCH;

		allocate.seconds +=
		    timed(batch, [&](int i) { check(cudaMalloc(&live[i], MEBIBYTE), "cudaMalloc"); });
		release.seconds += timed(batch, [&](int i) { check(cudaFree(live[i]), "cudaFree"); });
		rounds -= batch;
	}
}

static void launch()
{
	check(cudaLaunchKernel((const void *)nothing, dim3(1), dim3(1), nullptr, 0, nullptr),
	      "cudaLaunchKernel");
}

static std::vector<Operation> measure(int rounds)
{
	std::vector<char> host(MEBIBYTE);
	Operation allocate = {"malloc 1 MiB", "cudaMalloc", 0, rounds, 0};
	Operation release = {"free 1 MiB", "cudaFree", 0, rounds, 0};
	Operation in = {"memcpy H2D 1 MiB", "cudaMemcpy", MEBIBYTE, rounds, 0};
	Operation out = {"memcpy D2H 1 MiB", "cudaMemcpy", MEBIBYTE, rounds, 0};
	Operation launches = {"launch", "cudaLaunchKernel", 0, rounds, 0};
	Operation synchronise = {"synchronise", "cudaDeviceSynchronize", 0, rounds, 0};
	Operation get_device = {"get device", "cudaGetDevice", 0, rounds, 0};
	void *device;

	allocations(rounds, allocate, release);
	check(cudaMalloc(&device, MEBIBYTE), "cudaMalloc");
	in.seconds = timed(rounds, [&](int) {
		check(cudaMemcpy(device, host.data(), MEBIBYTE, cudaMemcpyHostToDevice), "cudaMemcpy");
	});
	out.seconds = timed(rounds, [&](int) {
		check(cudaMemcpy(host.data(), device, MEBIBYTE, cudaMemcpyDeviceToHost), "cudaMemcpy");
	});
	check(cudaFree(device), "cudaFree");
	launches.seconds = timed(rounds, [](int) { launch(); });
	// the first call waits for all these launches, so it is not measured
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	synchronise.seconds =
	    timed(rounds, [](int) { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); });
	get_device.seconds = timed(rounds, [](int) {
		int number;

		check(cudaGetDevice(&number), "cudaGetDevice");
	});
	return {allocate, release, in, out, launches, synchronise, get_device};
}

static void print_table(const std::vector<Operation> &operations)
{
	printf("%-18s %10s %12s %8s\n", "operation", "calls", "average us", "GB/s");
	for (const Operation &o : operations) {
		printf("%-18s %10d %12.3f", o.name, o.calls, o.average_us());
		if (o.bytes)
			printf(" %8.2f", double(o.bytes) * o.calls / o.seconds / 1e9);
		printf("\n");
	}
}

static void print_json(const std::vector<Operation> &operations, int rounds)
{
	const char *separator = "";

	printf("{\"rounds\":%d,\"operations\":[", rounds);
	for (const Operation &o : operations) {
		printf("%s{\"name\":\"%s\",\"function\":\"%s\",\"calls\":%d,\"average_us\":%.3f}", separator,
		       o.name, o.function, o.calls, o.average_us());
		separator = ",";
	}
	printf("]}\n");
}

int main(int argc, char **argv)
{
	bool json = false;
	int rounds = 1000;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json"))
			json = true;
		else
			rounds = atoi(argv[i]);
	}
	if (rounds < 1) {
		fprintf(stderr, "usage: bench [--json] [ROUNDS]\n");
		return 2;
	}
	measure(rounds / 10 + 1);
	const std::vector<Operation> operations = measure(rounds);
	if (json)
		print_json(operations, rounds);
	else
		print_table(operations);
	return 0;
}
