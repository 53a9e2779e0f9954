/* Summing and printing the ledger. */
#include "ledger.h"

#include <string.h>
#include <unistd.h>

/* The names of the calls; those of CUDA find the inner calls. */
static const char *const cuda_names[FUNCTIONS] = {
#define X(name) #name,
    LEDGER_FUNCTIONS(X)
#undef X
};

#define NAME(function) #function
static const char *const function_names[FUNCTIONS] = {
#define X(name) NAME(name),
    LEDGER_FUNCTIONS(X)
#undef X
};

static const char *const space_names[SPACES] = {"device", "managed", "pinned", "pool"};
static const char *const kind_names[COPY_KINDS] = {"H2H", "H2D", "D2H", "D2D", "Default"};

/* Rows of the table of inner calls; `kind` is empty if there is only one. */
static const struct inner_row {
	const char *function, *kind, *driver;
} inner_rows[] = {
#define INNER(function, driver, arguments) {#function, "", #driver},
#define INNER_KIND(function, kind, driver, arguments) {#function, #kind, #driver},
#define NO_INNER(function)
#include "../inner_calls.def"
#undef INNER
#undef INNER_KIND
#undef NO_INNER
};

#define INNER_ROWS (sizeof(inner_rows) / sizeof(inner_rows[0]))

void add_totals(struct totals *sum, const struct totals *part)
{
	unsigned long *to = (unsigned long *)&sum->copies;
	const unsigned long *from = (const unsigned long *)&part->copies;
	size_t words = (sizeof(*sum) - offsetof(struct totals, copies)) / sizeof(*to);

	for (int f = 0; f < FUNCTIONS; f++) {
		sum->calls[f] += part->calls[f];
		for (int e = 0; e < MAX_ERROR; e++)
			sum->errors[f][e] += part->errors[f][e];
	}
	for (size_t i = 0; i < words; i++)
		to[i] += from[i];
}

static void print_calls(FILE *out, const struct totals *sum)
{
	const char *comma = "";

	fprintf(out, "\"calls\":{");
	for (int f = 0; f < FUNCTIONS; f++) {
		if (!sum->calls[f])
			continue;
		fprintf(out, "%s\"%s\":%lu", comma, function_names[f], sum->calls[f]);
		comma = ",";
	}
	fprintf(out, "},");
}

static void print_errors(FILE *out, const struct totals *sum)
{
	const char *comma = "";

	fprintf(out, "\"errors\":{");
	for (int f = 0; f < FUNCTIONS; f++) {
		const char *inner_comma = "";

		for (int e = 0; e < MAX_ERROR; e++) {
			if (!sum->errors[f][e])
				continue;
			if (!*inner_comma)
				fprintf(out, "%s\"%s\":{", comma, function_names[f]);
			fprintf(out, "%s\"%d\":%u", inner_comma, e, sum->errors[f][e]);
			inner_comma = comma = ",";
		}
		if (*inner_comma)
			fprintf(out, "}");
	}
	fprintf(out, "},");
}

static const char *inner_of(const char *function, const char *kind)
{
	for (size_t i = 0; i < INNER_ROWS; i++) {
		if (!strcmp(inner_rows[i].function, function) && !strcmp(inner_rows[i].kind, kind))
			return inner_rows[i].driver;
	}
	return "cuDriverGetVersion";
}

struct driver_count {
	const char *name;
	unsigned long calls;
};

static void count_driver(struct driver_count *counts, const char *name, unsigned long calls)
{
	while (counts->name && strcmp(counts->name, name))
		counts++;
	counts->name = name;
	counts->calls += calls;
}

/* Every runtime call makes one driver call, unless STANDIN_FAIL fails the runtime function itself. */
static void print_driver_calls(FILE *out, const struct totals *sum)
{
	struct driver_count counts[FUNCTIONS + 2 * COPY_KINDS + 1] = {0};
	const char *comma = "";

	for (int f = 0; f < FUNCTIONS; f++) {
		if (f != F_cudaMemcpy && f != F_cudaMemcpyAsync && sum->calls[f])
			count_driver(counts, inner_of(cuda_names[f], ""), sum->calls[f]);
	}
	for (int is_async = 0; is_async < 2; is_async++) {
		const char *function = is_async ? "cudaMemcpyAsync" : "cudaMemcpy";

		for (int kind = 0; kind < COPY_KINDS; kind++) {
			if (sum->copies[is_async][kind])
				count_driver(counts, inner_of(function, kind_names[kind]),
					     sum->copies[is_async][kind]);
		}
	}
	fprintf(out, "\"driver_calls\":{");
	for (struct driver_count *count = counts; count->name; count++) {
		fprintf(out, "%s\"%s\":%lu", comma, count->name, count->calls);
		comma = ",";
	}
	fprintf(out, "},");
}

static void print_memory(FILE *out, const struct totals *sum)
{
	fprintf(out, "\"memory\":{");
	for (int s = 0; s < SPACES; s++)
		fprintf(
		    out,
		    "%s\"%s\":{\"allocations\":%lu,\"frees\":%lu,\"allocated_bytes\":%lu,\"freed_bytes\":%lu,"
		    "\"live\":%lu,\"live_bytes\":%lu}",
		    s ? "," : "", space_names[s], sum->allocations[s], sum->frees[s], sum->allocated_bytes[s],
		    sum->freed_bytes[s], sum->allocations[s] - sum->frees[s],
		    sum->allocated_bytes[s] - sum->freed_bytes[s]);
	fprintf(out, "},");
}

static void print_copies(FILE *out, const struct totals *sum)
{
	fprintf(out, "\"copies\":{");
	for (int k = 0; k < COPY_KINDS; k++)
		fprintf(out, "%s\"%s\":{\"sync\":%lu,\"async\":%lu,\"sync_bytes\":%lu,\"async_bytes\":%lu}",
			k ? "," : "", kind_names[k], sum->copies[0][k], sum->copies[1][k],
			sum->copy_bytes[0][k], sum->copy_bytes[1][k]);
	fprintf(out, "},\"memset_bytes\":{\"sync\":%lu,\"async\":%lu},", sum->memset_bytes[0],
		sum->memset_bytes[1]);
}

void print_ledger(FILE *out, const struct totals *sum, const struct options *options, unsigned int snapshot)
{
	unsigned long total = 0;

	for (int f = 0; f < FUNCTIONS; f++)
		total += sum->calls[f];
	fprintf(
	    out,
	    "{\"ledger\":\"%s\",\"snapshot\":%u,\"pid\":%d,\"threads\":%u,\"seed\":%lu,\"total_calls\":%lu,",
	    snapshot ? "snapshot" : "final", snapshot, (int)getpid(), options->threads, options->seed, total);
	print_calls(out, sum);
	print_errors(out, sum);
	print_driver_calls(out, sum);
	print_memory(out, sum);
	print_copies(out, sum);
	fprintf(out, "\"launches\":{");
	for (int k = 0; k < KERNELS; k++)
		fprintf(out, "%s\"%s\":%lu", k ? "," : "", kernel_names[k], sum->launches[k]);
	fprintf(out,
		"},\"failed_allocations\":%lu,\"failed_frees\":%lu,\"unknown_frees\":%lu,\"null_frees\":%lu,"
		"\"handed_over\":%lu,\"last_errors\":%lu}\n",
		sum->failed_allocations, sum->failed_frees, sum->unknown_frees, sum->null_frees,
		sum->handed_over, sum->last_errors);
	fflush(out);
}
