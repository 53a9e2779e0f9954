/* Devices, versions and entry points. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

int standin_generic(const char *function)
{
	return faults_enter(function);
}

int impl_cuDriverGetVersion(int *version)
{
	ENTER(cuDriverGetVersion);
	*version = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetCount(int *count)
{
	ENTER(cuDeviceGetCount);
	*count = device_count();
	return CUDA_SUCCESS;
}

int impl_cuDeviceGet(int *device, int ordinal)
{
	ENTER(cuDeviceGet);
	if (device_physical(ordinal) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetName(char *name, int length, int device)
{
	ENTER(cuDeviceGetName);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)length, "Stand-in GPU %d", device_physical(device));
	return CUDA_SUCCESS;
}

void device_uuid(int physical, unsigned char uuid[16])
{
	for (int i = 0; i < 16; i++)
		uuid[i] = (unsigned char)(0x11 * (i % 15 + 1) + physical);
}

int impl_cuDeviceGetUuid_v2(char *uuid, int device)
{
	ENTER(cuDeviceGetUuid_v2);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	device_uuid(device_physical(device), (unsigned char *)uuid);
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetUuid(char *uuid, int device)
{
	return impl_cuDeviceGetUuid_v2(uuid, device);
}

int impl_cuDeviceGetPCIBusId(char *id, int length, int device)
{
	ENTER(cuDeviceGetPCIBusId);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(id, (size_t)length, "00000000:%02X:00.0", device_physical(device) + 1);
	return CUDA_SUCCESS;
}

int impl_cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	ENTER(cuDeviceTotalMem_v2);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = DEVICE_TOTAL_BYTES;
	return CUDA_SUCCESS;
}

/*
 * CUdevice_attribute: 16 multiprocessors, 75 and 76 the compute capability, 10 warp size; all others are 1.
 */
int impl_cuDeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER(cuDeviceGetAttribute);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : 1;
	return CUDA_SUCCESS;
}

static void *own_handle(void)
{
	static void *handle;
	Dl_info info;

	if (!__atomic_load_n(&handle, __ATOMIC_ACQUIRE) && dladdr((void *)own_handle, &info))
		__atomic_store_n(&handle, dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD), __ATOMIC_RELEASE);
	return handle;
}

/* The newest exported variant of a name; the per-thread variant if requested. */
static void *newest_export(const char *name, int per_thread)
{
	static const char *const versions[] = {"_v4", "_v3", "_v2", ""};
	static const char *const threads[] = {"_ptsz", "_ptds", ""};
	void *library = own_handle();
	char candidate[160];

	for (unsigned int v = 0; library && v < 4; v++) {
		for (unsigned int t = per_thread ? 0 : 2; t < 3; t++) {
			void *found;

			snprintf(candidate, sizeof(candidate), "%s%s%s", name, versions[v], threads[t]);
			found = dlsym(library, candidate);
			if (found)
				return found;
		}
	}
	return NULL;
}

int impl_cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
	(void)version;
	ENTER(cuGetProcAddress_v2);
	if (!name || !out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = newest_export(name, flags == 2);
	if (status)
		*status = *out ? 0 : 1;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int impl_cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
	(void)version;
	ENTER(cuGetProcAddress);
	if (!name || !out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = newest_export(name, flags == 2);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static const char *error_name(int code)
{
	switch (code) {
#define ERROR_NAME(value, name)                                                                              \
	case value:                                                                                          \
		return #name;
#include "driver_errors.h"
	}
	return NULL;
}

int impl_cuGetErrorName(int error, const char **name)
{
	ENTER(cuGetErrorName);
	*name = error_name(error);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int impl_cuGetErrorString(int error, const char **text)
{
	ENTER(cuGetErrorString);
	*text = error_name(error);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
