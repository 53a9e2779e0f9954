/*
 * Allocation and free functions of the stand-in driver. Copies and memsets need no code: the default
 * implementation succeeds.
 */
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
	int result;

	ENTER(cuMemFree_v2);
	result = heap_free(HEAP_BIT(HEAP_DEVICE) | HEAP_BIT(HEAP_MANAGED) | HEAP_BIT(HEAP_POOL), address);
	LEAVE(cuMemFree_v2);
	return result;
}

int impl_cuMemFreeAsync(const void *address, void *stream)
{
	int result;

	(void)stream;
	ENTER(cuMemFreeAsync);
	result = heap_free(HEAP_BIT(HEAP_POOL), address);
	LEAVE(cuMemFreeAsync);
	return result;
}

int impl_cuMemFreeHost(const void *address)
{
	int result;

	ENTER(cuMemFreeHost);
	result = heap_free(HEAP_BIT(HEAP_PINNED), address);
	LEAVE(cuMemFreeHost);
	return result;
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

/* Each level is half as large as the previous one in every dimension, and at least one element. */
int impl_cuMipmappedArrayCreate(void **out, const struct CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	size_t width, height, depth, elements = 0;

	ENTER(cuMipmappedArrayCreate);
	if (!d || !levels || levels > 32)
		return CUDA_ERROR_INVALID_VALUE;
	width = d->Width;
	height = d->Height ? d->Height : 1;
	depth = d->Depth ? d->Depth : 1;
	for (unsigned int level = 0; level < levels; level++) {
		elements += width * height * depth;
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : 1;
		depth = depth > 1 ? depth / 2 : 1;
	}
	return heap_alloc(HEAP_MIPMAPPED, elements * element_bytes(d->Format, d->NumChannels), out);
}

static int destroy_array(enum heap_kind kind, const void *array)
{
	return array && !heap_free(HEAP_BIT(kind), array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

int impl_cuArrayDestroy(const void *array)
{
	int result;

	ENTER(cuArrayDestroy);
	result = destroy_array(HEAP_ARRAY, array);
	LEAVE(cuArrayDestroy);
	return result;
}

int impl_cuMipmappedArrayDestroy(const void *array)
{
	int result;

	ENTER(cuMipmappedArrayDestroy);
	result = destroy_array(HEAP_MIPMAPPED, array);
	LEAVE(cuMipmappedArrayDestroy);
	return result;
}

int impl_cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
	(void)flags;
	ENTER(cuMemHostRegister_v2);
	return heap_register(address, size);
}

int impl_cuMemHostUnregister(const void *address)
{
	int result;

	ENTER(cuMemHostUnregister);
	result = address ? heap_free(HEAP_BIT(HEAP_REGISTERED), address) : CUDA_ERROR_INVALID_VALUE;
	LEAVE(cuMemHostUnregister);
	return result ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_SUCCESS;
}

int impl_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	uint64_t live = 0;
	int result;

	ENTER(cuMemGetInfo_v2);
	result = heap_current_device_live(&live);
	if (result)
		return result;
	*free_bytes = DEVICE_TOTAL_BYTES - live;
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

/* CU_POINTER_ATTRIBUTE_MEMORY_TYPE is 2; other attributes do not write the data. */
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

/* the address of the other process's memory here: the heap's addresses, shifted */
#define IPC_SHIFT 0x80000000000ULL
#define IPC_BASE 0x780000000000ULL

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

int impl_cuIpcCloseMemHandle(const void *address)
{
	ENTER(cuIpcCloseMemHandle);
	return (uint64_t)address >> 40 == IPC_BASE >> 40 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
