/*
 * Loading the driver, errors, devices, versions, and the behaviour of all functions without their own code.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inner_calls inner;
int runtime_state = RUNTIME_UNKNOWN;
__thread int runtime_last_error;

int runtime_chooses_devices;

#define MOST_DEVICES 64

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t primary[MOST_DEVICES];
static int (*retain)(uint64_t *context, int device);
static __thread int is_bound, bound_device;

/* A child starts without state, as in the driver. */
static void begin_anew(void)
{
	memset(primary, 0, sizeof(primary));
	runtime_chooses_devices = 0;
	is_bound = bound_device = 0;
	pthread_mutex_unlock(&primary_lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&primary_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&primary_lock);
}

/*
 * OPEN_DRIVER is the library with the functions of the driver, HAS_DRIVER whether there are any, and
 * DRIVER_FUNCTION the address of one.
 */
#ifdef STANDIN_HIP
/* Functions of the driver without code of their own do nothing. */
static int do_nothing(void)
{
	return cudaSuccess;
}

/* The driver is a part of this library, unless HIP is to run on CUDA. Then its functions are those of
 * libcuda. */
#define DRIVER_FUNCTION(symbol)                                                                              \
	({                                                                                                   \
		extern char impl_##symbol[] __attribute__((weak, visibility("hidden")));                     \
		void *own = impl_##symbol ? (void *)impl_##symbol : (void *)do_nothing;                      \
		driver ? dlsym(driver, #symbol) : own;                                                       \
	})
#define IS_ON_CUDA getenv("STANDIN_HIP_ON_CUDA")
#define OPEN_DRIVER (IS_ON_CUDA ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL)
#define HAS_DRIVER (driver || !IS_ON_CUDA)
#elif defined(STATIC_DRIVER)
/* the address of a function in this program, whatever its type */
#define DRIVER_FUNCTION(symbol)                                                                              \
	({                                                                                                   \
		extern char symbol[];                                                                        \
		(void *)symbol;                                                                              \
	})
#define OPEN_DRIVER NULL
#define HAS_DRIVER (!driver)
#else
#define DRIVER_FUNCTION(symbol) dlsym(driver, #symbol)
#define OPEN_DRIVER dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)
#define HAS_DRIVER driver
#endif

/* A bare name: found through LD_LIBRARY_PATH, or in the folder of this library through its RUNPATH. */
static void load_driver(void)
{
	void *driver = OPEN_DRIVER;
	int state = HAS_DRIVER ? RUNTIME_PLAIN : RUNTIME_NO_DRIVER;

	if (state == RUNTIME_PLAIN) {
		*(void **)&inner.fallback = DRIVER_FUNCTION(cuDriverGetVersion);
		*(void **)&retain = DRIVER_FUNCTION(cuDevicePrimaryCtxRetain);
		pthread_atfork(before_fork, after_fork, begin_anew);
#define INNER(function, symbol, arguments) *(void **)&inner.function = DRIVER_FUNCTION(symbol);
#define INNER_KIND(function, kind, symbol, arguments)                                                        \
	*(void **)&inner.function##_##kind = DRIVER_FUNCTION(symbol);
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

/* Without a driver the error is permanent, as in the real runtime. */
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
	ENTER_BOUND(cudaGetDevice);
	return runtime_done(inner.cudaGetDevice(device));
}

/*
 * Makes the primary context of a device current. The first time, it is retained for the life of the process.
 */
static int choose_device(int device)
{
	uint64_t context = 0;
	int result = cudaSuccess;

	if (device < 0 || device >= MOST_DEVICES)
		return cudaErrorInvalidDevice;
	pthread_mutex_lock(&primary_lock);
	if (!primary[device])
		result = retain(&primary[device], device);
	context = primary[device];
	pthread_mutex_unlock(&primary_lock);
	if (!result)
		result = inner.cudaSetDevice(context);
	if (!result) {
		is_bound = 1;
		bound_device = device;
	}
	return result;
}

int runtime_bind(void)
{
	return is_bound ? cudaSuccess : choose_device(0);
}

int impl_cudaSetDevice(int device)
{
	int result;

	ENTER(cudaSetDevice);
	result = choose_device(device);
	if (!result)
		__atomic_store_n(&runtime_chooses_devices, 1, __ATOMIC_RELAXED);
	return runtime_done(result);
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
	ENTER_BOUND(cudaDeviceReset);
	return runtime_done(inner.cudaDeviceReset(bound_device));
}

/* Only the two fields that programs print: the name, and the memory size at byte 288. */
static int device_properties(void *properties, int device)
{
	const size_t total = 80ULL << 30;

	int result = inner.cudaGetDeviceProperties(properties, 256, device);

	if (result)
		return result;
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
