/*
 * lookups [MORE]: only the driver. Looks up two kernels, prints {"pid","ready"}, and continues step by step,
 * each after a line: launches both; looks up two others with both functions and launches these; launches the
 * first two again. MORE further kernels are looked up first and launched in the first step. Each step prints
 * {"step","launched":[...]}, the kernels in the order of their launches. The names of the first kernels are
 * made at run time, like those of a compiler in the program: the file does not contain them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

static void *module, *library;
static int failed;

static void *by_module(const char *name)
{
	void *function = NULL;

	failed |= cuModuleGetFunction(&function, module, name);
	return function;
}

/* A mangled name: the function, and the rest. */
static const char *mangled(char *name, const char *function, const char *rest)
{
	sprintf(name, "_Z%zu%s%s", strlen(function), function, rest);
	return name;
}

static void *by_library(const char *name)
{
	void *kernel = NULL, *function = NULL;

	failed |= cuLibraryGetKernel(&kernel, library, name);
	failed |= cuKernelGetFunction(&function, kernel);
	return function;
}

static void launch(void *function)
{
	failed |= cuLaunchKernel(function, 3, 2, 1, 64, 1, 1, 0, NULL, NULL, NULL);
}

static void wait_for_line(void)
{
	fflush(stdout);
	for (int c = getchar(); c != '\n' && c != EOF; c = getchar())
		;
}

#define MOST 16

int main(int count, char **words)
{
	void *early, *early_template, *late, *late_of_library, *further[MOST];
	char name[64];
	int more = count > 1 ? atoi(words[1]) : 0;

	failed |= cuInit(0);
	failed |= cuModuleLoadData(&module, "image");
	failed |= cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0);
	early = by_module(mangled(name, "early_kernel", "Pfi"));
	early_template = by_library(mangled(name, "scale", "IfLi4EEvPT_"));
	for (int i = 0; i < more && i < MOST; i++) {
		snprintf(name, sizeof(name), "_Z7furtherILi%dEEvPf", i);
		further[i] = by_module(name);
	}
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	wait_for_line();
	launch(early);
	launch(early_template);
	printf("{\"step\":1,\"launched\":[\"early_kernel(float*, int)\",\"void scale<float, 4>(float*)\"");
	for (int i = 0; i < more && i < MOST; i++) {
		launch(further[i]);
		printf(",\"void further<%d>(float*)\"", i);
	}
	printf("]}\n");
	wait_for_line();
	late = by_module("late_kernel");
	late_of_library = by_library("_ZN4blas4gemmEPKdS1_Pd");
	launch(late);
	launch(late_of_library);
	printf("{\"step\":2,\"launched\":[\"late_kernel\",\"blas::gemm(double const*, double const*, "
	       "double*)\"]}\n");
	wait_for_line();
	launch(early);
	launch(early_template);
	printf(
	    "{\"step\":3,\"launched\":[\"early_kernel(float*, int)\",\"void scale<float, 4>(float*)\"]}\n");
	return failed;
}
