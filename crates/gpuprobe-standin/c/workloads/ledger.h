/* The figures of the ledger, per thread while it runs and summed when it prints. */
#ifndef STANDIN_LEDGER_H
#define STANDIN_LEDGER_H

#include <pthread.h>
#include <stdio.h>

#include "cuda_api.h"

#define LEDGER_FUNCTIONS(X)                                                                                  \
	X(cudaMalloc)                                                                                        \
	X(cudaMallocPitch)                                                                                   \
	X(cudaMalloc3D)                                                                                      \
	X(cudaMallocManaged)                                                                                 \
	X(cudaMallocHost)                                                                                    \
	X(cudaHostAlloc)                                                                                     \
	X(cudaMallocAsync)                                                                                   \
	X(cudaMallocFromPoolAsync)                                                                           \
	X(cudaDeviceGetDefaultMemPool)                                                                       \
	X(cudaFree)                                                                                          \
	X(cudaFreeHost)                                                                                      \
	X(cudaFreeAsync)                                                                                     \
	X(cudaMemcpy)                                                                                        \
	X(cudaMemcpyAsync)                                                                                   \
	X(cudaMemset)                                                                                        \
	X(cudaMemsetAsync)                                                                                   \
	X(cudaLaunchKernel)                                                                                  \
	X(cudaStreamCreate)                                                                                  \
	X(cudaStreamSynchronize)                                                                             \
	X(cudaStreamWaitEvent)                                                                               \
	X(cudaEventCreate)                                                                                   \
	X(cudaEventRecord)                                                                                   \
	X(cudaEventSynchronize)                                                                              \
	X(cudaDeviceSynchronize)                                                                             \
	X(cudaGetDevice)                                                                                     \
	X(cudaRuntimeGetVersion)                                                                             \
	X(cudaGetLastError)

enum function {
#define X(name) F_##name,
	LEDGER_FUNCTIONS(X)
#undef X
	    FUNCTIONS
};

enum space { SPACE_DEVICE, SPACE_MANAGED, SPACE_PINNED, SPACE_POOL, SPACES };
enum { KERNELS = 3, MAX_ERROR = 1000, MOST_LIVE = 64 };

struct allocation {
	void *address;
	size_t size;
	enum space space;
};

struct totals {
	unsigned long calls[FUNCTIONS];
	unsigned int errors[FUNCTIONS][MAX_ERROR];
	unsigned long copies[2][COPY_KINDS]; /* sync, async */
	unsigned long copy_bytes[2][COPY_KINDS];
	unsigned long memset_bytes[2];
	unsigned long allocations[SPACES], frees[SPACES];
	unsigned long allocated_bytes[SPACES], freed_bytes[SPACES];
	unsigned long launches[KERNELS];
	unsigned long failed_allocations, failed_frees, unknown_frees, null_frees, handed_over;
	unsigned long last_errors; /* cudaGetLastError returned an error: not a failure of that call */
};

struct worker {
	pthread_t thread;
	unsigned int number;
	unsigned long budget, random;
	void *stream, *event, *pool;
	struct allocation allocation[MOST_LIVE];
	unsigned int live_count;
	struct totals totals;
};

struct options {
	unsigned int threads, pauses;
	unsigned long calls, seed;
	double hold;
	const char *pause_file;
	int wait;
};

/* Makes up to that many calls, and no more than the worker's budget. */
void make_calls(struct worker *worker, unsigned long calls);

/* Adds one worker's totals to a sum. */
void add_totals(struct totals *sum, const struct totals *part);

/* One JSON object on one line. `snapshot` is the pause's number, 0 at the end. */
void print_ledger(FILE *out, const struct totals *sum, const struct options *options, unsigned int snapshot);

/* Kernel names, in the order of `launches`. */
extern const char *const kernel_names[KERNELS];

#endif
