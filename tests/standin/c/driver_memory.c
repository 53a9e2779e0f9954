/* Allocation and free functions of the stand-in driver. Copies and memsets need no code: the default
 * succeeds. */
#include "driver.h"

#define PITCH 512

int impl_cuMemAlloc_v2(void **out, size_t size)
{
	ENTER(cuMemAlloc_v2);
	return heap_alloc(HEAP_DEVICE, size, out);
}

int impl_cuMemAllocPitch_v2(void **out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	size_t row = (width + PITCH - 1) / PITCH * PITCH;
	int result;

	ENTER(cuMemAllocPitch_v2);
	if (!pitch || (element != 4 && element != 8 && element != 16) || (height && row > SIZE_MAX / height))
		return CUDA_ERROR_INVALID_VALUE;
	result = heap_alloc(HEAP_DEVICE, row * height, out);
	if (!result)
		*pitch = row;
	return result;
}

int impl_cuMemAllocManaged(void **out, size_t size, unsigned int flags)
{
	ENTER(cuMemAllocManaged);
	if (flags != 1 && flags != 2)
		return CUDA_ERROR_INVALID_VALUE;
	return heap_alloc(HEAP_MANAGED, size, out);
}

int impl_cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	(void)flags;
	ENTER(cuMemHostAlloc);
	return heap_alloc(HEAP_PINNED, size, out);
}

int impl_cuMemAllocHost_v2(void **out, size_t size)
{
	ENTER(cuMemAllocHost_v2);
	return heap_alloc(HEAP_PINNED, size, out);
}

int impl_cuMemAllocAsync(void **out, size_t size, void *stream)
{
	(void)stream;
	ENTER(cuMemAllocAsync);
	return heap_alloc(HEAP_POOL, size, out);
}

int impl_cuMemAllocFromPoolAsync(void **out, size_t size, void *pool, void *stream)
{
	(void)stream;
	ENTER(cuMemAllocFromPoolAsync);
	return pool ? heap_alloc(HEAP_POOL, size, out) : CUDA_ERROR_INVALID_VALUE;
}

int impl_cuMemFree_v2(const void *address)
{
	ENTER(cuMemFree_v2);
	return heap_free(HEAP_BIT(HEAP_DEVICE) | HEAP_BIT(HEAP_MANAGED) | HEAP_BIT(HEAP_POOL), address);
}

int impl_cuMemFreeAsync(const void *address, void *stream)
{
	(void)stream;
	ENTER(cuMemFreeAsync);
	return heap_free(HEAP_BIT(HEAP_POOL), address);
}

int impl_cuMemFreeHost(const void *address)
{
	ENTER(cuMemFreeHost);
	return heap_free(HEAP_BIT(HEAP_PINNED), address);
}

static size_t element_bytes(unsigned int format, unsigned int channels)
{
	/* CUarray_format: 8-bit 0x01 0x08, 16-bit 0x02 0x09 0x10, 32-bit 0x03 0x0a 0x20 */
	size_t bytes = format == 0x01 || format == 0x08			    ? 1
		       : format == 0x03 || format == 0x0a || format == 0x20 ? 4
									    : 2;

	return bytes * channels;
}

int impl_cuArrayCreate_v2(void **out, const struct CUDA_ARRAY_DESCRIPTOR *d)
{
	ENTER(cuArrayCreate_v2);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return heap_alloc(HEAP_ARRAY,
			  d->Width * (d->Height ? d->Height : 1) * element_bytes(d->Format, d->NumChannels),
			  out);
}

int impl_cuArray3DCreate_v2(void **out, const struct CUDA_ARRAY3D_DESCRIPTOR *d)
{
	ENTER(cuArray3DCreate_v2);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return heap_alloc(HEAP_ARRAY,
			  d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1) *
			      element_bytes(d->Format, d->NumChannels),
			  out);
}

int impl_cuArrayDestroy(const void *array)
{
	ENTER(cuArrayDestroy);
	return array ? heap_free(HEAP_BIT(HEAP_ARRAY), array) : CUDA_ERROR_INVALID_HANDLE;
}

int impl_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	ENTER(cuMemGetInfo_v2);
	*free_bytes = DEVICE_TOTAL_BYTES - heap_device_live();
	*total_bytes = DEVICE_TOTAL_BYTES;
	return CUDA_SUCCESS;
}

int impl_cuMemGetAddressRange_v2(const void **base, size_t *size, const void *address)
{
	ENTER(cuMemGetAddressRange_v2);
	if (heap_kind_of(address, size) < 0)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = address;
	return CUDA_SUCCESS;
}

int impl_cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned int flags)
{
	(void)flags;
	ENTER(cuMemHostGetDevicePointer_v2);
	*device = host;
	return CUDA_SUCCESS;
}

/* CU_POINTER_ATTRIBUTE_MEMORY_TYPE is 2; the others leave the data alone. */
int impl_cuPointerGetAttribute(void *data, int attribute, const void *address)
{
	int kind;

	ENTER(cuPointerGetAttribute);
	kind = heap_kind_of(address, NULL);
	if (kind < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute == 2)
		*(unsigned int *)data = kind == HEAP_PINNED ? 1 : 2;
	return CUDA_SUCCESS;
}

#define IPC_SHIFT 0x40000000000ULL

int impl_cuIpcGetMemHandle(struct cudaIpcMemHandle *handle, const void *address)
{
	ENTER(cuIpcGetMemHandle);
	if (heap_kind_of(address, NULL) != HEAP_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &address, sizeof(address));
	return CUDA_SUCCESS;
}

int impl_cuIpcOpenMemHandle_v2(void **out, struct cudaIpcMemHandle handle, unsigned int flags)
{
	uint64_t address;

	(void)flags;
	ENTER(cuIpcOpenMemHandle_v2);
	memcpy(&address, &handle, sizeof(address));
	*out = (void *)(address + IPC_SHIFT);
	return CUDA_SUCCESS;
}
