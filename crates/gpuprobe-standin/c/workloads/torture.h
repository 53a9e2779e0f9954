/*
 * Declarations shared by the parts of `torture`: scopes that own memory, the totals of every worker, the
 * steps.
 */
#ifndef STANDIN_TORTURE_H
#define STANDIN_TORTURE_H

#include <pthread.h>
#include <stdio.h>

#include "cuda_api.h"

/* The driver functions that are called, by the program itself or by the runtime. */
#define TORTURE_FUNCTIONS(X)                                                                                 \
	X(cuMemAlloc_v2)                                                                                     \
	X(cuMemAllocPitch_v2)                                                                                \
	X(cuMemAllocManaged)                                                                                 \
	X(cuMemHostAlloc)                                                                                    \
	X(cuMemAllocHost_v2)                                                                                 \
	X(cuMemAllocAsync)                                                                                   \
	X(cuMemAllocFromPoolAsync)                                                                           \
	X(cuArrayCreate_v2)                                                                                  \
	X(cuArray3DCreate_v2)                                                                                \
	X(cuMipmappedArrayCreate)                                                                            \
	X(cuMemHostRegister_v2)                                                                              \
	X(cuMemFree_v2)                                                                                      \
	X(cuMemFreeHost)                                                                                     \
	X(cuMemFreeAsync)                                                                                    \
	X(cuArrayDestroy)                                                                                    \
	X(cuMipmappedArrayDestroy)                                                                           \
	X(cuMemHostUnregister)                                                                               \
	X(cuMemCreate)                                                                                       \
	X(cuMemRelease)                                                                                      \
	X(cuMemMap)                                                                                          \
	X(cuMemUnmap)                                                                                        \
	X(cuMemRetainAllocationHandle)                                                                       \
	X(cuCtxCreate_v2)                                                                                    \
	X(cuCtxDestroy_v2)                                                                                   \
	X(cuCtxPushCurrent_v2)                                                                               \
	X(cuCtxPopCurrent_v2)                                                                                \
	X(cuCtxSetCurrent)                                                                                   \
	X(cuDevicePrimaryCtxRetain)                                                                          \
	X(cuDevicePrimaryCtxRelease_v2)                                                                      \
	X(cuDevicePrimaryCtxReset_v2)                                                                        \
	X(cuIpcGetMemHandle)                                                                                 \
	X(cuIpcOpenMemHandle_v2)                                                                             \
	X(cuIpcCloseMemHandle)

enum function {
#define X(name) F_##name,
	TORTURE_FUNCTIONS(X)
#undef X
	    FUNCTIONS
};

enum kind { KIND_DEVICE, KIND_MANAGED, KIND_PINNED, KIND_POOL, KIND_VMM, KIND_ARRAY, KINDS };
enum { DEVICES = 4, MOST_LIVE = 512, CONTEXTS = 8, SCOPES = DEVICES + CONTEXTS };

/* The function that frees it. */
enum family {
	FAMILY_LINEAR,
	FAMILY_HOST,
	FAMILY_POOL,
	FAMILY_ARRAY,
	FAMILY_MIPMAPPED,
	FAMILY_REGISTERED,
};

struct allocation {
	void *address;
	size_t size;
	enum kind kind;
	enum family family;
	unsigned int owner;
};

/*
 * A context with its live memory. A thread that ends the context locks `users` exclusively, one that uses it
 * takes a shared lock.
 */
struct scope {
	pthread_rwlock_t users;
	int device;
	uint64_t context;
	unsigned int references;
	pthread_mutex_t lock;
	struct allocation rows[MOST_LIVE];
	unsigned int count;
};

/*
 * The first are the primary contexts of the devices that the runtime selects; then that of a device which is
 * used only through the driver, and which is retained and released all the time; the last ones are created
 * and destroyed.
 */
extern struct scope scopes[SCOPES];

struct sums {
	unsigned long allocations, allocated_bytes, frees, freed_bytes, ended, freed_with_context_bytes;
};

struct totals {
	struct sums sums[KINDS][DEVICES];
	unsigned long calls[FUNCTIONS], errors[FUNCTIONS];
	unsigned long failed_allocations, failed_frees, unknown_frees, null_frees, cross_thread_frees;
};

struct worker {
	pthread_t thread;
	unsigned int number;
	unsigned long budget, random;
	int device;
	struct totals totals;
};

enum part {
	PART_CONTEXTS = 1,
	PART_PRIMARY = 2,
	PART_RESET = 4,
	PART_VMM = 8,
	PART_ARRAYS = 16,
	PART_FORK = 32,
	PART_FAULTS = 64,
	PARTS = 127
};

struct options {
	unsigned int threads, pauses, parts;
	unsigned long operations, seed;
	int devices, wait;
	const char *pause_file;
};

extern struct options options;

static inline unsigned long random_below(struct worker *w, unsigned long limit)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 11) % limit;
}

static inline int note(struct worker *w, enum function function, int result)
{
	w->totals.calls[function]++;
	w->totals.errors[function] += result != 0;
	return result;
}

/* Makes a call, and records that it reached the driver as this function. */
#define CALL(w, function, call) note(w, F_##function, call)

/* Ends the program with a message if the libraries misbehave. */
void must(int condition, const char *what);

/* Memory of every family except virtual memory, in a scope that is current on the thread. */
void allocate_or_free(struct worker *w, struct scope *scope);

/* Calls that fail, or do nothing. */
void misuse(struct worker *w, struct scope *scope);

/* Records that everything in a scope has ended with its context. */
void end_all(struct worker *w, struct scope *scope);

/* Makes the device's primary context current through the runtime. */
void choose_device(struct worker *w, int device);

/* Contexts: use, creation, end. */
void context_step(struct worker *w);
void primary_step(struct worker *w);

/* Physical memory and its mappings. */
void vmm_prepare(void);
void vmm_step(struct worker *w);

void add_totals(struct totals *sum, const struct totals *part);
unsigned long device_bytes(const struct totals *sum, int device);

/* One JSON object on one line. */
void print_totals(FILE *out, const struct totals *sum, const char *ledger, unsigned int snapshot);

#endif
