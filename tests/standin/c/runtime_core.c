/* Loading the driver, errors, devices, versions, and what every function without behaviour of its own does.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct inner_calls inner;
int runtime_state = RUNTIME_UNKNOWN;
__thread int runtime_last_error;

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Bare name: found by LD_LIBRARY_PATH, or beside this library by its RUNPATH. */
static void load_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int state = driver ? RUNTIME_PLAIN : RUNTIME_NO_DRIVER;

	if (driver) {
		*(void **)&inner.fallback = dlsym(driver, "cuDriverGetVersion");
#define INNER(function, symbol, arguments) *(void **)&inner.function = dlsym(driver, #symbol);
#define INNER_KIND(function, kind, symbol, arguments)                                                        \
	*(void **)&inner.function##_##kind = dlsym(driver, #symbol);
#define NO_INNER(function)
#include "inner_calls.def"
#undef INNER
#undef INNER_KIND
#undef NO_INNER
		if (faults_load() == FAULTS_ON)
			state = RUNTIME_FAULTS;
	}
	__atomic_store_n(&runtime_state, state, __ATOMIC_RELEASE);
}

int runtime_enter_slowly(const char *function)
{
	pthread_once(&once, load_driver);
	if (runtime_state == RUNTIME_NO_DRIVER)
		return cudaErrorInsufficientDriver;
	return runtime_state == RUNTIME_FAULTS ? faults_apply(function) : 0;
}

int standin_generic(const char *function)
{
	int fault = runtime_enter(function);

	return runtime_done(fault ? fault : runtime_fallback());
}

/* Without a driver the error stays, as with the real runtime. */
int impl_cudaGetLastError(void)
{
	int last;

	ENTER(cudaGetLastError);
	runtime_fallback();
	last = runtime_last_error;
	runtime_last_error = cudaSuccess;
	return last;
}

int impl_cudaPeekAtLastError(void)
{
	ENTER(cudaPeekAtLastError);
	runtime_fallback();
	return runtime_last_error;
}

const char *impl_cudaGetErrorName(int error)
{
	switch (error) {
#define ERROR_NAME(value, name)                                                                              \
	case value:                                                                                          \
		return #name;
#include "runtime_errors.h"
	}
	return "unrecognized error code";
}

const char *impl_cudaGetErrorString(int error)
{
	return impl_cudaGetErrorName(error);
}

/* These two succeed without a driver. */
int impl_cudaRuntimeGetVersion(int *version)
{
	int fault = runtime_enter("cudaRuntimeGetVersion");

	if (fault && fault != cudaErrorInsufficientDriver)
		return runtime_done(fault);
	if (!fault)
		runtime_fallback();
	*version = RUNTIME_VERSION;
	return cudaSuccess;
}

int impl_cudaDriverGetVersion(int *version)
{
	int fault = runtime_enter("cudaDriverGetVersion");

	*version = 0;
	if (fault == cudaErrorInsufficientDriver)
		return cudaSuccess;
	return runtime_done(fault ? fault : inner.fallback(version));
}

int impl_cudaGetDeviceCount(int *count)
{
	ENTER(cudaGetDeviceCount);
	return runtime_done(inner.cudaGetDeviceCount(count));
}

int impl_cudaGetDevice(int *device)
{
	ENTER(cudaGetDevice);
	return runtime_done(inner.cudaGetDevice(device));
}

int impl_cudaSetDevice(int device)
{
	ENTER(cudaSetDevice);
	runtime_fallback();
	return runtime_done(device ? cudaErrorInvalidDevice : cudaSuccess);
}

int impl_cudaDeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER(cudaDeviceGetAttribute);
	return runtime_done(inner.cudaDeviceGetAttribute(value, attribute, device));
}

int impl_cudaDeviceGetPCIBusId(char *id, int length, int device)
{
	ENTER(cudaDeviceGetPCIBusId);
	return runtime_done(inner.cudaDeviceGetPCIBusId(id, length, device));
}

int impl_cudaDeviceReset(void)
{
	ENTER(cudaDeviceReset);
	return runtime_done(inner.cudaDeviceReset(0));
}

/* Only the first two fields that programs print: the name, and the memory's size at byte 288. */
static int device_properties(void *properties, int device)
{
	const size_t total = 80ULL << 30;

	runtime_fallback();
	if (device)
		return cudaErrorInvalidDevice;
	snprintf(properties, 256, "Stand-in GPU %d", device);
	memcpy((char *)properties + 288, &total, sizeof(total));
	return cudaSuccess;
}

int impl_cudaGetDeviceProperties(void *properties, int device)
{
	ENTER(cudaGetDeviceProperties);
	return runtime_done(device_properties(properties, device));
}

int impl_cudaGetDeviceProperties_v2(void *properties, int device)
{
	ENTER(cudaGetDeviceProperties_v2);
	return runtime_done(device_properties(properties, device));
}

int impl_cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status)
{
	int found;

	ENTER(cudaGetDriverEntryPoint);
	found = inner.cudaGetDriverEntryPoint(name, out, RUNTIME_VERSION, flags, status);
	return runtime_done(found ? cudaErrorSymbolNotFound : cudaSuccess);
}

int impl_cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned int version,
					  unsigned long long flags, int *status)
{
	int found;

	ENTER(cudaGetDriverEntryPointByVersion);
	found = inner.cudaGetDriverEntryPointByVersion(name, out, (int)version, flags, status);
	return runtime_done(found ? cudaErrorSymbolNotFound : cudaSuccess);
}

struct cudaChannelFormatDesc impl_cudaCreateChannelDesc(int x, int y, int z, int w, int format)
{
	return (struct cudaChannelFormatDesc){x, y, z, w, format};
}
