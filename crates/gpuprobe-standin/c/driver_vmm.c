/* The virtual memory interface: physical handles with references and mappings. */
#include "driver.h"

#define MAX_HANDLES 4096
#define MAX_MAPPINGS 8192
#define GRANULARITY (2ULL << 20)
#define FIRST_HANDLE 0x4a000001ULL
#define LOCATION_DEVICE 1
#define IMPORTED (-1)
#define RESERVE_BASE 0x760000000000ULL

struct physical {
	size_t size;
	unsigned int references, mappings;
	int device;
	struct CUmemAllocationProp prop;
};

struct mapping {
	uint64_t address;
	size_t size;
	struct physical *physical;
};

/* Searches only as many rows as were ever in use at the same time. */
static struct {
	struct physical handles[MAX_HANDLES];
	struct mapping mappings[MAX_MAPPINGS];
	unsigned int handles_used, mappings_used;
} vmm;

static uint64_t next_reserve = RESERVE_BASE;

void vmm_forget(void)
{
	for (unsigned int i = 0; i < vmm.handles_used; i++) {
		struct physical *physical = &vmm.handles[i];

		if ((physical->references || physical->mappings) && physical->device != IMPORTED)
			heap_give_physical(physical->device, physical->size);
	}
	memset(&vmm, 0, sizeof(vmm));
}

static struct physical *physical_of(uint64_t handle)
{
	uint64_t index = handle - FIRST_HANDLE;

	return index < MAX_HANDLES && vmm.handles[index].references ? &vmm.handles[index] : NULL;
}

/* Its number can be reused when both references and mappings are zero. */
static void end_if_unused(const struct physical *physical)
{
	if (!physical->references && !physical->mappings && physical->device != IMPORTED)
		heap_give_physical(physical->device, physical->size);
}

static int create(uint64_t *handle, size_t size, const struct CUmemAllocationProp *prop, int device)
{
	unsigned int i = 0;

	while (i < MAX_HANDLES && (vmm.handles[i].references || vmm.handles[i].mappings))
		i++;
	if (i == MAX_HANDLES || (device != IMPORTED && heap_take_physical(device, size)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	vmm.handles[i] = (struct physical){.size = size, .references = 1, .device = device, .prop = *prop};
	if (i == vmm.handles_used)
		vmm.handles_used++;
	*handle = FIRST_HANDLE + i;
	return CUDA_SUCCESS;
}

/* The properties select the device; host memory counts for the first device. */
int impl_cuMemCreate(uint64_t *handle, size_t size, const struct CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	int device, result;

	ENTER(cuMemCreate);
	if (!handle || !prop || !size || size % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	device = prop->location.type == LOCATION_DEVICE ? prop->location.id : 0;
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	spin_lock(&driver_lock);
	result = create(handle, size, prop, device);
	spin_unlock(&driver_lock);
	return result;
}

int impl_cuMemRelease(uint64_t handle)
{
	struct physical *physical;

	ENTER(cuMemRelease);
	spin_lock(&driver_lock);
	physical = physical_of(handle);
	if (physical) {
		physical->references--;
		end_if_unused(physical);
	}
	spin_unlock(&driver_lock);
	LEAVE(cuMemRelease);
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

static int overlaps(const struct mapping *mapping, uint64_t address, size_t size)
{
	return mapping->physical && mapping->address < address + size &&
	       address < mapping->address + mapping->size;
}

static int map(uint64_t address, size_t size, struct physical *physical)
{
	unsigned int row = vmm.mappings_used;

	for (unsigned int i = 0; i < vmm.mappings_used; i++) {
		if (overlaps(&vmm.mappings[i], address, size))
			return CUDA_ERROR_INVALID_VALUE;
		if (!vmm.mappings[i].physical)
			row = i;
	}
	if (row == MAX_MAPPINGS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (row == vmm.mappings_used)
		vmm.mappings_used++;
	vmm.mappings[row] = (struct mapping){address, size, physical};
	physical->mappings++;
	return CUDA_SUCCESS;
}

int impl_cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	struct physical *physical;
	int result = CUDA_ERROR_INVALID_VALUE;

	ENTER(cuMemMap);
	spin_lock(&driver_lock);
	physical = physical_of(handle);
	if (physical && address && size && !offset && !flags && size <= physical->size)
		result = map(address, size, physical);
	spin_unlock(&driver_lock);
	return result;
}

/* Whether the range consists of whole mappings. */
static int is_made_of_mappings(uint64_t address, size_t size)
{
	size_t covered = 0;

	for (unsigned int i = 0; i < vmm.mappings_used; i++) {
		const struct mapping *mapping = &vmm.mappings[i];

		if (!overlaps(mapping, address, size))
			continue;
		if (mapping->address < address || mapping->address + mapping->size > address + size)
			return 0;
		covered += mapping->size;
	}
	return size && covered == size;
}

/* One unmap may cover several whole mappings. */
int impl_cuMemUnmap(uint64_t address, size_t size)
{
	int result = CUDA_ERROR_INVALID_VALUE;

	ENTER(cuMemUnmap);
	spin_lock(&driver_lock);
	if (is_made_of_mappings(address, size)) {
		for (unsigned int i = 0; i < vmm.mappings_used; i++) {
			struct mapping *mapping = &vmm.mappings[i];

			if (!overlaps(mapping, address, size))
				continue;
			mapping->physical->mappings--;
			end_if_unused(mapping->physical);
			mapping->physical = NULL;
		}
		result = CUDA_SUCCESS;
	}
	spin_unlock(&driver_lock);
	LEAVE(cuMemUnmap);
	return result;
}

int impl_cuMemRetainAllocationHandle(uint64_t *handle, uint64_t address)
{
	int result = CUDA_ERROR_INVALID_VALUE;

	ENTER(cuMemRetainAllocationHandle);
	spin_lock(&driver_lock);
	for (unsigned int i = 0; i < vmm.mappings_used; i++) {
		struct mapping *mapping = &vmm.mappings[i];

		if (!mapping->physical || address < mapping->address ||
		    address >= mapping->address + mapping->size)
			continue;
		mapping->physical->references++;
		*handle = FIRST_HANDLE + (uint64_t)(mapping->physical - vmm.handles);
		result = CUDA_SUCCESS;
		break;
	}
	spin_unlock(&driver_lock);
	return result;
}

/* A shared handle contains the size of the memory, and any process can import it. */
int impl_cuMemExportToShareableHandle(int *shared, uint64_t handle, int type, unsigned long long flags)
{
	struct physical *physical;

	(void)type;
	(void)flags;
	ENTER(cuMemExportToShareableHandle);
	spin_lock(&driver_lock);
	physical = physical_of(handle);
	if (physical)
		*shared = (int)(physical->size / GRANULARITY);
	spin_unlock(&driver_lock);
	return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The import has its own handle; the device memory belongs to the exporter. */
int impl_cuMemImportFromShareableHandle(uint64_t *handle, uint64_t shared, int type)
{
	const struct CUmemAllocationProp prop = {.type = 1, .location = {LOCATION_DEVICE, 0}};
	size_t size = (size_t)shared * GRANULARITY;
	int result;

	(void)type;
	ENTER(cuMemImportFromShareableHandle);
	if (!handle || !shared || size > DEVICE_TOTAL_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	spin_lock(&driver_lock);
	result = create(handle, size, &prop, IMPORTED);
	spin_unlock(&driver_lock);
	return result;
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
