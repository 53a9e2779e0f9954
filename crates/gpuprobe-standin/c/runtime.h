/*
 * Declarations shared by the parts of the stand-in runtime. Every function makes one driver call, through the
 * table `inner`.
 */
#ifndef STANDIN_RUNTIME_H
#define STANDIN_RUNTIME_H

#include "cuda_types.h"
#include "faults.h"

enum {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorInvalidMemcpyDirection = 21,
	cudaErrorInsufficientDriver = 35,
	cudaErrorInvalidDevice = 101,
	cudaErrorSymbolNotFound = 500,
};

/* f, grid, block, shared bytes, stream, parameters: the first ten arguments of cuLaunchKernel */
#define LAUNCH_ARGS                                                                                          \
	const void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,    \
	    unsigned int, void *, void **

/* One member per row of inner_calls.def: the driver function that the runtime function of that name calls. */
struct inner_calls {
	int (*fallback)(int *version); /* cuDriverGetVersion */
#define INNER(function, driver, arguments) int(*function) arguments;
#define INNER_KIND(function, kind, driver, arguments) int(*function##_##kind) arguments;
#define NO_INNER(function)
#include "inner_calls.def"
#undef INNER
#undef INNER_KIND
#undef NO_INNER
};

extern struct inner_calls inner;

enum runtime_state { RUNTIME_UNKNOWN, RUNTIME_PLAIN, RUNTIME_FAULTS, RUNTIME_NO_DRIVER };
extern int runtime_state;

/*
 * The first call loads the driver. Later calls get here only if faults are requested or there is no driver.
 */
int runtime_enter_slowly(const char *function);

static inline int runtime_enter(const char *function)
{
	if (LIKELY(__atomic_load_n(&runtime_state, __ATOMIC_ACQUIRE) == RUNTIME_PLAIN))
		return 0;
	return runtime_enter_slowly(function);
}

extern __thread int runtime_last_error;

/* Stores a failure for cudaGetLastError. */
static inline int runtime_done(int result)
{
	if (UNLIKELY(result))
		runtime_last_error = result;
	return result;
}

/* The driver call of functions that have none of their own. */
static inline int runtime_fallback(void)
{
	int version;

	return inner.fallback(&version);
}

/*
 * After a program has called cudaSetDevice once, every thread that uses memory has a primary context current:
 * the first such call on a thread makes that of the first device current. Otherwise the driver decides.
 */
extern int runtime_chooses_devices;
int runtime_bind(void);

/* The name under which a host function was registered, or NULL. */
const char *runtime_kernel_name(const void *host_function);

#define ENTER(name)                                                                                          \
	do {                                                                                                 \
		int fault_ = runtime_enter(#name);                                                           \
		if (UNLIKELY(fault_))                                                                        \
			return runtime_done(fault_);                                                         \
	} while (0)

/* For functions that need a context. */
#define ENTER_BOUND(name)                                                                                    \
	do {                                                                                                 \
		ENTER(name);                                                                                 \
		if (UNLIKELY(__atomic_load_n(&runtime_chooses_devices, __ATOMIC_RELAXED))) {                 \
			int unbound_ = runtime_bind();                                                       \
			if (unbound_)                                                                        \
				return runtime_done(unbound_);                                               \
		}                                                                                            \
	} while (0)

#endif
