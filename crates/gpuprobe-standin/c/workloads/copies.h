/* Declarations shared by the parts of the workload `copies`. */
#ifndef COPIES_H
#define COPIES_H

#include <stddef.h>
#include <stdint.h>

#include "../cuda_types.h"

#define ARENA (64u << 20)

enum kind { H2H, H2D, D2H, D2D, P2P, FILL, KINDS };
enum host { NO_HOST, PINNED, PAGEABLE, MANAGED, HOSTS };

/* Memory of every kind. */
struct memory {
	uint64_t device, other_device, pool, mapped, managed, array;
	char *pinned, *registered, *pageable;
};

/* Records a failure. */
void check(int result);

/* Records in the ledger that the function called last copied so many bytes. */
void copied(enum kind kind, enum host host, int is_async, size_t bytes);

/* Finds a function by name, and records that it is called now. */
void *function_of(const char *name);

/* Calls a function by name, and records the call. */
void call(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
	  uint64_t g, uint64_t h, uint64_t i);

/* Sizes that differ from call to call, so that two errors cannot cancel each other. */
size_t next_size(void);

/* The runtime's or the driver's description of one copy of a batch. */
struct operand {
	int type;
	uint64_t address, rowLength, layerHeight;
	struct cudaMemLocation hint;
};

struct operation {
	struct operand source, target;
	struct cudaExtent extent;
	int order;
	unsigned int flags;
};

_Static_assert(sizeof(struct operation) == 112, "CUDA_MEMCPY3D_BATCH_OP");

#define STREAM 0x560100000000

static inline uint64_t address(const void *p)
{
	return (uint64_t)p;
}

/* Calls every function of one library that copies or sets memory. */
void call_every_function(struct memory *m);

#endif
