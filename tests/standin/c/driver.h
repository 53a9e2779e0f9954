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
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
};

#define DEVICE_TOTAL_BYTES (80ULL << 30)
#define DRIVER_VERSION 13040

#define ENTER(name)                                                                                          \
	do {                                                                                                 \
		int fault_ = faults_enter(#name);                                                            \
		if (UNLIKELY(fault_))                                                                        \
			return fault_;                                                                       \
	} while (0)

/* Kinds of memory; each has its own range of addresses. */
enum heap_kind { HEAP_DEVICE, HEAP_MANAGED, HEAP_PINNED, HEAP_POOL, HEAP_ARRAY, HEAP_KINDS };
#define HEAP_BIT(kind) (1u << (kind))

/*
 * Gives memory of a kind. A freed address is the first to be given out again for the same size class, at
 * once, so that a tool which mixes up the order of a free and the next allocation is found out.
 */
int heap_alloc(enum heap_kind kind, size_t size, void **out);

/* Frees an address of one of the kinds in the mask. */
int heap_free(unsigned int kinds, const void *address);

/* The kind of a live address (any address inside a block's start), or -1. */
int heap_kind_of(const void *address, size_t *size);

/* Frees all that a context owns. */
void heap_drop_context(uint64_t context);

/* Live bytes that count against the device. */
uint64_t heap_device_live(void);

/* A new opaque handle; each kind of handle has its own range. */
enum handle_kind {
	HANDLE_STREAM,
	HANDLE_EVENT,
	HANDLE_CONTEXT,
	HANDLE_MODULE,
	HANDLE_GRAPH,
	HANDLE_EXEC,
	HANDLE_POOL
};
void *handle_new(enum handle_kind kind);

#define PRIMARY_CONTEXT 0x560000001000ULL
uint64_t context_current(void);

struct spinlock {
	int taken;
};
void spin_lock(struct spinlock *lock);
void spin_unlock(struct spinlock *lock);

#endif
