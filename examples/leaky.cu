// A small server that answers requests on the GPU, and leaks: docs/guides/leak-hunt.md finds the line.
//
//   leaky [SECONDS]      answers requests for that long, 10 by default
//
// Some memory is live for good reasons: weights that stay, a cache that fills up, buffers of each request.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include <cuda_runtime.h>

constexpr size_t KIB = 1024, MIB = 1024 * KIB;
constexpr int CACHED = 32;

static void check(cudaError_t status, const char *call)
{
	if (status != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
		exit(1);
	}
}

// Makes all allocations, so the function that calls cudaMalloc does not identify the leak.
static void *get(size_t bytes)
{
	void *pointer;

	check(cudaMalloc(&pointer, bytes), "cudaMalloc");
	return pointer;
}

static void give_back(void *pointer)
{
	check(cudaFree(pointer), "cudaFree");
}

__attribute__((noinline)) static void *load_weights()
{
	return get(64 * MIB);
}

// Embeddings of the texts that are requested most.
__attribute__((noinline)) static void *embedding(std::map<int, void *> &cache, int text)
{
	void *&entry = cache[text % CACHED];

	if (!entry)
		entry = get(256 * KIB);
	return entry;
}

struct Request {
	int number;
	void *input, *output;
};

__attribute__((noinline)) static Request begin(int number)
{
	void *input = get(512 * KIB);
	void *output = get(128 * KIB);

	return {number, input, output};
}

__attribute__((noinline)) static void end(const Request &request)
{
	const bool cancelled = request.number % 4 == 3;

	give_back(request.input);
	// a cancelled request needs no output
	if (cancelled)
		return;
	give_back(request.output);
}

int main(int argc, char **argv)
{
	const double seconds = argc > 1 ? atof(argv[1]) : 10;
	const auto begun = std::chrono::steady_clock::now();
	const auto over = begun + std::chrono::duration<double>(seconds);
	std::map<int, void *> cache;
	int number = 0;

	if (seconds <= 0) {
		fprintf(stderr, "leaky: give a number of seconds\n");
		return 2;
	}
	void *weights = load_weights();
	for (; std::chrono::steady_clock::now() < over; number++) {
		const Request request = begin(number);

		embedding(cache, number);
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
		end(request);
	}
	for (const auto &entry : cache)
		give_back(entry.second);
	give_back(weights);
	printf("%d requests\n", number);
	return 0;
}
