/*
 * Streams, events, modules and launches of the stand-in driver: handles, and callbacks that run immediately.
 */
#include "driver.h"

#include <stdlib.h>

#include "gpu_op.h"

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

void handle_free(enum handle_kind kind, void *handle)
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

uint32_t handle_number(void *handle)
{
	return (uint32_t)(((uint64_t)handle - FIRST_RANGE) % HANDLE_RANGE / HANDLE_STEP);
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

const char *kernel_name(const void *handle)
{
	const char *name = NULL;

	return name_of_kernel(&name, handle) ? NULL : name;
}

NEW_HANDLE(cuStreamCreate, HANDLE_STREAM)
NEW_HANDLE(cuStreamCreateWithPriority, HANDLE_STREAM)
NEW_HANDLE(cuEventCreate, HANDLE_EVENT)
NEW_HANDLE(cuModuleLoad, HANDLE_MODULE)
NEW_HANDLE(cuModuleLoadData, HANDLE_MODULE)
NEW_HANDLE(cuModuleLoadDataEx, HANDLE_MODULE)
NEW_HANDLE(cuModuleLoadFatBinary, HANDLE_MODULE)
NEW_HANDLE(cuLibraryLoadData, HANDLE_MODULE)
NEW_HANDLE(cuLibraryLoadFromFile, HANDLE_MODULE)
NEW_HANDLE(cuLibraryGetModule, HANDLE_MODULE)
NEW_HANDLE(cuMemPoolCreate, HANDLE_POOL)

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

static int launch(const void *function, const unsigned int grid[3], const unsigned int block[3],
		  unsigned int shared_bytes, void *stream)
{
	struct gpu_op op = {
	    .kind = GPU_OP_KERNEL,
	    .grid = {grid[0], grid[1], grid[2]},
	    .block = {block[0], block[1], block[2]},
	    .shared_bytes = shared_bytes,
	};

	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (LIKELY(!gpu_is_observed()))
		return CUDA_SUCCESS;
	op.name = kernel_name(function);
	gpu_submit(stream, &op);
	return CUDA_SUCCESS;
}

int impl_cuLaunchKernel(const void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z,
			unsigned int shared_bytes, void *stream)
{
	ENTER(cuLaunchKernel);
	return launch(function, (unsigned int[]){grid_x, grid_y, grid_z},
		      (unsigned int[]){block_x, block_y, block_z}, shared_bytes, stream);
}

int impl_cuLaunchCooperativeKernel(const void *function, unsigned int grid_x, unsigned int grid_y,
				   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				   unsigned int block_z, unsigned int shared_bytes, void *stream)
{
	ENTER(cuLaunchCooperativeKernel);
	return launch(function, (unsigned int[]){grid_x, grid_y, grid_z},
		      (unsigned int[]){block_x, block_y, block_z}, shared_bytes, stream);
}

int impl_cuLaunchKernelEx(const struct CUlaunchConfig *config, const void *function)
{
	ENTER(cuLaunchKernelEx);
	if (!config)
		return CUDA_ERROR_INVALID_HANDLE;
	return launch(function, (unsigned int[]){config->gridDimX, config->gridDimY, config->gridDimZ},
		      (unsigned int[]){config->blockDimX, config->blockDimY, config->blockDimZ},
		      config->sharedMemBytes, config->hStream);
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
