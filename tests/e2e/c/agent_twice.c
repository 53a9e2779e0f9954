/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A library for CUDA_INJECTION64_PATH that loads and initializes two agents: the files that FIRST_AGENT and
 * SECOND_AGENT name.
 */
#include <dlfcn.h>
#include <stdlib.h>

static int initialize(const char *path)
{
	void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*function)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;

	return function && function() == 1;
}

int InitializeInjection(void)
{
	int first = initialize(getenv("FIRST_AGENT")), second = initialize(getenv("SECOND_AGENT"));

	return first && second;
}
