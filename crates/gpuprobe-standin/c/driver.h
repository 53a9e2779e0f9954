/* What the parts of the stand-in driver share. Device addresses are never dereferenced. */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda_types.h"
#include "faults.h"

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

/* For calls whose effect others can meet before they return. */
#define LEAVE(name) faults_leave(#name)

struct spinlock {
	int taken;
};
void spin_lock(struct spinlock *lock);
void spin_unlock(struct spinlock *lock);

/* Guards contexts, the heap, and physical memory. */
extern struct spinlock driver_lock;

/* Devices that the process sees, and which of the machine's one of them is; -1 where there is none. */
int device_count(void);
int device_physical(int device);

/* What one of the machine's devices is called. */
void device_uuid(int physical, unsigned char uuid[16]);

struct block;

/* It lives while it has references; one that was created has one. */
struct context {
	int device;
	unsigned int references;
	struct block *blocks;
};

/* The handle of the current one; 0 where the thread has none. */
uint64_t context_current(void);

/* Where the thread's allocations go; to be called with the lock held. */
struct context *context_to_use(int *error);

/* Kinds of memory; each has its own range of addresses, but for host memory of the program's own. */
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
 * Gives memory of a kind, in the current context. A freed address is the first to be given out again for the
 * same size class, at once, so that a tool which mixes up the order of a free and the next allocation is
 * found out.
 */
int heap_alloc(enum heap_kind kind, size_t size, void **out);

/* Takes host memory of the program's own. */
int heap_register(void *address, size_t size);

/* Frees an address of one of the kinds in the mask. */
int heap_free(unsigned int kinds, const void *address);

/* The kind of a live block by its start, or -1. */
int heap_kind_of(const void *address, size_t *size);

/* Frees all that a context owns; to be called with the lock held. */
void heap_drop(struct context *context);

/* What a device holds, and the current one. */
int heap_current_device_live(uint64_t *live);

/* Counts physical memory on a device, which may have no room, and gives it back; with the lock held. */
int heap_take_physical(int device, size_t size);
void heap_give_physical(int device, size_t size);

/* Forgets all handles and mappings; with the lock held. */
void vmm_forget(void);

/* A new opaque handle; each kind of handle has its own range. */
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

#endif
