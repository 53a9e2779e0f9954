/* Declarations shared by the parts of the workload `rules`. */
#ifndef STANDIN_RULES_H
#define STANDIN_RULES_H

#include "torture.h"

#define MIB ((size_t)1 << 20)
#define ROUNDS 20
#define TRIES 200

/* Prints the ledger, and waits for a line. */
void show(void);

void sleep_ms(long ms);

void allocated(enum kind kind, int device, size_t size);
void freed(enum kind kind, int device, size_t size);

/* One allocation of each family. */
struct set {
	void *device, *pitched, *managed, *pinned, *pool, *array, *mipmapped;
	size_t pitched_size;
};
enum { FAMILIES = 7, SET_DEVICE_BYTES = 1000 };

/* Allocates in the current context. */
struct set allocate_set(int device);

/* Frees all of them; returns how many of the frees failed. */
int free_set(const struct set *set);

/* Records that they are freed, or have ended with their context. */
void set_freed(const struct set *set, int device);
void set_ended(const struct set *set, int device);

/* A call that another thread is in. */
struct slow_call {
	uint64_t argument;
	int begun, returned;
};
extern struct slow_call slow;

/* Starts the thread, and gives its call the time to take effect. */
pthread_t start_slow(void *(*run)(void *), uint64_t argument);

uint64_t create_on(int device, size_t size);

void rule_unmap(void);
void rule_retain(void);
void rule_import(void);
void rule_primary(void);
void rule_reset(void);
void rule_context(void);
void rule_hurry(void);

#endif
