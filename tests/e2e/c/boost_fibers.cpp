// Two fibers of Boost.Context that yield inside a CUDA call, in both orders. Prints how many calls were made.
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>

extern "C" {
int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data);
}

namespace ctx = boost::context;

static unsigned long made;
static int failed;
static ctx::fiber back[2];
static int running;

static void allocate_and_free()
{
	void *block = nullptr;

	failed |= cudaMalloc(&block, 4096);
	failed |= cudaFree(block);
	made += 2;
}

static void yield(void *)
{
	int self = running;

	back[self] = std::move(back[self]).resume();
}

static ctx::fiber start(int self)
{
	return ctx::fiber{[self](ctx::fiber &&scheduler) {
		back[self] = std::move(scheduler);
		for (;;) {
			made++;
			failed |= cudaLaunchHostFunc(nullptr, yield, nullptr);
			allocate_and_free();
			yield(nullptr);
		}
		return std::move(back[self]);
	}};
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 100;
	ctx::fiber fibers[2] = {start(0), start(1)};
	auto resume = [&](int which) {
		running = which;
		fibers[which] = std::move(fibers[which]).resume();
	};

	for (int i = 0; i < rounds; i++) {
		int first = i & 1, returns_first = i >> 1 & 1;

		resume(first);
		resume(!first);
		allocate_and_free();
		resume(returns_first);
		resume(!returns_first);
	}
	printf("{\"made\":%lu}\n", made);
	fflush(stdout);
	// the fibers are still inside their loops: nothing to unwind
	_Exit(failed ? 1 : 0);
}
