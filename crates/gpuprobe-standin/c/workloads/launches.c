/*
 * Launches of kernels, with books of what ran:
 *   launches doors                     every function that launches a kernel, each its own kernel
 *   launches classic                   1000 iterations of two kernels
 *   launches graphs                    captured, made by nodes, cloned, nested, updated, destroyed
 *   launches counted THREADS LAUNCHES  so many of 50 kernels by threads, and 40 of a graph of 1000 kernels
 * Prints {"pid","launches":{kernel: n},"graph_launches","derived","captured"}, and with --wait as last
 * argument goes on when a line comes in.
 */
#include "launches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct books books;
int failures;

void check(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: %d\n", what, result);
		failures++;
	}
}

void *kernel_of(const char *name, unsigned int *row)
{
	void *module = NULL, *function = NULL;

	CHECK(cuModuleLoadData(&module, "image"));
	CHECK(cuModuleGetFunction(&function, module, name));
	*row = books.kernels++;
	books.names[*row] = strdup(name);
	return function;
}

void ran(unsigned int row, unsigned long launches)
{
	__atomic_add_fetch(&books.launches[row], launches, __ATOMIC_RELAXED);
}

#define DIMENSIONS 3, 2, 1, 32, 4, 1, 128

/* Each door has a kernel of its own, which it launches once more often than the one before. */
#define DOOR(name, made, call)                                                                               \
	do {                                                                                                 \
		unsigned int row;                                                                            \
		void *f = kernel_of("door_" #name, &row);                                                    \
		for (unsigned int i = 0; i < row + 2; i++)                                                   \
			CHECK(call);                                                                         \
		ran(row, (row + 2) * (made));                                                                \
	} while (0)

static void run_doors(void)
{
	struct CUlaunchConfig config = {DIMENSIONS, NULL, NULL, 0};
	struct cudaLaunchConfig runtime = {{3, 2, 1}, {32, 4, 1}, 128, NULL, NULL, 0};
	struct dim3 grid = {3, 2, 1}, block = {32, 4, 1};
	void *stream = NULL;

	CHECK(cuStreamCreate(&stream, 0));
	DOOR(cuLaunchKernel, 1, cuLaunchKernel(f, DIMENSIONS, stream, NULL, NULL));
	DOOR(cuLaunchKernel_ptsz, 1, cuLaunchKernel_ptsz(f, DIMENSIONS, NULL, NULL, NULL));
	DOOR(cuLaunchKernelEx, 1, cuLaunchKernelEx(&config, f, NULL, NULL));
	DOOR(cuLaunchKernelEx_ptsz, 1, cuLaunchKernelEx_ptsz(&config, f, NULL, NULL));
	DOOR(cuLaunchCooperativeKernel, 1, cuLaunchCooperativeKernel(f, DIMENSIONS, stream, NULL));
	DOOR(cuLaunchCooperativeKernel_ptsz, 1, cuLaunchCooperativeKernel_ptsz(f, DIMENSIONS, NULL, NULL));
	DOOR(cuLaunchCooperativeKernelMultiDevice, 2, ({
		     struct CUDA_LAUNCH_PARAMS list[2] = {{f, DIMENSIONS, stream, NULL},
							  {f, DIMENSIONS, NULL, NULL}};
		     cuLaunchCooperativeKernelMultiDevice(list, 2, 0);
	     }));
	DOOR(cuLaunch, 1, cuLaunch(f));
	DOOR(cuLaunchGrid, 1, cuLaunchGrid(f, 7, 5));
	DOOR(cuLaunchGridAsync, 1, cuLaunchGridAsync(f, 7, 5, stream));
	DOOR(cudaLaunchKernel, 1, cudaLaunchKernel(f, grid, block, NULL, 128, stream));
	DOOR(cudaLaunchKernel_ptsz, 1, cudaLaunchKernel_ptsz(f, grid, block, NULL, 128, NULL));
	DOOR(cudaLaunchCooperativeKernel, 1, cudaLaunchCooperativeKernel(f, grid, block, NULL, 0, stream));
	DOOR(cudaLaunchKernelExC, 1, cudaLaunchKernelExC(&runtime, f, NULL));
	/* one that fails is none */
	if (!cuLaunchKernel(NULL, DIMENSIONS, stream, NULL, NULL))
		failures++;
}

static void run_classic(void)
{
	unsigned int rows[2];
	void *scale = kernel_of("_Z5scalePfi", &rows[0]), *add = kernel_of("_Z3addPfS_i", &rows[1]);
	struct dim3 grid = {64, 1, 1}, block = {256, 1, 1};

	for (int i = 0; i < 1000; i++) {
		CHECK(cudaLaunchKernel(scale, grid, block, NULL, 0, NULL));
		CHECK(cudaLaunchKernel(add, grid, block, NULL, 0, NULL));
	}
	ran(rows[0], 1000);
	ran(rows[1], 1000);
	/* as a tool that demangles names tells them */
	books.names[rows[0]] = "scale(float*, int)";
	books.names[rows[1]] = "add(float*, float*, int)";
}

static void print_books(void)
{
	printf("{\"pid\":%d,\"launches\":{", (int)getpid());
	for (unsigned int i = 0; i < books.kernels; i++)
		printf("%s\"%s\":%lu", i ? "," : "", books.names[i], books.launches[i]);
	printf("},\"graph_launches\":%lu,\"derived\":%lu,\"captured\":%lu}\n", books.graph_launches,
	       books.derived, books.captured);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "doors"))
		run_doors();
	else if (!strcmp(mode, "classic"))
		run_classic();
	else if (!strcmp(mode, "graphs"))
		run_graphs();
	else if (!strcmp(mode, "counted") && argc > 3)
		run_counted(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	else
		return 2;
	print_books();
	if (!strcmp(argv[argc - 1], "--wait"))
		getchar();
	return failures != 0;
}
