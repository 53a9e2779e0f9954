/*
 * Ten thousand stacks that lead to cudaMalloc: a hundred functions, each of which calls each of a hundred
 * others. Stack w, which is 100 * outer + inner, allocates 512 * (w + 1) bytes once per round, and does not
 * free those of the even rounds. The call site of a leaf has the sums of the hundred stacks through it.
 * Options and the ledger are in leaks.h.
 */
#include <utility>

#include "leaks.h"

#define FAN 100

static std::atomic<CallSite *> call_sites[FAN];

template <int inner> OWN_FRAME void leaf(unsigned long stack, bool keep)
{
	size_t bytes = 512 * (stack + 1);
	void *block;

	int line = __LINE__ + 1;
	succeed(cudaMalloc(&block, bytes), "cudaMalloc");
	call_sites[inner].load()->allocated(bytes, line);
	if (keep)
		return;
	succeed(cudaFree(block), "cudaFree");
	call_sites[inner].load()->freed(bytes);
}

template <int... numbers> static auto leaves(std::integer_sequence<int, numbers...>)
{
	static void (*const all[])(unsigned long, bool) = {leaf<numbers>...};
	return all;
}

template <int outer> OWN_FRAME void branch(int inner, bool keep)
{
	leaves(std::make_integer_sequence<int, FAN>())[inner](FAN * outer + inner, keep);
	STAY();
}

template <int... numbers> static auto branches(std::integer_sequence<int, numbers...>)
{
	static void (*const all[])(int, bool) = {branch<numbers>...};
	return all;
}

struct Worker {
	void round(unsigned long round)
	{
		for (int stack = 0; stack < FAN * FAN; stack++)
			branches(std::make_integer_sequence<int, FAN>())[stack / FAN](stack % FAN,
										      round % 2 == 0);
	}

	static const pthread_attr_t *attributes()
	{
		return NULL;
	}
};

int main(int count, char **words)
{
	static char names[FAN][16];

	for (int inner = 0; inner < FAN; inner++) {
		snprintf(names[inner], sizeof(names[inner]), "leaf<%d>", inner);
		call_sites[inner] = new CallSite(names[inner], names[inner], "branch<", true);
	}
	return leaks_main<Worker>(2, count, words);
}
