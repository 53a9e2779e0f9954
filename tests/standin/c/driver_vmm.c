/* The virtual memory interface: physical handles with references and mappings. */
#include "driver.h"

#define MAX_HANDLES 4096
#define MAX_MAPPINGS 8192
#define GRANULARITY (2ULL << 20)
#define FIRST_HANDLE 0x4a000001ULL
#define RESERVE_BASE 0x760000000000ULL

struct physical {
	size_t size;
	unsigned int references, mappings;
	struct CUmemAllocationProp prop;
};

struct mapping {
	uint64_t address;
	size_t size;
	struct physical *physical;
};

static struct {
	struct spinlock lock;
	struct physical handles[MAX_HANDLES];
	struct mapping mappings[MAX_MAPPINGS];
} vmm;

static uint64_t next_reserve = RESERVE_BASE;

static struct physical *physical_of(uint64_t handle)
{
	uint64_t index = handle - FIRST_HANDLE;

	return index < MAX_HANDLES && vmm.handles[index].references ? &vmm.handles[index] : NULL;
}

int impl_cuMemCreate(uint64_t *handle, size_t size, const struct CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	int result = CUDA_ERROR_OUT_OF_MEMORY;

	ENTER(cuMemCreate);
	if (!handle || !prop || !size || size % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > DEVICE_TOTAL_BYTES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	spin_lock(&vmm.lock);
	for (unsigned int i = 0; i < MAX_HANDLES; i++) {
		struct physical *physical = &vmm.handles[i];

		if (physical->references || physical->mappings)
			continue;
		*physical = (struct physical){.size = size, .references = 1, .prop = *prop};
		*handle = FIRST_HANDLE + i;
		result = CUDA_SUCCESS;
		break;
	}
	spin_unlock(&vmm.lock);
	return result;
}

int impl_cuMemRelease(uint64_t handle)
{
	struct physical *physical;

	ENTER(cuMemRelease);
	spin_lock(&vmm.lock);
	physical = physical_of(handle);
	if (physical)
		physical->references--;
	spin_unlock(&vmm.lock);
	return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int impl_cuMemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t hint,
			     unsigned long long flags)
{
	(void)alignment;
	(void)hint;
	ENTER(cuMemAddressReserve);
	if (!out || !size || size % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = __atomic_fetch_add(&next_reserve, size, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

int impl_cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	struct physical *physical;
	int result = CUDA_ERROR_INVALID_VALUE;

	ENTER(cuMemMap);
	spin_lock(&vmm.lock);
	physical = physical_of(handle);
	for (unsigned int i = 0; physical && !offset && !flags && size <= physical->size && i < MAX_MAPPINGS;
	     i++) {
		if (vmm.mappings[i].physical)
			continue;
		vmm.mappings[i] = (struct mapping){address, size, physical};
		physical->mappings++;
		result = CUDA_SUCCESS;
		break;
	}
	spin_unlock(&vmm.lock);
	return result;
}

/* One unmap may span several whole mappings. */
int impl_cuMemUnmap(uint64_t address, size_t size)
{
	int result = CUDA_ERROR_INVALID_VALUE;

	ENTER(cuMemUnmap);
	spin_lock(&vmm.lock);
	for (unsigned int i = 0; i < MAX_MAPPINGS; i++) {
		struct mapping *mapping = &vmm.mappings[i];

		if (!mapping->physical || mapping->address < address ||
		    mapping->address + mapping->size > address + size)
			continue;
		mapping->physical->mappings--;
		mapping->physical = NULL;
		result = CUDA_SUCCESS;
	}
	spin_unlock(&vmm.lock);
	return result;
}

int impl_cuMemRetainAllocationHandle(uint64_t *handle, uint64_t address)
{
	int result = CUDA_ERROR_INVALID_VALUE;

	ENTER(cuMemRetainAllocationHandle);
	spin_lock(&vmm.lock);
	for (unsigned int i = 0; i < MAX_MAPPINGS; i++) {
		struct mapping *mapping = &vmm.mappings[i];

		if (!mapping->physical || address < mapping->address ||
		    address >= mapping->address + mapping->size)
			continue;
		mapping->physical->references++;
		*handle = FIRST_HANDLE + (uint64_t)(mapping->physical - vmm.handles);
		result = CUDA_SUCCESS;
		break;
	}
	spin_unlock(&vmm.lock);
	return result;
}

/* A shared handle is the number of the handle itself; an import takes one more reference. */
int impl_cuMemExportToShareableHandle(int *shared, uint64_t handle, int type, unsigned long long flags)
{
	(void)type;
	(void)flags;
	ENTER(cuMemExportToShareableHandle);
	if (!physical_of(handle))
		return CUDA_ERROR_INVALID_VALUE;
	*shared = (int)(handle - FIRST_HANDLE);
	return CUDA_SUCCESS;
}

int impl_cuMemImportFromShareableHandle(uint64_t *handle, uint64_t shared, int type)
{
	struct physical *physical;

	(void)type;
	ENTER(cuMemImportFromShareableHandle);
	spin_lock(&vmm.lock);
	physical = physical_of(FIRST_HANDLE + shared);
	if (physical) {
		physical->references++;
		*handle = FIRST_HANDLE + shared;
	}
	spin_unlock(&vmm.lock);
	return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int impl_cuMemGetAllocationGranularity(size_t *granularity, const struct CUmemAllocationProp *prop,
				       int option)
{
	(void)prop;
	(void)option;
	ENTER(cuMemGetAllocationGranularity);
	*granularity = GRANULARITY;
	return CUDA_SUCCESS;
}

int impl_cuMemGetAllocationPropertiesFromHandle(struct CUmemAllocationProp *prop, uint64_t handle)
{
	struct physical *physical;

	ENTER(cuMemGetAllocationPropertiesFromHandle);
	physical = physical_of(handle);
	if (!physical)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = physical->prop;
	return CUDA_SUCCESS;
}
