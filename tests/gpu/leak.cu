// A C++ program that leaks device memory from two of its four call sites, one eight times as fast as the other.
// The third is a cache that fills up, the fourth a buffer that is allocated and freed each round. Prints one JSON object.
//
//   leak ROUNDS MILLISECONDS        sleeps that long after each round
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

struct Ledger {
	const char *function;
	bool leaks;
	size_t live, live_bytes, allocations, frees;
};

struct Gradients {
	static Ledger ledger;
};
struct Events {
	static Ledger ledger;
};
struct Shapes {
	static Ledger ledger;
};
struct Batch {
	static Ledger ledger;
};
Ledger Gradients::ledger = {"Tensor<Gradients>::Tensor", true};
Ledger Events::ledger = {"Tensor<Events>::Tensor", true};
Ledger Shapes::ledger = {"Tensor<Shapes>::Tensor", false};
Ledger Batch::ledger = {"Tensor<Batch>::Tensor", false};

template <typename Use> struct Tensor {
	void *pointer;
	size_t bytes;

	OWN_FRAME explicit Tensor(size_t bytes) : bytes(bytes)
	{
		check(cudaMalloc(&pointer, bytes), "cudaMalloc");
		Use::ledger.allocations++;
		Use::ledger.live++;
		Use::ledger.live_bytes += bytes;
	}

	OWN_FRAME ~Tensor()
	{
		check(cudaFree(pointer), "cudaFree");
		Use::ledger.frees++;
		Use::ledger.live--;
		Use::ledger.live_bytes -= bytes;
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
	const Ledger *const all[] = {&Gradients::ledger, &Events::ledger, &Shapes::ledger, &Batch::ledger};
	const char *comma = "";

	for (int round = 0; round < rounds; round++) {
		for (Step *step : steps)
			step->run(round);
		usleep(pause * 1000);
	}
	printf("{\"pid\":%d,\"call_sites\":[", (int)getpid());
	for (const Ledger *ledger : all) {
		printf("%s{\"function\":\"%s\",\"leaks\":%s,\"live\":%zu,\"live_bytes\":%zu,\"allocations\":%zu,\"frees\":%zu}",
		       comma, ledger->function, ledger->leaks ? "true" : "false", ledger->live, ledger->live_bytes,
		       ledger->allocations, ledger->frees);
		comma = ",";
	}
	printf("]}\n");
	fflush(stdout);
	// leaked memory is never freed: no destructor runs
	_exit(0);
}
