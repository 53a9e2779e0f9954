/* Records of the stand-in CUPTI, and its ledger. Offsets are those of the public structs of CUDA 13.0. */
#include "cupti.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONGER_BY 64
#define UNKNOWN_BYTES 40

struct cupti_wishes cupti_wishes;

static uint64_t distance;
static FILE *ledger;
static pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int wish(const char *text, const char *name)
{
	return text && strstr(text, name);
}

static void prepare(void)
{
	const char *wishes = getenv("STANDIN_CUPTI"), *file = getenv("STANDIN_CUPTI_LEDGER");

	distance = read_clock(CLOCK_REALTIME) - read_clock(CLOCK_MONOTONIC);
	cupti_wishes.subscriber = wish(wishes, "subscriber");
	cupti_wishes.early = wish(wishes, "early");
	cupti_wishes.longer = wish(wishes, "longer");
	cupti_wishes.unknown = wish(wishes, "unknown");
	cupti_wishes.late = wish(wishes, "late");
	cupti_wishes.kept = wish(wishes, "kept");
	if (wish(wishes, "drop:"))
		cupti_wishes.drop_every = (unsigned int)atoi(strstr(wishes, "drop:") + 5);
	if (file)
		ledger = fopen(file, "ae");
}

void cupti_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, prepare);
}

uint64_t cupti_now(void)
{
	return read_clock(CLOCK_MONOTONIC) + distance;
}

uint64_t cupti_to_monotonic(uint64_t time)
{
	return time - distance;
}

static void put32(unsigned char *record, size_t offset, uint32_t value)
{
	memcpy(record + offset, &value, sizeof(value));
}

static void put64(unsigned char *record, size_t offset, uint64_t value)
{
	memcpy(record + offset, &value, sizeof(value));
}

static void put_place(unsigned char *record, size_t offset, const struct gpu_submission *submission)
{
	put32(record, offset, submission->device);
	put32(record, offset + 4, submission->context);
	put32(record, offset + 8, submission->stream);
}

static void put_times(unsigned char *record, size_t offset, const struct cupti_run *run)
{
	put64(record, offset, run->start);
	put64(record, offset + 8, run->end);
}

static void write_kernel(unsigned char *record, const struct cupti_run *run)
{
	put_times(record, 16, run);
	put_place(record, 40, run->submission);
	for (size_t i = 0; i < 3; i++) {
		put32(record, 52 + 4 * i, run->op->grid[i]);
		put32(record, 64 + 4 * i, run->op->block[i]);
	}
	put32(record, 80, run->op->shared_bytes);
	put32(record, 92, run->correlation);
	put64(record, 104, (uint64_t)run->op->name);
	put64(record, 144, run->node);
	put32(record, 156, run->submission->graph);
}

static void write_memory(unsigned char *record, const struct cupti_run *run)
{
	size_t correlation = run->kind == KIND_MEMCPY2 ? 60 : 44, node = run->kind == KIND_MEMCPY2 ? 72 : 64;

	if (run->kind != KIND_MEMSET)
		record[4] = (unsigned char)run->op->copy_kind;
	put64(record, 8, run->op->bytes);
	put_times(record, 16, run);
	put_place(record, 32, run->submission);
	put32(record, correlation, run->correlation);
	put64(record, node, run->node);
	put32(record, node + 8, run->submission->graph);
}

static void write_graph(unsigned char *record, const struct cupti_run *run)
{
	put32(record, 4, run->correlation);
	put_times(record, 8, run);
	put32(record, 24, run->submission->device);
	put32(record, 28, run->submission->graph);
	put32(record, 32, run->submission->context);
	put32(record, 36, run->submission->stream);
}

size_t cupti_record_bytes(const unsigned char *record)
{
	size_t longer = cupti_wishes.longer ? LONGER_BY : 0;
	uint32_t kind;

	memcpy(&kind, record, sizeof(kind));
	switch (kind) {
	case KIND_CONCURRENT_KERNEL:
		return 216 + longer;
	case KIND_MEMCPY:
	case KIND_MEMCPY2:
		return 96 + longer;
	case KIND_MEMSET:
		return 88 + longer;
	case KIND_GRAPH_TRACE:
		return 56 + longer;
	case KIND_OVERHEAD:
		return UNKNOWN_BYTES;
	default:
		return 0;
	}
}

size_t cupti_write_record(unsigned char *record, const struct cupti_run *run)
{
	size_t bytes;

	put32(record, 0, (uint32_t)run->kind);
	bytes = cupti_record_bytes(record);
	memset(record + 4, 0, bytes - 4);
	if (run->kind == KIND_CONCURRENT_KERNEL)
		write_kernel(record, run);
	else if (run->kind == KIND_GRAPH_TRACE)
		write_graph(record, run);
	else
		write_memory(record, run);
	if (cupti_wishes.longer)
		memset(record + bytes - LONGER_BY, 0xa5, LONGER_BY);
	return bytes;
}

size_t cupti_write_unknown(unsigned char *record)
{
	memset(record, 0x5a, UNKNOWN_BYTES);
	put32(record, 0, KIND_OVERHEAD);
	return UNKNOWN_BYTES;
}

void cupti_note_run(const struct cupti_run *run, int is_dropped)
{
	const struct gpu_submission *submission = run->submission;
	const struct gpu_op *op = run->op;

	if (!ledger)
		return;
	pthread_mutex_lock(&ledger_lock);
	fprintf(ledger,
		"{\"kind\":%d,\"dropped\":%s,\"submitted\":%llu,\"start\":%llu,\"end\":%llu,"
		"\"correlation\":%u,\"device\":%u,\"context\":%u,\"stream\":%u,\"graph\":%u,\"node\":%llu",
		run->kind, is_dropped ? "true" : "false", (unsigned long long)read_clock(CLOCK_MONOTONIC),
		(unsigned long long)cupti_to_monotonic(run->start),
		(unsigned long long)cupti_to_monotonic(run->end), run->correlation, submission->device,
		submission->context, submission->stream, submission->graph, (unsigned long long)run->node);
	if (op)
		fprintf(ledger,
			",\"name\":\"%s\",\"bytes\":%llu,\"copy_kind\":%d,\"grid\":[%u,%u,%u],"
			"\"block\":[%u,%u,%u],\"shared\":%u",
			op->name ? op->name : "", (unsigned long long)op->bytes, op->copy_kind, op->grid[0],
			op->grid[1], op->grid[2], op->block[0], op->block[1], op->block[2], op->shared_bytes);
	fputs("}\n", ledger);
	fflush(ledger);
	pthread_mutex_unlock(&ledger_lock);
}

void cupti_note_change(const char *what, int kind)
{
	if (!ledger)
		return;
	pthread_mutex_lock(&ledger_lock);
	fprintf(ledger, "{\"change\":\"%s\",\"kind\":%d}\n", what, kind);
	fflush(ledger);
	pthread_mutex_unlock(&ledger_lock);
}
