/* Calls of HIP where the arguments of CUDA are different. */
#include "launches.h"

int hipGraphAddNode(void **node, void *graph, const void *dependencies, size_t count, const void *params);
int hipGraphExecUpdate(void *exec, void *graph, void **node, int *result);

int hip_alloc(uint64_t *address, size_t size)
{
	return hipMalloc((void **)address, size);
}

int hip_alloc_managed(uint64_t *address, size_t size, unsigned int flags)
{
	return hipMallocManaged((void **)address, size, flags);
}

int hip_alloc_async(uint64_t *address, size_t size, void *stream)
{
	return hipMallocAsync((void **)address, size, stream);
}

int hip_free(uint64_t address)
{
	return hipFree((void *)address);
}

int hip_free_async(uint64_t address, void *stream)
{
	return hipFreeAsync((void *)address, stream);
}

int hip_add_node(void **node, void *graph, const void *dependencies, const void *data, size_t count,
		 const void *params)
{
	(void)data;
	return hipGraphAddNode(node, graph, dependencies, count, params);
}

int hip_update(void *exec, void *graph, void *result)
{
	int status;

	(void)result;
	return hipGraphExecUpdate(exec, graph, NULL, &status);
}

/* A launch of a module's kernel has no variant for the stream of the thread, so that stream is named. */
int hip_launch_on_thread(void *f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			 unsigned int block_x, unsigned int block_y, unsigned int block_z,
			 unsigned int shared, void *stream, void **params, void **extra)
{
	return hipModuleLaunchKernel(f, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
				     stream ? stream : (void *)2, params, extra);
}
