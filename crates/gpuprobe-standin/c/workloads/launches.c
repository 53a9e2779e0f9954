/*
 * Launches of kernels, with a ledger of what ran:
 *   launches doors                     every function that launches a kernel, each with its own kernel
 *   launches classic                   1000 iterations of two kernels
 *   launches graphs                    captured, made by nodes, cloned, nested, updated, destroyed
 *   launches counted THREADS LAUNCHES  that many launches of 50 kernels by threads, and 40 of a graph of 1000
 *                                      kernels
 * Prints {"pid","launches":{kernel: n},"in_graphs":{kernel: n},"graph_launches","derived","captured",
 * "disabled","conditional"}, and with --wait as last argument continues after a line on stdin.
 */
#include "launches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct totals totals;
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
	*row = totals.kernels++;
	totals.names[*row] = strdup(name);
	return function;
}

void ran(unsigned int row, unsigned long launches)
{
	__atomic_add_fetch(&totals.launches[row], launches, __ATOMIC_RELAXED);
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
	/* the names after demangling */
	totals.names[rows[0]] = "scale(float*, int)";
	totals.names[rows[1]] = "add(float*, float*, int)";
}

/* Kernels that never ran are omitted. */
static void print_counts(const char *title, const unsigned long *counts)
{
	const char *separator = "";

	printf(",\"%s\":{", title);
	for (unsigned int i = 0; i < totals.kernels; i++) {
		if (!counts[i])
			continue;
		printf("%s\"%s\":%lu", separator, totals.names[i], counts[i]);
		separator = ",";
	}
	printf("}");
}

static void print_totals(void)
{
	printf("{\"pid\":%d", (int)getpid());
	print_counts("launches", totals.launches);
	print_counts("in_graphs", totals.in_graphs);
	printf(",\"graph_launches\":%lu,\"derived\":%lu,\"captured\":%lu,\"disabled\":%lu,\"conditional\":%"
	       "lu}\n",
	       totals.graph_launches, totals.derived, totals.captured, totals.disabled, totals.conditional);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "doors"))
		run_launch_functions();
	else if (!strcmp(mode, "classic"))
		run_classic();
	else if (!strcmp(mode, "graphs"))
		run_graphs();
	else if (!strcmp(mode, "counted") && argc > 3)
		run_counted(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	else
		return 2;
	print_totals();
	if (!strcmp(argv[argc - 1], "--wait"))
		getchar();
	return failures != 0;
}
