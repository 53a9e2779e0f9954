/* Launches, registration, graphs, streams and events of the stand-in runtime. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_REGISTERED 1024

static struct {
	pthread_mutex_t lock;
	unsigned int count;
	struct {
		const void *host;
		const char *name;
	} rows[MAX_REGISTERED];
} registered = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct {
	struct dim3 grid, block;
	size_t shared;
	void *stream;
} pushed;

void **impl___cudaRegisterFatBinary(void *fatbin)
{
	void **handle = malloc(sizeof(*handle));

	if (handle)
		*handle = fatbin;
	return handle;
}

void impl___cudaRegisterFatBinaryEnd(void **handle)
{
	(void)handle;
}

void impl___cudaUnregisterFatBinary(void **handle)
{
	free(handle);
}

char impl___cudaInitModule(void **handle)
{
	return handle != NULL;
}

void impl___cudaRegisterFunction(void **handle, const char *host, char *device, const char *name)
{
	(void)handle;
	(void)device;
	pthread_mutex_lock(&registered.lock);
	if (registered.count < MAX_REGISTERED) {
		registered.rows[registered.count].host = host;
		registered.rows[registered.count].name = name;
		registered.count++;
	}
	pthread_mutex_unlock(&registered.lock);
}

void impl___cudaRegisterVar(void)
{
}

void impl___cudaRegisterManagedVar(void)
{
}

void impl___cudaRegisterHostVar(void)
{
}

void impl___cudaRegisterUnifiedTable(void)
{
}

const char *runtime_kernel_name(const void *host_function)
{
	const char *name = NULL;

	pthread_mutex_lock(&registered.lock);
	for (unsigned int i = 0; i < registered.count && !name; i++) {
		if (registered.rows[i].host == host_function)
			name = registered.rows[i].name;
	}
	pthread_mutex_unlock(&registered.lock);
	return name;
}

unsigned int impl___cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared,
					      void *stream)
{
	pushed.grid = grid;
	pushed.block = block;
	pushed.shared = shared;
	pushed.stream = stream;
	return 0;
}

int impl___cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void **stream)
{
	*grid = pushed.grid;
	*block = pushed.block;
	*shared = pushed.shared;
	*stream = pushed.stream;
	return cudaSuccess;
}

/* CUDA 12 returns the host function, CUDA 13 the driver's handle of a registered one. */
int impl___cudaGetKernel(void **handle, const void *host)
{
	const char *name;
	void *found = NULL;

	*handle = (void *)host;
	ENTER(__cudaGetKernel);
	name = runtime_kernel_name(host);
	if (!inner.__cudaGetKernel(&found, NULL, name ? name : "") && CUDA_MAJOR >= 13)
		*handle = found;
	return cudaSuccess;
}

int impl_cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **parameters,
			  size_t shared, void *stream)
{
	ENTER(cudaLaunchKernel);
	return runtime_done(inner.cudaLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y,
						   block.z, (unsigned int)shared, stream, parameters, NULL));
}

int impl_cudaLaunchCooperativeKernel(const void *function, struct dim3 grid, struct dim3 block,
				     void **parameters, size_t shared, void *stream)
{
	ENTER(cudaLaunchCooperativeKernel);
	return runtime_done(inner.cudaLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x,
							      block.y, block.z, (unsigned int)shared, stream,
							      parameters));
}

int impl_cudaLaunchKernelExC(const struct cudaLaunchConfig *config, const void *function, void **parameters)
{
	struct CUlaunchConfig launch;

	ENTER(cudaLaunchKernelExC);
	launch = (struct CUlaunchConfig){
	    config->gridDim.x,
	    config->gridDim.y,
	    config->gridDim.z,
	    config->blockDim.x,
	    config->blockDim.y,
	    config->blockDim.z,
	    (unsigned int)config->dynamicSmemBytes,
	    config->stream,
	    config->attrs,
	    config->numAttrs,
	};
	return runtime_done(inner.cudaLaunchKernelExC(&launch, function, parameters, NULL));
}

int impl_cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
	ENTER(cudaLaunchHostFunc);
	return runtime_done(inner.cudaLaunchHostFunc(stream, function, data));
}

int impl_cudaStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data,
			       unsigned int flags)
{
	ENTER(cudaStreamAddCallback);
	return runtime_done(inner.cudaStreamAddCallback(stream, callback, data, flags));
}

int impl_cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags)
{
	ENTER(cudaGraphInstantiate);
	return runtime_done(inner.cudaGraphInstantiate(exec, graph, flags));
}

int impl_cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
	ENTER(cudaGraphInstantiateWithFlags);
	return runtime_done(inner.cudaGraphInstantiateWithFlags(exec, graph, flags));
}

int impl_cudaStreamEndCapture(void *stream, void **graph)
{
	ENTER(cudaStreamEndCapture);
	return runtime_done(inner.cudaStreamEndCapture(stream, graph));
}

int impl_cudaStreamIsCapturing(void *stream, int *status)
{
	ENTER(cudaStreamIsCapturing);
	return runtime_done(inner.cudaStreamIsCapturing(stream, status));
}

int impl_cudaStreamBeginCapture(void *stream, int mode)
{
	ENTER(cudaStreamBeginCapture);
	return runtime_done(inner.cudaStreamBeginCapture(stream, mode));
}

int impl_cudaDeviceSynchronize(void)
{
	ENTER(cudaDeviceSynchronize);
	return runtime_done(inner.cudaDeviceSynchronize());
}

int impl_cudaStreamCreate(void **stream)
{
	ENTER(cudaStreamCreate);
	return runtime_done(inner.cudaStreamCreate(stream, 0));
}

int impl_cudaStreamCreateWithPriority(void **stream, unsigned int flags, int priority)
{
	ENTER(cudaStreamCreateWithPriority);
	return runtime_done(inner.cudaStreamCreateWithPriority(stream, flags, priority));
}

int impl_cudaStreamWaitEvent(void *stream, void *event, unsigned int flags)
{
	ENTER(cudaStreamWaitEvent);
	return runtime_done(inner.cudaStreamWaitEvent(stream, event, flags));
}

int impl_cudaEventCreate(void **event)
{
	ENTER(cudaEventCreate);
	return runtime_done(inner.cudaEventCreate(event, 0));
}

int impl_cudaEventElapsedTime(float *ms, void *start, void *end)
{
	ENTER(cudaEventElapsedTime);
	return runtime_done(inner.cudaEventElapsedTime(ms, start, end));
}

#define ONE_ARGUMENT(function)                                                                               \
	int impl_##function(void *handle)                                                                    \
	{                                                                                                    \
		ENTER(function);                                                                             \
		return runtime_done(inner.function(handle));                                                 \
	}

ONE_ARGUMENT(cudaGraphDestroy)
ONE_ARGUMENT(cudaGraphExecDestroy)
ONE_ARGUMENT(cudaStreamSynchronize)
ONE_ARGUMENT(cudaStreamDestroy)
ONE_ARGUMENT(cudaStreamQuery)
ONE_ARGUMENT(cudaEventSynchronize)
ONE_ARGUMENT(cudaEventDestroy)
ONE_ARGUMENT(cudaEventQuery)

#define HANDLE_AND_FLAGS(function)                                                                           \
	int impl_##function(void **handle, unsigned int flags)                                               \
	{                                                                                                    \
		ENTER(function);                                                                             \
		return runtime_done(inner.function(handle, flags));                                          \
	}

HANDLE_AND_FLAGS(cudaGraphCreate)
HANDLE_AND_FLAGS(cudaStreamCreateWithFlags)
HANDLE_AND_FLAGS(cudaEventCreateWithFlags)

#define TWO_HANDLES(function)                                                                                \
	int impl_##function(void *first, void *second)                                                       \
	{                                                                                                    \
		ENTER(function);                                                                             \
		return runtime_done(inner.function(first, second));                                          \
	}

TWO_HANDLES(cudaGraphLaunch)
TWO_HANDLES(cudaEventRecord)
