/* The functions of the stand-in CUPTI. */
#include "cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults.h"

#define EXPORT __attribute__((visibility("default")))
#define STREAMS 256
#define MAX_FULL 64
#define LATE_NS 300000000
#define VERSION 130001
#define FORCED 1

#define ENTER(name)                                                                                          \
	do {                                                                                                 \
		int fault_ = faults_enter(#name);                                                            \
		if (UNLIKELY(fault_))                                                                        \
			return fault_;                                                                       \
	} while (0)

typedef void (*request_function)(unsigned char **buffer, size_t *size, size_t *most_records);
typedef void (*complete_function)(void *context, uint32_t stream, unsigned char *buffer, size_t size,
				  size_t valid);

struct buffer {
	unsigned char *bytes;
	size_t size, used;
	/* when the last of its operations ends, and when it was full */
	uint64_t last_end, full_at;
};

static struct {
	pthread_mutex_t lock;
	int is_connected, subscriber;
	unsigned char enabled[KINDS];
	request_function request;
	complete_function complete;
	struct buffer current, full[MAX_FULL];
	unsigned int full_count;
	uint32_t correlation;
	uint64_t records, dropped, nodes;
	/* when the last operation of each stream ends */
	uint64_t stream_end[STREAMS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void give_back(struct buffer *buffer)
{
	state.complete(NULL, 0, buffer->bytes, buffer->size, buffer->used);
	memset(buffer, 0, sizeof(*buffer));
}

/* Delivers the current buffer, or keeps it for later. */
static void finish_current(void)
{
	if ((cupti_wishes.late || cupti_wishes.kept) && state.full_count < MAX_FULL) {
		state.current.full_at = cupti_now();
		state.full[state.full_count++] = state.current;
		memset(&state.current, 0, sizeof(state.current));
		return;
	}
	give_back(&state.current);
}

/* Space for a record in the current buffer; NULL if there is none and no other buffer. */
static unsigned char *space(void)
{
	size_t most_records = 0;

	if (state.current.bytes && state.current.size - state.current.used < MOST_RECORD_BYTES)
		finish_current();
	if (!state.current.bytes)
		state.request(&state.current.bytes, &state.current.size, &most_records);
	if (!state.current.bytes || state.current.size < MOST_RECORD_BYTES)
		return NULL;
	return state.current.bytes + state.current.used;
}

static void record(const struct cupti_run *run)
{
	unsigned char *place = NULL;
	int is_dropped;

	if (!state.enabled[run->kind] || !state.request)
		return;
	state.records++;
	if (cupti_wishes.unknown && state.records % 3 == 0 && (place = space()))
		state.current.used += cupti_write_unknown(place);
	is_dropped = cupti_wishes.drop_every && state.records % cupti_wishes.drop_every == 0;
	if (!is_dropped)
		is_dropped = !(place = space());
	if (is_dropped) {
		state.dropped++;
	} else {
		state.current.used += cupti_write_record(place, run);
		if (run->end > state.current.last_end)
			state.current.last_end = run->end;
	}
	cupti_note_run(run, is_dropped);
}

static uint64_t duration(const struct gpu_op *op)
{
	if (op->kind == GPU_OP_KERNEL)
		return 3000 + 500 * (op->grid[0] % 16);
	return op->kind == GPU_OP_MEMSET ? 1500 + op->bytes / 50 : 2000 + op->bytes / 10;
}

static int kind_of(const struct gpu_op *op)
{
	switch (op->kind) {
	case GPU_OP_KERNEL:
		return KIND_CONCURRENT_KERNEL;
	case GPU_OP_MEMSET:
		return KIND_MEMSET;
	case GPU_OP_PEER_COPY:
		return KIND_MEMCPY2;
	default:
		return KIND_MEMCPY;
	}
}

/* Operations of a stream run one after the other, the first one a little later than it was submitted. */
static void run(const struct gpu_submission *submission)
{
	uint64_t *end = &state.stream_end[submission->stream % STREAMS], start = cupti_now() + 2000;
	uint32_t correlation = ++state.correlation;
	int is_whole = submission->graph && state.enabled[KIND_GRAPH_TRACE];

	if (*end + 100 > start)
		start = *end + 100;
	*end = start;
	for (unsigned int i = 0; i < submission->count; i++) {
		const struct gpu_op *op = &submission->ops[i];
		struct cupti_run one = {kind_of(op), op, submission, correlation, 0, *end, 0};

		one.end = *end = one.start + duration(op);
		if (submission->graph)
			one.node = (uint64_t)submission->graph << 32 | (i + 1);
		if (!is_whole)
			record(&one);
	}
	if (is_whole) {
		struct cupti_run whole = {KIND_GRAPH_TRACE, NULL, submission, correlation, 0, start, *end};

		record(&whole);
	}
}

static void listen_to(const struct gpu_submission *submission)
{
	pthread_mutex_lock(&state.lock);
	run(submission);
	pthread_mutex_unlock(&state.lock);
}

/* Finds the driver, which must be loaded. */
static int connect_to_driver(void)
{
	int (*get_table)(const void **, const void *);
	const struct gpu_op_table *table;
	void *driver;

	cupti_prepare();
	if (state.is_connected)
		return CUPTI_SUCCESS;
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	get_table = driver ? (int (*)(const void **, const void *))dlsym(driver, "cuGetExportTable") : NULL;
	if (!get_table || get_table((const void **)&table, GPU_OP_TABLE_ID))
		return CUPTI_ERROR_NOT_INITIALIZED;
	table->listen(listen_to);
	state.is_connected = 1;
	return CUPTI_SUCCESS;
}

EXPORT int cuptiSubscribe(void **subscriber, void *callback, void *data)
{
	int result;

	(void)callback;
	(void)data;
	ENTER(cuptiSubscribe);
	if (!subscriber)
		return CUPTI_ERROR_INVALID_PARAMETER;
	pthread_mutex_lock(&state.lock);
	result = connect_to_driver();
	if (!result && cupti_wishes.early) {
		cupti_wishes.early = 0;
		result = CUPTI_ERROR_NOT_INITIALIZED;
	}
	if (!result && (state.subscriber || cupti_wishes.subscriber))
		result = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
	if (!result) {
		state.subscriber = 1;
		*subscriber = &state;
	}
	pthread_mutex_unlock(&state.lock);
	return result;
}

EXPORT int cuptiUnsubscribe(void *subscriber)
{
	ENTER(cuptiUnsubscribe);
	if (subscriber != &state)
		return CUPTI_ERROR_INVALID_PARAMETER;
	pthread_mutex_lock(&state.lock);
	state.subscriber = 0;
	pthread_mutex_unlock(&state.lock);
	return CUPTI_SUCCESS;
}

EXPORT int cuptiActivityRegisterCallbacks(request_function request, complete_function complete)
{
	ENTER(cuptiActivityRegisterCallbacks);
	if (!request || !complete)
		return CUPTI_ERROR_INVALID_PARAMETER;
	pthread_mutex_lock(&state.lock);
	state.request = request;
	state.complete = complete;
	pthread_mutex_unlock(&state.lock);
	return CUPTI_SUCCESS;
}

static int set_enabled(uint32_t kind, int enabled)
{
	int result;

	if (!kind || kind >= KINDS)
		return CUPTI_ERROR_INVALID_KIND;
	pthread_mutex_lock(&state.lock);
	result = connect_to_driver();
	if (!result) {
		state.enabled[kind] = (unsigned char)enabled;
		cupti_note_change(enabled ? "enabled" : "disabled", (int)kind);
	}
	pthread_mutex_unlock(&state.lock);
	return result;
}

EXPORT int cuptiActivityEnable(uint32_t kind)
{
	ENTER(cuptiActivityEnable);
	return set_enabled(kind, 1);
}

EXPORT int cuptiActivityDisable(uint32_t kind)
{
	ENTER(cuptiActivityDisable);
	return set_enabled(kind, 0);
}

static void flush_full(int is_forced)
{
	uint64_t now = cupti_now();
	unsigned int kept = 0;

	for (unsigned int i = 0; i < state.full_count; i++) {
		if (is_forced || (!cupti_wishes.kept && now - state.full[i].full_at >= LATE_NS))
			give_back(&state.full[i]);
		else
			state.full[kept++] = state.full[i];
	}
	state.full_count = kept;
}

EXPORT int cuptiActivityFlushAll(uint32_t flags)
{
	int is_forced = flags & FORCED;

	ENTER(cuptiActivityFlushAll);
	if (!state.complete)
		return CUPTI_ERROR_INVALID_OPERATION;
	pthread_mutex_lock(&state.lock);
	flush_full(is_forced);
	/* an operation that has not ended keeps its buffer */
	if (state.current.used && (is_forced || state.current.last_end <= cupti_now()))
		is_forced ? give_back(&state.current) : finish_current();
	pthread_mutex_unlock(&state.lock);
	return CUPTI_SUCCESS;
}

EXPORT int cuptiActivityGetNextRecord(unsigned char *buffer, size_t valid, unsigned char **next)
{
	unsigned char *at;

	ENTER(cuptiActivityGetNextRecord);
	if (!buffer || !next)
		return CUPTI_ERROR_INVALID_PARAMETER;
	at = *next ? *next + cupti_record_bytes(*next) : buffer;
	if (at == *next)
		return CUPTI_ERROR_INVALID_KIND;
	if (at >= buffer + valid)
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	*next = at;
	return CUPTI_SUCCESS;
}

EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
	(void)context;
	(void)stream;
	ENTER(cuptiActivityGetNumDroppedRecords);
	if (!dropped)
		return CUPTI_ERROR_INVALID_PARAMETER;
	pthread_mutex_lock(&state.lock);
	*dropped = state.dropped;
	state.dropped = 0;
	pthread_mutex_unlock(&state.lock);
	return CUPTI_SUCCESS;
}

EXPORT int cuptiGetTimestamp(uint64_t *timestamp)
{
	ENTER(cuptiGetTimestamp);
	if (!timestamp)
		return CUPTI_ERROR_INVALID_PARAMETER;
	cupti_prepare();
	*timestamp = cupti_now();
	return CUPTI_SUCCESS;
}

EXPORT int cuptiGetVersion(uint32_t *version)
{
	ENTER(cuptiGetVersion);
	*version = VERSION;
	return CUPTI_SUCCESS;
}

EXPORT int cuptiGetResultString(int result, const char **text)
{
	ENTER(cuptiGetResultString);
	*text = result == CUPTI_ERROR_NOT_INITIALIZED ? "CUPTI_ERROR_NOT_INITIALIZED" : "CUPTI_ERROR";
	return CUPTI_SUCCESS;
}

/* A tool that is to leave the process alone must not call it. */
EXPORT int cuptiFinalize(void)
{
	fputs("stand-in libcupti: cuptiFinalize was called\n", stderr);
	abort();
}
