/*
 * Calls the inner functions of a CUDA runtime. Without a GPU an exported function of the runtime fails before
 * it calls its inner function, which is the one that its machine code calls twice: with and without
 * callbacks.
 *
 *   inner_calls LIBRARY FUNCTION:WITH:TIMES...      WITH is null or zeros: what each argument is or points to
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*inner_function)(void *, void *, void *, void *, void *, void *);

#define MOST_CALLS 256
#define MOST_CODE (4 << 20)
#define CALL 0xe8
#define CALL_BYTES 5

static inner_function inner_of(void *library, const char *name)
{
	const unsigned char *code = dlsym(library, name);
	const char *targets[MOST_CALLS];
	const ElfW(Sym) *symbol = NULL;
	unsigned int count = 0;
	Dl_info info;

	if (!code || !dladdr1(code, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
		return NULL;
	for (uint64_t i = 0; i + CALL_BYTES <= symbol->st_size && count < MOST_CALLS; i++) {
		const char *target;
		int32_t distance;

		memcpy(&distance, code + i + 1, sizeof(distance));
		target = (const char *)code + i + CALL_BYTES + distance;
		if (code[i] != CALL || target < (const char *)info.dli_fbase ||
		    target > (const char *)info.dli_fbase + MOST_CODE)
			continue;
		for (unsigned int j = 0; j < count; j++)
			if (targets[j] == target)
				return (inner_function)target;
		targets[count++] = target;
	}
	return NULL;
}

static int call(inner_function inner, void *argument)
{
	return inner(argument, argument, argument, argument, argument, argument);
}

int main(int argc, char **argv)
{
	static char zeros[1 << 16];
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

	if (!library) {
		fprintf(stderr, "inner_calls: %s\n", dlerror());
		return 1;
	}
	/* initializes what can be without a GPU */
	((int (*)(void *))dlsym(library, "cudaGetDevice"))(zeros);
	printf("{\"pid\": %d}\n", getpid());
	fflush(stdout);
	getchar();
	printf("[");
	for (int i = 2; i < argc; i++) {
		char *name = strtok(argv[i], ":"), *with = strtok(NULL, ":"), *times = strtok(NULL, ":");
		inner_function inner = inner_of(library, name);
		int status = 0;

		if (!inner) {
			fprintf(stderr, "inner_calls: %s has no inner function\n", name);
			return 1;
		}
		for (int j = atoi(times); j > 0; j--)
			status = call(inner, strcmp(with, "null") ? zeros : NULL);
		printf("%s{\"function\": \"%s\", \"with\": \"%s\", \"status\": %d, \"times\": %s}",
		       i > 2 ? ", " : "", name, with, status, times);
	}
	printf("]\n");
	fflush(stdout);
	getchar();
	return 0;
}
