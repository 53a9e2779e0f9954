/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * ways LIBRARY: calls a function of the CUDA driver in each way that a program can get its address, and
 * prints how many calls it made. Then the interposer must have counted as many, in this process and in a
 * child.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int cuCtxSynchronize(void);
typedef int (*sync_call)(void);
typedef int (*get_proc_address)(const char *, void **, int, uint64_t, int *);

static void print_counts(const char *who)
{
	char command[64];

	snprintf(command, sizeof(command), "LD_PRELOAD= $READ_COUNTERS %d", getpid());
	printf("%s: ", who);
	fflush(stdout);
	if (system(command))
		exit(1);
}

int main(int count, char **words)
{
	void *library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
	get_proc_address by_name;
	sync_call found;
	void *address = NULL;

	if (!library)
		return 2;
	if (cuCtxSynchronize())
		return 1;
	print_counts("1 direct call");
	found = (sync_call)dlsym(library, "cuCtxSynchronize");
	if (!found || found())
		return 1;
	print_counts("and 1 by dlsym");
	by_name = (get_proc_address)dlsym(library, "cuGetProcAddress_v2");
	if (!by_name || by_name("cuCtxSynchronize", &address, 12000, 0, NULL) || ((sync_call)address)())
		return 1;
	print_counts("and 1 by cuGetProcAddress");
	if (!fork()) {
		if (found() || found())
			return 1;
		print_counts("2 in a child");
		return 0;
	}
	wait(NULL);
	print_counts("the parent after that");
	return 0;
}
