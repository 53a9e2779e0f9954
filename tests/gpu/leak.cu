// A C++ program that leaks device memory from two of its four ways to cudaMalloc, one eight times as fast as the other.
// The third is a cache that fills up, the fourth a buffer that is made and let go each round. Prints one JSON object.
//
//   leak ROUNDS MILLISECONDS        sleeps so long after each round
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <unistd.h>
#include <vector>

#define OWN_FRAME __attribute__((noinline))

static void check(cudaError_t status, const char *what)
{
	if (status != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
		exit(1);
	}
}

struct Books {
	const char *function;
	bool leaks;
	size_t live, live_bytes, allocations, frees;
};

struct Gradients {
	static Books books;
};
struct Events {
	static Books books;
};
struct Shapes {
	static Books books;
};
struct Batch {
	static Books books;
};
Books Gradients::books = {"Tensor<Gradients>::Tensor", true};
Books Events::books = {"Tensor<Events>::Tensor", true};
Books Shapes::books = {"Tensor<Shapes>::Tensor", false};
Books Batch::books = {"Tensor<Batch>::Tensor", false};

template <typename Use> struct Tensor {
	void *pointer;
	size_t bytes;

	OWN_FRAME explicit Tensor(size_t bytes) : bytes(bytes)
	{
		check(cudaMalloc(&pointer, bytes), "cudaMalloc");
		Use::books.allocations++;
		Use::books.live++;
		Use::books.live_bytes += bytes;
	}

	OWN_FRAME ~Tensor()
	{
		check(cudaFree(pointer), "cudaFree");
		Use::books.frees++;
		Use::books.live--;
		Use::books.live_bytes -= bytes;
	}
};

struct Step {
	virtual void run(int round) = 0;
	virtual ~Step() = default;
};

struct Accumulate : Step {
	std::vector<std::unique_ptr<Tensor<Gradients>>> history;

	void run(int) override
	{
		history.push_back(std::make_unique<Tensor<Gradients>>(1 << 20));
	}
};

struct Listen : Step {
	std::vector<std::function<void()>> callbacks;

	void run(int round) override
	{
		if (round % 4)
			return;
		auto events = std::make_shared<Tensor<Events>>(1 << 19);
		callbacks.push_back([events] { (void)events; });
	}
};

struct Cache : Step {
	std::unique_ptr<Tensor<Shapes>> blocks[16];

	void run(int round) override
	{
		auto &block = blocks[round * 7 % 16];
		if (!block)
			block = std::make_unique<Tensor<Shapes>>(3 << 20);
	}
};

struct Load : Step {
	void run(int) override
	{
		Tensor<Batch> batch(5 << 20);
		check(cudaMemset(batch.pointer, 0, batch.bytes), "cudaMemset");
	}
};

int main(int argc, char **argv)
{
	const int rounds = argc > 1 ? atoi(argv[1]) : 100, pause = argc > 2 ? atoi(argv[2]) : 0;
	Accumulate accumulate;
	Listen listen;
	Cache cache;
	Load load;
	Step *const steps[] = {&accumulate, &listen, &cache, &load};
	const Books *const all[] = {&Gradients::books, &Events::books, &Shapes::books, &Batch::books};
	const char *comma = "";

	for (int round = 0; round < rounds; round++) {
		for (Step *step : steps)
			step->run(round);
		usleep(pause * 1000);
	}
	printf("{\"pid\":%d,\"places\":[", (int)getpid());
	for (const Books *books : all) {
		printf("%s{\"function\":\"%s\",\"leaks\":%s,\"live\":%zu,\"live_bytes\":%zu,\"allocations\":%zu,\"frees\":%zu}",
		       comma, books->function, books->leaks ? "true" : "false", books->live, books->live_bytes,
		       books->allocations, books->frees);
		comma = ",";
	}
	printf("]}\n");
	fflush(stdout);
	// what leaks is never given back: no destructor runs
	_exit(0);
}
