/* What the parts of the workload `copies` share. */
#ifndef COPIES_H
#define COPIES_H

#include <stddef.h>
#include <stdint.h>

enum kind { H2H, H2D, D2H, D2D, P2P, FILL, KINDS };
enum host { NO_HOST, PINNED, PAGEABLE, MANAGED, HOSTS };

/* Memory of every kind. */
struct memory {
	uint64_t device, other_device, pool, mapped, managed, array;
	char *pinned, *registered, *pageable;
};

/* Notes copies of so many bytes in the books. */
void copied(enum kind kind, enum host host, int is_async, size_t bytes);

/* Calls a function of the driver by its name, and notes that. */
int call(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
	 uint64_t h, uint64_t i);

/* Sizes that differ from call to call, so that no two mistakes make up for each other. */
size_t next_size(void);

/* Every function that copies or fills, once. */
void call_every_function(const struct memory *m);

#endif
