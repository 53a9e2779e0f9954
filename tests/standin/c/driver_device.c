/* One device, its contexts, versions and entry points. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define CONTEXT_STACK 16

static __thread uint64_t contexts[CONTEXT_STACK];
static __thread unsigned int context_depth;
static int primary_references;

uint64_t context_current(void)
{
	return context_depth ? contexts[context_depth - 1] : PRIMARY_CONTEXT;
}

static void context_push(uint64_t context)
{
	if (context_depth < CONTEXT_STACK)
		contexts[context_depth++] = context;
}

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
	*count = 1;
	return CUDA_SUCCESS;
}

int impl_cuDeviceGet(int *device, int ordinal)
{
	ENTER(cuDeviceGet);
	if (ordinal)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = 0;
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetName(char *name, int length, int device)
{
	ENTER(cuDeviceGetName);
	snprintf(name, (size_t)length, "Stand-in GPU %d", device);
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetUuid_v2(char *uuid, int device)
{
	ENTER(cuDeviceGetUuid_v2);
	for (int i = 0; i < 16; i++)
		uuid[i] = (char)(0x11 * (i % 15 + 1) + device);
	return CUDA_SUCCESS;
}

int impl_cuDeviceGetUuid(char *uuid, int device)
{
	return impl_cuDeviceGetUuid_v2(uuid, device);
}

int impl_cuDeviceGetPCIBusId(char *id, int length, int device)
{
	ENTER(cuDeviceGetPCIBusId);
	snprintf(id, (size_t)length, "00000000:%02X:00.0", device + 1);
	return CUDA_SUCCESS;
}

int impl_cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	(void)device;
	ENTER(cuDeviceTotalMem_v2);
	*bytes = DEVICE_TOTAL_BYTES;
	return CUDA_SUCCESS;
}

/* CUdevice_attribute: 16 multiprocessors, 75 and 76 the compute capability, 10 warp size; the rest say 1. */
int impl_cuDeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER(cuDeviceGetAttribute);
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	*value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : 1;
	return CUDA_SUCCESS;
}

int impl_cuCtxGetDevice(int *device)
{
	ENTER(cuCtxGetDevice);
	*device = 0;
	return CUDA_SUCCESS;
}

int impl_cuDevicePrimaryCtxRetain(uint64_t *context, int device)
{
	ENTER(cuDevicePrimaryCtxRetain);
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	__atomic_add_fetch(&primary_references, 1, __ATOMIC_RELAXED);
	*context = PRIMARY_CONTEXT;
	return CUDA_SUCCESS;
}

/* The last release frees what the context owns. */
int impl_cuDevicePrimaryCtxRelease_v2(int device)
{
	int left;

	ENTER(cuDevicePrimaryCtxRelease_v2);
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	left = __atomic_sub_fetch(&primary_references, 1, __ATOMIC_RELAXED);
	if (left < 0) {
		__atomic_add_fetch(&primary_references, 1, __ATOMIC_RELAXED);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (!left)
		heap_drop_context(PRIMARY_CONTEXT);
	return CUDA_SUCCESS;
}

int impl_cuDevicePrimaryCtxReset_v2(int device)
{
	ENTER(cuDevicePrimaryCtxReset_v2);
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	heap_drop_context(PRIMARY_CONTEXT);
	return CUDA_SUCCESS;
}

int impl_cuCtxCreate_v2(uint64_t *context, unsigned int flags, int device)
{
	(void)flags;
	ENTER(cuCtxCreate_v2);
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = (uint64_t)handle_new(HANDLE_CONTEXT);
	context_push(*context);
	return CUDA_SUCCESS;
}

int impl_cuCtxCreate_v4(uint64_t *context, void *params, unsigned int flags, int device)
{
	(void)params;
	(void)flags;
	ENTER(cuCtxCreate_v4);
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = (uint64_t)handle_new(HANDLE_CONTEXT);
	context_push(*context);
	return CUDA_SUCCESS;
}

int impl_cuCtxDestroy_v2(uint64_t context)
{
	ENTER(cuCtxDestroy_v2);
	heap_drop_context(context);
	if (context_depth && contexts[context_depth - 1] == context)
		context_depth--;
	return CUDA_SUCCESS;
}

int impl_cuCtxGetCurrent(uint64_t *context)
{
	ENTER(cuCtxGetCurrent);
	*context = context_current();
	return CUDA_SUCCESS;
}

int impl_cuCtxSetCurrent(uint64_t context)
{
	ENTER(cuCtxSetCurrent);
	if (context_depth)
		context_depth--;
	if (context)
		context_push(context);
	return CUDA_SUCCESS;
}

int impl_cuCtxPushCurrent_v2(uint64_t context)
{
	ENTER(cuCtxPushCurrent_v2);
	context_push(context);
	return CUDA_SUCCESS;
}

int impl_cuCtxPopCurrent_v2(uint64_t *context)
{
	ENTER(cuCtxPopCurrent_v2);
	if (context)
		*context = context_current();
	if (context_depth)
		context_depth--;
	return CUDA_SUCCESS;
}

/* There are no private tables. */
int impl_cuGetExportTable(const void **table, const void *id)
{
	(void)table;
	(void)id;
	ENTER(cuGetExportTable);
	return CUDA_ERROR_NOT_FOUND;
}

static void *own_handle(void)
{
	static void *handle;
	Dl_info info;

	if (!__atomic_load_n(&handle, __ATOMIC_ACQUIRE) && dladdr((void *)own_handle, &info))
		__atomic_store_n(&handle, dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD), __ATOMIC_RELEASE);
	return handle;
}

/* The newest variant of a name that is exported; the per-thread one where that is asked for. */
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
