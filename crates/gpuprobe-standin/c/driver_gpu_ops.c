/*
 * Streams, events, graphs, modules and launches of the stand-in driver: handles, and callbacks that run
 * immediately.
 */
#include "driver.h"

#include <stdlib.h>

#define HANDLE_RANGE (1ULL << 32)
#define FIRST_RANGE 0x560100000000ULL
#define HANDLE_STEP 0x80

/* The memory that a kernel handle points to. */
struct kernel {
	struct kernel *next;
	const char *name;
};

static uint64_t handle_counts[8];

/* Destroyed graphs: their handles are reused first. */
#define MAX_FREED 64
static struct spinlock freed_lock;
static void *freed[8][MAX_FREED];
static unsigned int freed_counts[8];
static struct spinlock kernels_lock;
static struct kernel *kernels;

#define MAX_CAPTURES 64
static struct spinlock captures_lock;
/* Capturing streams, and the graphs they capture into. */
static void *captures[MAX_CAPTURES];
static void *captured_into[MAX_CAPTURES];

static void handle_free(enum handle_kind kind, void *handle)
{
	spin_lock(&freed_lock);
	if (freed_counts[kind] < MAX_FREED)
		freed[kind][freed_counts[kind]++] = handle;
	spin_unlock(&freed_lock);
}

static void *handle_again(enum handle_kind kind)
{
	void *handle = NULL;

	spin_lock(&freed_lock);
	if (freed_counts[kind])
		handle = freed[kind][--freed_counts[kind]];
	spin_unlock(&freed_lock);
	return handle;
}

void *handle_new(enum handle_kind kind)
{
	void *again = handle_again(kind);
	uint64_t number;

	if (again)
		return again;
	number = __atomic_add_fetch(&handle_counts[kind], 1, __ATOMIC_RELAXED);
	return (void *)(FIRST_RANGE + HANDLE_RANGE * kind + HANDLE_STEP * number);
}

static struct kernel *find_kernel(const char *name)
{
	struct kernel *kernel = kernels;

	while (kernel && strcmp(kernel->name, name))
		kernel = kernel->next;
	return kernel;
}

static int kernel_by_name(const void **out, const char *name)
{
	struct kernel *kernel;

	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!*name)
		return CUDA_ERROR_NOT_FOUND;
	spin_lock(&kernels_lock);
	kernel = find_kernel(name);
	if (!kernel) {
		kernel = calloc(1, sizeof(*kernel));
		if (kernel) {
			kernel->name = strdup(name);
			kernel->next = kernels;
			kernels = kernel;
		}
	}
	spin_unlock(&kernels_lock);
	*out = kernel;
	return kernel ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int name_of_kernel(const char **name, const void *handle)
{
	struct kernel *kernel;

	spin_lock(&kernels_lock);
	for (kernel = kernels; kernel && kernel != handle; kernel = kernel->next)
		;
	spin_unlock(&kernels_lock);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	*name = kernel->name;
	return CUDA_SUCCESS;
}

#define NEW_HANDLE(function, kind)                                                                           \
	int impl_##function(void **out)                                                                      \
	{                                                                                                    \
		ENTER(function);                                                                             \
		if (!out)                                                                                    \
			return CUDA_ERROR_INVALID_VALUE;                                                     \
		*out = handle_new(kind);                                                                     \
		return CUDA_SUCCESS;                                                                         \
	}

NEW_HANDLE(cuStreamCreate, HANDLE_STREAM)
NEW_HANDLE(cuStreamCreateWithPriority, HANDLE_STREAM)
NEW_HANDLE(cuEventCreate, HANDLE_EVENT)
NEW_HANDLE(cuGraphCreate, HANDLE_GRAPH)
NEW_HANDLE(cuGraphClone, HANDLE_GRAPH)
NEW_HANDLE(cuGraphAddKernelNode, HANDLE_NODE)
NEW_HANDLE(cuGraphAddKernelNode_v2, HANDLE_NODE)
NEW_HANDLE(cuGraphAddChildGraphNode, HANDLE_NODE)
NEW_HANDLE(cuGraphAddNode, HANDLE_NODE)
NEW_HANDLE(cuGraphAddNode_v2, HANDLE_NODE)
NEW_HANDLE(cuGraphInstantiate, HANDLE_EXEC)
NEW_HANDLE(cuGraphInstantiate_v2, HANDLE_EXEC)
NEW_HANDLE(cuGraphInstantiateWithFlags, HANDLE_EXEC)
NEW_HANDLE(cuGraphInstantiateWithParams, HANDLE_EXEC)
NEW_HANDLE(cuModuleLoad, HANDLE_MODULE)
NEW_HANDLE(cuModuleLoadData, HANDLE_MODULE)
NEW_HANDLE(cuModuleLoadDataEx, HANDLE_MODULE)
NEW_HANDLE(cuModuleLoadFatBinary, HANDLE_MODULE)
NEW_HANDLE(cuLibraryLoadData, HANDLE_MODULE)
NEW_HANDLE(cuLibraryLoadFromFile, HANDLE_MODULE)
NEW_HANDLE(cuLibraryGetModule, HANDLE_MODULE)
NEW_HANDLE(cuMemPoolCreate, HANDLE_POOL)

int impl_cuGraphDestroy(void *graph)
{
	ENTER(cuGraphDestroy);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	handle_free(HANDLE_GRAPH, graph);
	LEAVE(cuGraphDestroy);
	return CUDA_SUCCESS;
}

int impl_cuGraphExecDestroy(void *exec)
{
	ENTER(cuGraphExecDestroy);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	handle_free(HANDLE_EXEC, exec);
	LEAVE(cuGraphExecDestroy);
	return CUDA_SUCCESS;
}

#define DEFAULT_POOL ((void *)0x5606ff000000ULL)

int impl_cuDeviceGetDefaultMemPool(void **pool, int device)
{
	(void)device;
	ENTER(cuDeviceGetDefaultMemPool);
	*pool = DEFAULT_POOL;
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetMemPool(void **pool, int device)
{
	(void)device;
	ENTER(cuDeviceGetMemPool);
	*pool = DEFAULT_POOL;
	return CUDA_SUCCESS;
}

/* The row of a capturing stream (or, for NULL, a free row); NULL if there is none. */
static void **capture_row(void *stream)
{
	for (unsigned int i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i] == stream)
			return &captures[i];
	}
	return NULL;
}

static int begin_capture(void *stream, void *graph)
{
	void **row = NULL;

	spin_lock(&captures_lock);
	if (stream && !capture_row(stream))
		row = capture_row(NULL);
	if (row) {
		*row = stream;
		captured_into[row - captures] = graph ? graph : handle_new(HANDLE_GRAPH);
	}
	spin_unlock(&captures_lock);
	return row ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

int impl_cuStreamBeginCapture_v2(void *stream, int mode)
{
	(void)mode;
	ENTER(cuStreamBeginCapture_v2);
	return begin_capture(stream, NULL);
}

int impl_cuStreamBeginCapture(void *stream)
{
	ENTER(cuStreamBeginCapture);
	return begin_capture(stream, NULL);
}

int impl_cuStreamBeginCaptureToGraph(void *stream, void *graph)
{
	ENTER(cuStreamBeginCaptureToGraph);
	return graph ? begin_capture(stream, graph) : CUDA_ERROR_INVALID_VALUE;
}

int impl_cuStreamEndCapture(void *stream, void **graph)
{
	void **row, *into = NULL;

	ENTER(cuStreamEndCapture);
	spin_lock(&captures_lock);
	row = stream ? capture_row(stream) : NULL;
	if (row) {
		into = captured_into[row - captures];
		*row = NULL;
	}
	spin_unlock(&captures_lock);
	if (!row)
		return CUDA_ERROR_ILLEGAL_STATE;
	*graph = into;
	return CUDA_SUCCESS;
}

int impl_cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph)
{
	void **row;

	ENTER(cuStreamGetCaptureInfo_v2);
	spin_lock(&captures_lock);
	row = stream ? capture_row(stream) : NULL;
	*status = row != NULL;
	if (id && row)
		*id = row - captures + 1;
	if (graph && row)
		*graph = captured_into[row - captures];
	spin_unlock(&captures_lock);
	return CUDA_SUCCESS;
}

int impl_cuStreamIsCapturing(void *stream, int *status)
{
	ENTER(cuStreamIsCapturing);
	spin_lock(&captures_lock);
	*status = stream && capture_row(stream);
	spin_unlock(&captures_lock);
	return CUDA_SUCCESS;
}

int impl_cuEventElapsedTime(float *ms, void *start, void *end)
{
	ENTER(cuEventElapsedTime);
	if (!start || !end)
		return CUDA_ERROR_INVALID_HANDLE;
	*ms = 1.0f;
	return CUDA_SUCCESS;
}

int impl_cuModuleGetFunction(const void **function, void *module, const char *name)
{
	(void)module;
	ENTER(cuModuleGetFunction);
	return kernel_by_name(function, name);
}

int impl_cuLibraryGetKernel(const void **kernel, void *library, const char *name)
{
	(void)library;
	ENTER(cuLibraryGetKernel);
	return kernel_by_name(kernel, name);
}

int impl_cuKernelGetFunction(const void **function, const void *kernel)
{
	ENTER(cuKernelGetFunction);
	*function = kernel;
	return CUDA_SUCCESS;
}

int impl_cuFuncGetName(const char **name, const void *function)
{
	ENTER(cuFuncGetName);
	return name_of_kernel(name, function);
}

int impl_cuKernelGetName(const char **name, const void *kernel)
{
	ENTER(cuKernelGetName);
	return name_of_kernel(name, kernel);
}

int impl_cuLaunchKernel(const void *function)
{
	ENTER(cuLaunchKernel);
	return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

int impl_cuLaunchCooperativeKernel(const void *function)
{
	ENTER(cuLaunchCooperativeKernel);
	return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

int impl_cuLaunchKernelEx(const void *config, const void *function)
{
	ENTER(cuLaunchKernelEx);
	return config && function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Host functions run immediately, on the calling thread, inside the call. */
int impl_cuLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
	(void)stream;
	ENTER(cuLaunchHostFunc);
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	function(data);
	return CUDA_SUCCESS;
}

int impl_cuStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data,
			     unsigned int flags)
{
	(void)flags;
	ENTER(cuStreamAddCallback);
	if (!callback)
		return CUDA_ERROR_INVALID_VALUE;
	callback(stream, CUDA_SUCCESS, data);
	return CUDA_SUCCESS;
}
