/* The device's memory: fake addresses, exact accounting, immediate reuse. */
#include "driver.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SMALLEST_SHIFT 9
#define CLASSES 34
#define BUCKETS 65536u
#define LARGEST (1ULL << 40)
#define HOST_ARENA (64ULL << 30)

struct block {
	uint64_t address;
	size_t size;
	unsigned char kind, class, live;
	int device;
	struct block *next_free, *next_in_bucket;
	/* links in the list of its context */
	struct block *next, **link;
};

static struct {
	uint64_t next[HEAP_KINDS];
	uint64_t device_live[DEVICES];
	struct block *free[HEAP_KINDS][CLASSES];
	struct block *buckets[BUCKETS];
	struct block *spare;
	unsigned int spare_count;
} heap;

static const uint64_t bases[HEAP_KINDS] = {
    [HEAP_DEVICE] = 0x700000000000, [HEAP_MANAGED] = 0x710000000000, [HEAP_PINNED] = 0x720000000000,
    [HEAP_POOL] = 0x730000000000,   [HEAP_ARRAY] = 0x740000000000,   [HEAP_MIPMAPPED] = 0x750000000000,
};

void spin_lock(struct spinlock *lock)
{
	for (unsigned int spins = 0; __atomic_exchange_n(&lock->is_locked, 1, __ATOMIC_ACQUIRE); spins++) {
		if (spins > 100)
			sched_yield();
	}
}

void spin_unlock(struct spinlock *lock)
{
	__atomic_store_n(&lock->is_locked, 0, __ATOMIC_RELEASE);
}

static struct block **bucket_of(uint64_t address)
{
	return &heap.buckets[((address >> SMALLEST_SHIFT) * 0x9e3779b97f4a7c15ULL >> 32) % BUCKETS];
}

static struct block *find(const void *address)
{
	struct block *block = *bucket_of((uint64_t)address);

	while (block && block->address != (uint64_t)address)
		block = block->next_in_bucket;
	return block && block->live ? block : NULL;
}

static unsigned int class_of(size_t size)
{
	unsigned int class = 0;

	while (class + 1 < CLASSES && (1ULL << (SMALLEST_SHIFT + class)) < size)
		class ++;
	return class;
}

/* Host-visible kinds are backed by real pages that a program may write to; this code never touches them. */
static void open_range(enum heap_kind kind)
{
	heap.next[kind] = bases[kind];
	if (kind == HEAP_MANAGED || kind == HEAP_PINNED)
		mmap((void *)bases[kind], HOST_ARENA, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

/* A registered block has the address of the program's own memory. */
static struct block *new_block(enum heap_kind kind, unsigned int class, uint64_t address)
{
	struct block *block, **bucket;

	if (!heap.spare_count) {
		heap.spare = calloc(1024, sizeof(*heap.spare));
		if (!heap.spare)
			return NULL;
		heap.spare_count = 1024;
	}
	if (!address && !heap.next[kind])
		open_range(kind);
	block = &heap.spare[--heap.spare_count];
	block->address = address ? address : heap.next[kind];
	block->kind = (unsigned char)kind;
	block->class = (unsigned char)class;
	if (!address)
		heap.next[kind] += 1ULL << (SMALLEST_SHIFT + class);
	bucket = bucket_of(block->address);
	block->next_in_bucket = *bucket;
	*bucket = block;
	return block;
}

static int is_on_device(enum heap_kind kind)
{
	return kind != HEAP_PINNED && kind != HEAP_REGISTERED;
}

static void make_live(struct block *block, struct context *context, size_t size)
{
	block->size = size;
	block->device = context->device;
	block->live = 1;
	block->next = context->blocks;
	block->link = &context->blocks;
	if (block->next)
		block->next->link = &block->next;
	context->blocks = block;
	if (is_on_device(block->kind))
		heap.device_live[block->device] += size;
}

static int alloc_in(struct context *context, enum heap_kind kind, size_t size, void **out)
{
	unsigned int class = class_of(size);
	struct block *block = heap.free[kind][class];

	if (is_on_device(kind) && heap.device_live[context->device] + size > DEVICE_TOTAL_BYTES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (block)
		heap.free[kind][class] = block->next_free;
	else
		block = new_block(kind, class, 0);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	make_live(block, context, size);
	*out = (void *)block->address;
	return CUDA_SUCCESS;
}

int heap_alloc(enum heap_kind kind, size_t size, void **out)
{
	struct context *context;
	int error;

	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > LARGEST)
		return CUDA_ERROR_OUT_OF_MEMORY;
	spin_lock(&driver_lock);
	context = context_to_use(&error);
	if (!error)
		error = alloc_in(context, kind, size, out);
	spin_unlock(&driver_lock);
	return error;
}

/* Registering an address again reuses its block. */
static struct block *registered_block(uint64_t address)
{
	struct block *block = *bucket_of(address);

	while (block && (block->address != address || block->kind != HEAP_REGISTERED))
		block = block->next_in_bucket;
	return block ? block : new_block(HEAP_REGISTERED, 0, address);
}

int heap_register(void *address, size_t size)
{
	struct context *context;
	struct block *block;
	int error;

	if (!address || !size)
		return CUDA_ERROR_INVALID_VALUE;
	spin_lock(&driver_lock);
	context = context_to_use(&error);
	if (!error && find(address))
		error = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (!error) {
		block = registered_block((uint64_t)address);
		if (block)
			make_live(block, context, size);
		else
			error = CUDA_ERROR_OUT_OF_MEMORY;
	}
	spin_unlock(&driver_lock);
	return error;
}

static void release(struct block *block)
{
	block->live = 0;
	*block->link = block->next;
	if (block->next)
		block->next->link = block->link;
	if (is_on_device(block->kind))
		heap.device_live[block->device] -= block->size;
	if (block->kind == HEAP_REGISTERED)
		return;
	block->next_free = heap.free[block->kind][block->class];
	heap.free[block->kind][block->class] = block;
}

int heap_free(unsigned int kinds, const void *address)
{
	struct block *block;

	if (!address)
		return CUDA_SUCCESS;
	spin_lock(&driver_lock);
	block = find(address);
	if (block && (kinds & HEAP_BIT(block->kind)))
		release(block);
	else
		block = NULL;
	spin_unlock(&driver_lock);
	return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int heap_kind_of(const void *address, size_t *size)
{
	struct block *block;
	int kind = -1;

	spin_lock(&driver_lock);
	block = find(address);
	if (block) {
		kind = block->kind;
		if (size)
			*size = block->size;
	}
	spin_unlock(&driver_lock);
	return kind;
}

void heap_drop(struct context *context)
{
	while (context->blocks)
		release(context->blocks);
}

int heap_current_device_live(uint64_t *live)
{
	struct context *context;
	int error;

	spin_lock(&driver_lock);
	context = context_to_use(&error);
	if (!error)
		*live = heap.device_live[context->device];
	spin_unlock(&driver_lock);
	return error;
}

int heap_take_physical(int device, size_t size)
{
	if (heap.device_live[device] + size > DEVICE_TOTAL_BYTES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	heap.device_live[device] += size;
	return CUDA_SUCCESS;
}

void heap_give_physical(int device, size_t size)
{
	heap.device_live[device] -= size;
}
