/* Declarations shared by the parts of the stand-in driver. Device addresses are never dereferenced. */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda_types.h"
#include "faults.h"

/* In the stand-in of HIP the driver is in the same library as the runtime, which has functions of these
 * names. */
#ifdef STANDIN_HIP
#define standin_generic driver_generic
#endif

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
};

#define DEVICES 4
#define DEVICE_TOTAL_BYTES (80ULL << 30)
#define DRIVER_VERSION 13040

#define ENTER(name)                                                                                          \
	do {                                                                                                 \
		int fault_ = faults_enter(#name);                                                            \
		if (UNLIKELY(fault_))                                                                        \
			return fault_;                                                                       \
	} while (0)

/* For calls whose effect other threads can see before the call returns. */
#define LEAVE(name) faults_leave(#name)

struct spinlock {
	int is_locked;
};
void spin_lock(struct spinlock *lock);
void spin_unlock(struct spinlock *lock);

/* Protects contexts, the heap, and physical memory. */
extern struct spinlock driver_lock;

/*
 * The number of devices that the process sees, and the machine's number of one of them; -1 if there is none.
 */
int device_count(void);
int device_physical(int device);

/* The UUID of one of the machine's devices. */
void device_uuid(int physical, unsigned char uuid[16]);

struct block;

/* A context exists while it has references; a new one has one reference. */
struct context {
	int device;
	unsigned int references;
	struct block *blocks;
};

/* The handle of the current context; 0 if the thread has none. */
uint64_t context_current(void);

/* The device of the context that the thread uses, and CUPTI's number of the context. */
void context_describe(uint32_t *device, uint32_t *number);

/* The context that the thread's allocations belong to. The caller holds the lock. */
struct context *context_to_use(int *error);

/* Kinds of memory. Each has its own range of addresses, except registered host memory of the program. */
enum heap_kind {
	HEAP_DEVICE,
	HEAP_MANAGED,
	HEAP_PINNED,
	HEAP_POOL,
	HEAP_ARRAY,
	HEAP_MIPMAPPED,
	HEAP_REGISTERED,
	HEAP_KINDS
};
#define HEAP_BIT(kind) (1u << (kind))

/*
 * Allocates memory of a kind, in the current context. A freed address is reused first, and immediately, for
 * the same size class, so that tests detect a tool that confuses the order of a free and the next allocation.
 */
int heap_alloc(enum heap_kind kind, size_t size, void **out);

/* Registers host memory of the program. */
int heap_register(void *address, size_t size);

/* Frees an address of one of the kinds in the mask. */
int heap_free(unsigned int kinds, const void *address);

/* The kind of the live block that starts at the address, or -1. */
int heap_kind_of(const void *address, size_t *size);

/* Frees everything that a context owns. The caller holds the lock. */
void heap_drop(struct context *context);

/* Live bytes of the current device. */
int heap_current_device_live(uint64_t *live);

/* Reserve physical memory on a device, which may fail, and release it. The caller holds the lock. */
int heap_take_physical(int device, size_t size);
void heap_give_physical(int device, size_t size);

/* Removes all handles and mappings. The caller holds the lock. */
void vmm_forget(void);

/* Creates an opaque handle; each kind of handle has its own range. */
enum handle_kind {
	HANDLE_STREAM,
	HANDLE_EVENT,
	HANDLE_MODULE,
	HANDLE_GRAPH,
	HANDLE_EXEC,
	HANDLE_POOL,
	HANDLE_NODE
};
void *handle_new(enum handle_kind kind);

/* Makes a handle available for reuse. */
void handle_free(enum handle_kind kind, void *handle);

/* The number of a handle among those of its kind, from 1. */
uint32_t handle_number(void *handle);

#define NEW_HANDLE(function, kind)                                                                           \
	int impl_##function(void **out)                                                                      \
	{                                                                                                    \
		ENTER(function);                                                                             \
		if (!out)                                                                                    \
			return CUDA_ERROR_INVALID_VALUE;                                                     \
		*out = handle_new(kind);                                                                     \
		return CUDA_SUCCESS;                                                                         \
	}

/* The name of a kernel by its handle; NULL if it is none of the driver's. */
const char *kernel_name(const void *handle);

/* Adds an operation to the graph that a stream captures into; 0 if it does not capture. */
struct gpu_op;
int capture_op(void *stream, const struct gpu_op *op);

int capture_is_active(void);

/* Whether it matters what is submitted: CUPTI listens, or a stream captures. */
int gpu_is_observed(void);

/* An operation, and those of a graph, run on a stream. */
void gpu_submit(void *stream, const struct gpu_op *op);
void gpu_submit_graph(void *stream, uint32_t graph, const struct gpu_op *ops, unsigned int count);

#endif
