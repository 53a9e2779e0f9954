/*
 * Ten thousand ways to cudaMalloc: a hundred functions, each of which calls each of a hundred others. Way w,
 * which is 100 * outer + inner, allocates 512 * (w + 1) bytes once a round, and keeps what it got in the even
 * rounds. The place of a leaf has the sums of the hundred ways through it. Options and books are in leaks.h.
 */
#include <utility>

#include "leaks.h"

#define FAN 100

static std::atomic<Place *> places[FAN];

template <int inner> OWN_FRAME void leaf(unsigned long way, bool keep)
{
	size_t bytes = 512 * (way + 1);
	void *block;

	int line = __LINE__ + 1;
	succeed(cudaMalloc(&block, bytes), "cudaMalloc");
	places[inner].load()->allocated(bytes, line);
	if (keep)
		return;
	succeed(cudaFree(block), "cudaFree");
	places[inner].load()->freed(bytes);
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
		for (int way = 0; way < FAN * FAN; way++)
			branches(std::make_integer_sequence<int, FAN>())[way / FAN](way % FAN,
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
		places[inner] = new Place(names[inner], names[inner], "branch<", true);
	}
	return leaks_main<Worker>(2, count, words);
}
