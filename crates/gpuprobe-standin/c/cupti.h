/*
 * The stand-in CUPTI: activity records with the layouts of CUDA 13.0, on a clock of its own.
 *
 *   STANDIN_CUPTI_LEDGER=FILE
 *       one JSON object per line for each record that it made or dropped, with times of CLOCK_MONOTONIC, and
 *       for each change of what it collects
 *
 *   STANDIN_CUPTI=subscriber,early,longer,unknown,drop:3,late,kept
 *       another subscriber exists; the first attempt to subscribe is too early; records are longer
 *       than any known version; records of an unknown kind are between the others; every third record
 *       is dropped; buffers are delivered 300 ms late; buffers are delivered only when CUPTI is forced to
 *
 * STANDIN_FAIL and STANDIN_DELAY (faults.h) work for its functions, too.
 */
#ifndef STANDIN_CUPTI_H
#define STANDIN_CUPTI_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_op.h"

enum {
	CUPTI_SUCCESS = 0,
	CUPTI_ERROR_INVALID_PARAMETER = 1,
	CUPTI_ERROR_INVALID_OPERATION = 7,
	CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
	CUPTI_ERROR_NOT_INITIALIZED = 15,
	CUPTI_ERROR_INVALID_KIND = 21,
	CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
};

/* CUpti_ActivityKind */
enum {
	KIND_MEMCPY = 1,
	KIND_MEMSET = 2,
	KIND_CONCURRENT_KERNEL = 10,
	KIND_MEMCPY2 = 22,
	KIND_OVERHEAD = 17,
	KIND_GRAPH_TRACE = 51,
	KINDS = 64,
};

/* What the tests demand of it. */
struct cupti_wishes {
	int subscriber, early, longer, unknown, late, kept;
	unsigned int drop_every;
};
extern struct cupti_wishes cupti_wishes;

/* CUPTI's clock: CLOCK_MONOTONIC, and the distance of CLOCK_REALTIME when it was first read. */
uint64_t cupti_now(void);
uint64_t cupti_to_monotonic(uint64_t time);

/* Reads the environment, once. */
void cupti_prepare(void);

/* One operation as the GPU ran it. */
struct cupti_run {
	int kind;
	const struct gpu_op *op;
	const struct gpu_submission *submission;
	uint32_t correlation;
	/* the number of a node of a graph; 0 outside of graphs */
	uint64_t node;
	uint64_t start, end;
};

#define MOST_RECORD_BYTES 512

/* Writes the record of a run and returns its length. */
size_t cupti_write_record(unsigned char *record, const struct cupti_run *run);

/* Writes a record of a kind that is not known, and returns its length. */
size_t cupti_write_unknown(unsigned char *record);

/* The length of a record that one of these wrote. */
size_t cupti_record_bytes(const unsigned char *record);

/* Writes to the ledger. */
void cupti_note_run(const struct cupti_run *run, int is_dropped);
void cupti_note_change(const char *what, int kind);

#endif
