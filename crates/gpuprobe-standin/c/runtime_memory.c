/* Allocations and frees of the stand-in runtime. */
#include "runtime.h"

/* The element size that the driver expects for a pitched allocation. */
#define PITCH_ELEMENT 4

int impl_cudaMalloc(void **out, size_t size)
{
	ENTER_BOUND(cudaMalloc);
	return runtime_done(inner.cudaMalloc(out, size));
}

int impl_cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
	ENTER_BOUND(cudaMallocPitch);
	return runtime_done(inner.cudaMallocPitch(out, pitch, width, height, PITCH_ELEMENT));
}

int impl_cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent)
{
	int result;

	ENTER_BOUND(cudaMalloc3D);
	result = inner.cudaMalloc3D(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth,
				    PITCH_ELEMENT);
	if (!result) {
		out->xsize = extent.width;
		out->ysize = extent.height;
	}
	return runtime_done(result);
}

int impl_cudaMallocManaged(void **out, size_t size, unsigned int flags)
{
	ENTER_BOUND(cudaMallocManaged);
	return runtime_done(inner.cudaMallocManaged(out, size, flags));
}

int impl_cudaMallocHost(void **out, size_t size)
{
	ENTER_BOUND(cudaMallocHost);
	return runtime_done(inner.cudaMallocHost(out, size, 0));
}

int impl_cudaHostAlloc(void **out, size_t size, unsigned int flags)
{
	ENTER_BOUND(cudaHostAlloc);
	return runtime_done(inner.cudaHostAlloc(out, size, flags));
}

int impl_cudaMallocAsync(void **out, size_t size, void *stream)
{
	ENTER_BOUND(cudaMallocAsync);
	return runtime_done(inner.cudaMallocAsync(out, size, stream));
}

int impl_cudaMallocFromPoolAsync(void **out, size_t size, void *pool, void *stream)
{
	ENTER_BOUND(cudaMallocFromPoolAsync);
	return runtime_done(inner.cudaMallocFromPoolAsync(out, size, pool, stream));
}

/* CUarray_format of a channel: unsigned 1, 2, 3 and signed 8, 9, 10 by width; half 16, float 32. */
static unsigned int array_format(const struct cudaChannelFormatDesc *desc)
{
	unsigned int step = desc->x == 8 ? 0 : desc->x == 16 ? 1 : 2;

	if (desc->f == 2)
		return desc->x == 16 ? 0x10 : 0x20;
	return (desc->f == 0 ? 8 : 1) + step;
}

static unsigned int array_channels(const struct cudaChannelFormatDesc *desc)
{
	return 1u + (desc->y > 0) + (desc->z > 0) + (desc->w > 0);
}

int impl_cudaMallocArray(void **out, const struct cudaChannelFormatDesc *desc, size_t width, size_t height,
			 unsigned int flags)
{
	struct CUDA_ARRAY_DESCRIPTOR array = {width, height, array_format(desc), array_channels(desc)};

	(void)flags;
	ENTER_BOUND(cudaMallocArray);
	return runtime_done(inner.cudaMallocArray(out, &array));
}

int impl_cudaMalloc3DArray(void **out, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
			   unsigned int flags)
{
	struct CUDA_ARRAY3D_DESCRIPTOR array = {
	    extent.width, extent.height, extent.depth, array_format(desc), array_channels(desc), flags,
	};

	ENTER_BOUND(cudaMalloc3DArray);
	return runtime_done(inner.cudaMalloc3DArray(out, &array));
}

int impl_cudaMallocMipmappedArray(void **out, const struct cudaChannelFormatDesc *desc,
				  struct cudaExtent extent, unsigned int levels, unsigned int flags)
{
	struct CUDA_ARRAY3D_DESCRIPTOR array = {
	    extent.width, extent.height, extent.depth, array_format(desc), array_channels(desc), flags,
	};

	ENTER_BOUND(cudaMallocMipmappedArray);
	return runtime_done(inner.cudaMallocMipmappedArray(out, &array, levels));
}

int impl_cudaFree(void *address)
{
	ENTER_BOUND(cudaFree);
	return runtime_done(inner.cudaFree(address));
}

int impl_cudaFreeHost(void *address)
{
	ENTER_BOUND(cudaFreeHost);
	return runtime_done(inner.cudaFreeHost(address));
}

int impl_cudaFreeAsync(void *address, void *stream)
{
	ENTER_BOUND(cudaFreeAsync);
	return runtime_done(inner.cudaFreeAsync(address, stream));
}

int impl_cudaFreeArray(void *array)
{
	ENTER_BOUND(cudaFreeArray);
	return runtime_done(inner.cudaFreeArray(array));
}

int impl_cudaFreeMipmappedArray(void *array)
{
	ENTER_BOUND(cudaFreeMipmappedArray);
	return runtime_done(inner.cudaFreeMipmappedArray(array));
}

int impl_cudaHostRegister(void *address, size_t size, unsigned int flags)
{
	ENTER_BOUND(cudaHostRegister);
	return runtime_done(inner.cudaHostRegister(address, size, flags));
}

int impl_cudaHostUnregister(void *address)
{
	ENTER_BOUND(cudaHostUnregister);
	return runtime_done(inner.cudaHostUnregister(address));
}

int impl_cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
	ENTER_BOUND(cudaHostGetDevicePointer);
	return runtime_done(inner.cudaHostGetDevicePointer(device, host, flags));
}

/* cudaMemoryType: 0 unregistered, 1 host, 2 device */
int impl_cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *address)
{
	unsigned int type = 0;

	ENTER_BOUND(cudaPointerGetAttributes);
	inner.cudaPointerGetAttributes(&type, 2, address);
	out->type = (int)type;
	out->device = 0;
	out->devicePointer = type ? (void *)address : NULL;
	out->hostPointer = type == 1 ? (void *)address : NULL;
	return cudaSuccess;
}

int impl_cudaIpcGetMemHandle(struct cudaIpcMemHandle *handle, void *address)
{
	ENTER_BOUND(cudaIpcGetMemHandle);
	return runtime_done(inner.cudaIpcGetMemHandle(handle, address));
}

int impl_cudaIpcOpenMemHandle(void **out, struct cudaIpcMemHandle handle, unsigned int flags)
{
	ENTER_BOUND(cudaIpcOpenMemHandle);
	return runtime_done(inner.cudaIpcOpenMemHandle(out, handle, flags));
}

int impl_cudaIpcCloseMemHandle(void *address)
{
	ENTER_BOUND(cudaIpcCloseMemHandle);
	return runtime_done(inner.cudaIpcCloseMemHandle(address));
}

int impl_cudaDeviceGetDefaultMemPool(void **pool, int device)
{
	ENTER_BOUND(cudaDeviceGetDefaultMemPool);
	return runtime_done(inner.cudaDeviceGetDefaultMemPool(pool, device));
}

int impl_cudaDeviceGetMemPool(void **pool, int device)
{
	ENTER_BOUND(cudaDeviceGetMemPool);
	return runtime_done(inner.cudaDeviceGetMemPool(pool, device));
}

int impl_cudaMemPoolCreate(void **pool, const void *properties)
{
	ENTER_BOUND(cudaMemPoolCreate);
	return runtime_done(inner.cudaMemPoolCreate(pool, properties));
}

int impl_cudaMemPoolDestroy(void *pool)
{
	ENTER_BOUND(cudaMemPoolDestroy);
	return runtime_done(inner.cudaMemPoolDestroy(pool));
}

int impl_cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	ENTER_BOUND(cudaMemGetInfo);
	return runtime_done(inner.cudaMemGetInfo(free_bytes, total_bytes));
}

#if CUDA_MAJOR >= 13
int impl_cudaMemPrefetchAsync(const void *address, size_t count, struct cudaMemLocation location,
			      unsigned int flags, void *stream)
{
	ENTER_BOUND(cudaMemPrefetchAsync);
	return runtime_done(inner.cudaMemPrefetchAsync(address, count, location, flags, stream));
}
#else
int impl_cudaMemPrefetchAsync(const void *address, size_t count, int device, void *stream)
{
	struct cudaMemLocation location = {device < 0 ? 2 : 1, device < 0 ? 0 : device};

	ENTER_BOUND(cudaMemPrefetchAsync);
	return runtime_done(inner.cudaMemPrefetchAsync(address, count, location, 0, stream));
}

int impl_cudaMemPrefetchAsync_v2(const void *address, size_t count, struct cudaMemLocation location,
				 unsigned int flags, void *stream)
{
	ENTER_BOUND(cudaMemPrefetchAsync_v2);
	return runtime_done(inner.cudaMemPrefetchAsync_v2(address, count, location, flags, stream));
}
#endif
