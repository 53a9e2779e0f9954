/*
 * Tools in the process: the library that CUDA_INJECTION64_PATH names is loaded by cuInit, and CUPTI gets
 * every operation that is submitted. The stand-in runtime does not call cuInit, so the first operation counts
 * as one.
 */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu_op.h"

/* CUPTI's number of the default stream, and of the first other one */
#define DEFAULT_STREAM 7
#define PER_THREAD_STREAM 8
#define FIRST_STREAM 13

static pthread_once_t once = PTHREAD_ONCE_INIT;
static gpu_listener listener;

static void inject(void)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	void *library = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*initialize)(void);

	if (!path || !*path)
		return;
	if (!library) {
		fprintf(stderr, "stand-in libcuda: %s\n", dlerror());
		return;
	}
	initialize = (int (*)(void))dlsym(library, "InitializeInjection");
	if (!initialize || initialize() != 1)
		fprintf(stderr, "stand-in libcuda: %s could not be initialized\n", path);
}

int impl_cuInit(unsigned int flags)
{
	(void)flags;
	ENTER(cuInit);
	pthread_once(&once, inject);
	return CUDA_SUCCESS;
}

static void listen(gpu_listener new_listener)
{
	__atomic_store_n(&listener, new_listener, __ATOMIC_RELEASE);
}

int impl_cuGetExportTable(const void **table, const void *id)
{
	static const struct gpu_op_table ops = {sizeof(ops), listen};

	ENTER(cuGetExportTable);
	if (!table || !id || memcmp(id, GPU_OP_TABLE_ID, sizeof(GPU_OP_TABLE_ID)))
		return CUDA_ERROR_NOT_FOUND;
	*table = &ops;
	return CUDA_SUCCESS;
}

static uint32_t stream_number(void *stream)
{
	if ((uint64_t)stream < 2)
		return DEFAULT_STREAM;
	return (uint64_t)stream == 2 ? PER_THREAD_STREAM : FIRST_STREAM + handle_number(stream);
}

int gpu_is_observed(void)
{
	pthread_once(&once, inject);
	return capture_is_active() || __atomic_load_n(&listener, __ATOMIC_ACQUIRE) != NULL;
}

void gpu_submit_graph(void *stream, uint32_t graph, const struct gpu_op *ops, unsigned int count)
{
	struct gpu_submission submission = {ops, count, graph, 0, 0, stream_number(stream)};
	gpu_listener listening = __atomic_load_n(&listener, __ATOMIC_ACQUIRE);

	if (!listening)
		return;
	context_describe(&submission.device, &submission.context);
	listening(&submission);
}

void gpu_submit(void *stream, const struct gpu_op *op)
{
	if (!capture_op(stream, op))
		gpu_submit_graph(stream, 0, op, 1);
}
