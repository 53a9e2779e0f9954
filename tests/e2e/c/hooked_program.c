/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Loads the hooked library and calls its functions, and calls CUDA inside one of them and directly. With a
 * fourth argument it waits for a line first. The test knows the number of calls: ROUNDS of each.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *need(void *library, const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "%s: %s\n", name, dlerror());
		exit(3);
	}
	return found;
}

static int (*cuda_malloc)(void **, size_t);

/* A signal without effect, and a CUDA call. */
static int inner(void *data)
{
	kill(getpid(), SIGUSR1);
	return cuda_malloc((void **)data, 4096);
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[3]) : 10;
	void *memory = NULL, *made = NULL, *kernel = NULL, *gpu = NULL;
	void *library, *runtime;
	unsigned long high;
	int low, sum = 0;

	if (argc < 3)
		return 2;
	if (argc > 4) {
		printf("ready\n");
		fflush(stdout);
		getchar();
	}
	library = dlopen(argv[1], RTLD_NOW);
	void *(*hk_alloc)(size_t, size_t) = need(library, "hk_alloc");
	int (*hk_free)(void *) = need(library, "hk_free");
	int (*hk_new)(void **, size_t, int) = need(library, "hk_new");
	int (*hk_move)(void *, const void *, size_t, int) = need(library, "hk_move");
	int (*hk_lookup)(void **, const char *) = need(library, "hk_lookup");
	int (*hk_launch)(unsigned, unsigned, unsigned, void *) = need(library, "hk_launch");
	unsigned long (*hk_number)(int *, unsigned long *) = need(library, "hk_number");
	int (*hk_around)(int (*)(void *), void *) = need(library, "hk_around");
	signal(SIGUSR1, SIG_IGN);
	runtime = dlopen(argv[2], RTLD_NOW);
	cuda_malloc = need(runtime, "cudaMalloc");
	sum += hk_lookup(&kernel, "a_kernel");
	for (int i = 0; i < rounds; i++) {
		memory = hk_alloc(3, 100);
		sum += hk_new(&made, 1000, 0) + hk_move(memory, made, 50, 1);
		sum += hk_launch(2, 3, 4, kernel) + hk_around(inner, &gpu) + (int)hk_number(&low, &high);
		sum += hk_free(memory);
	}
	hk_new(&made, 1000, -61);
	hk_alloc(0, 100);
	hk_launch(0, 0, 0, NULL);
	printf("{\"pid\": %d, \"rounds\": %d, \"sum\": %d}\n", getpid(), rounds, sum);
	fflush(stdout);
	if (argc > 4)
		getchar();
	return 0;
}
