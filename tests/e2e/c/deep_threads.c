/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Allocates deep inside native functions, called by Python: deep_thread(allocate, size, name) does so in a
 * new thread with this name that runs no Python, and deep_call(allocate, size) in the calling thread. The
 * stack is deeper than what is copied and unwound of one.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#define DEPTH 400

typedef int allocate_function(void **, size_t);

__attribute__((noinline, noclone)) static int descend(allocate_function *allocate, size_t size, int depth)
{
	volatile char room[256];
	void *block;
	int status;

	room[0] = depth;
	if (!depth)
		return allocate(&block, size);
	status = descend(allocate, size, depth - 1);
	return status + (room[0] != (char)depth);
}

struct deep_call {
	allocate_function *allocate;
	size_t size;
	char name[16];
	int status;
};

static void *run(void *argument)
{
	struct deep_call *call = argument;

	pthread_setname_np(pthread_self(), call->name);
	call->status = descend(call->allocate, call->size, DEPTH);
	return NULL;
}

int deep_call(allocate_function *allocate, size_t size)
{
	return descend(allocate, size, DEPTH);
}

int deep_thread(allocate_function *allocate, size_t size, const char *name)
{
	struct deep_call call = {.allocate = allocate, .size = size, .status = -1};
	pthread_t thread;

	strncpy(call.name, name, sizeof(call.name) - 1);
	if (pthread_create(&thread, NULL, run, &call))
		return -1;
	pthread_join(thread, NULL);
	return call.status;
}
