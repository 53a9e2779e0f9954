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
	uint64_t address, context;
	size_t size;
	unsigned char kind, class, live;
	struct block *next_free, *next_in_bucket;
};

static struct {
	struct spinlock lock;
	uint64_t next[HEAP_KINDS];
	uint64_t live_bytes[HEAP_KINDS];
	struct block *free[HEAP_KINDS][CLASSES];
	struct block *buckets[BUCKETS];
	struct block *spare;
	unsigned int spare_count;
} heap;

static const uint64_t bases[HEAP_KINDS] = {
    [HEAP_DEVICE] = 0x700000000000, [HEAP_MANAGED] = 0x710000000000, [HEAP_PINNED] = 0x720000000000,
    [HEAP_POOL] = 0x730000000000,   [HEAP_ARRAY] = 0x740000000000,
};

void spin_lock(struct spinlock *lock)
{
	for (unsigned int spins = 0; __atomic_exchange_n(&lock->taken, 1, __ATOMIC_ACQUIRE); spins++) {
		if (spins > 100)
			sched_yield();
	}
}

void spin_unlock(struct spinlock *lock)
{
	__atomic_store_n(&lock->taken, 0, __ATOMIC_RELEASE);
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

/* Host-visible kinds are backed by real pages, which a program may write to; none is touched here. */
static void open_range(enum heap_kind kind)
{
	heap.next[kind] = bases[kind];
	if (kind == HEAP_MANAGED || kind == HEAP_PINNED)
		mmap((void *)bases[kind], HOST_ARENA, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

static struct block *new_block(enum heap_kind kind, unsigned int class)
{
	struct block *block, **bucket;

	if (!heap.spare_count) {
		heap.spare = calloc(1024, sizeof(*heap.spare));
		if (!heap.spare)
			return NULL;
		heap.spare_count = 1024;
	}
	if (!heap.next[kind])
		open_range(kind);
	block = &heap.spare[--heap.spare_count];
	block->address = heap.next[kind];
	block->kind = (unsigned char)kind;
	block->class = (unsigned char)class;
	heap.next[kind] += 1ULL << (SMALLEST_SHIFT + class);
	bucket = bucket_of(block->address);
	block->next_in_bucket = *bucket;
	*bucket = block;
	return block;
}

static uint64_t device_live(void)
{
	return heap.live_bytes[HEAP_DEVICE] + heap.live_bytes[HEAP_MANAGED] + heap.live_bytes[HEAP_POOL] +
	       heap.live_bytes[HEAP_ARRAY];
}

int heap_alloc(enum heap_kind kind, size_t size, void **out)
{
	unsigned int class = class_of(size);
	struct block *block;

	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > LARGEST)
		return CUDA_ERROR_OUT_OF_MEMORY;
	spin_lock(&heap.lock);
	if (kind != HEAP_PINNED && device_live() + size > DEVICE_TOTAL_BYTES) {
		spin_unlock(&heap.lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	block = heap.free[kind][class];
	if (block)
		heap.free[kind][class] = block->next_free;
	else
		block = new_block(kind, class);
	if (block) {
		block->size = size;
		block->context = context_current();
		block->live = 1;
		heap.live_bytes[kind] += size;
		*out = (void *)block->address;
	}
	spin_unlock(&heap.lock);
	return block ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void release(struct block *block)
{
	block->live = 0;
	heap.live_bytes[block->kind] -= block->size;
	block->next_free = heap.free[block->kind][block->class];
	heap.free[block->kind][block->class] = block;
}

int heap_free(unsigned int kinds, const void *address)
{
	struct block *block;

	if (!address)
		return CUDA_SUCCESS;
	spin_lock(&heap.lock);
	block = find(address);
	if (block && (kinds & HEAP_BIT(block->kind)))
		release(block);
	else
		block = NULL;
	spin_unlock(&heap.lock);
	return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int heap_kind_of(const void *address, size_t *size)
{
	struct block *block;
	int kind = -1;

	spin_lock(&heap.lock);
	block = find(address);
	if (block) {
		kind = block->kind;
		if (size)
			*size = block->size;
	}
	spin_unlock(&heap.lock);
	return kind;
}

void heap_drop_context(uint64_t context)
{
	spin_lock(&heap.lock);
	for (unsigned int i = 0; i < BUCKETS; i++) {
		for (struct block *block = heap.buckets[i]; block; block = block->next_in_bucket) {
			if (block->live && block->context == context)
				release(block);
		}
	}
	spin_unlock(&heap.lock);
}

uint64_t heap_device_live(void)
{
	uint64_t live;

	spin_lock(&heap.lock);
	live = device_live();
	spin_unlock(&heap.lock);
	return live;
}
