/* Sums and prints the totals of `torture`. */
#include "torture.h"

#include <unistd.h>

static const char *const function_names[FUNCTIONS] = {
#define X(name) #name,
    TORTURE_FUNCTIONS(X)
#undef X
};

static const char *const kind_names[KINDS] = {"device", "managed", "pinned", "pool", "vmm", "array"};

static void add_words(void *sum, const void *part, size_t bytes)
{
	for (size_t i = 0; i < bytes / sizeof(unsigned long); i++)
		((unsigned long *)sum)[i] += ((const unsigned long *)part)[i];
}

/* Totals contain only numbers, so they are added as an array. */
void add_totals(struct totals *sum, const struct totals *part)
{
	add_words(sum, part, sizeof(*sum));
}

static unsigned long live_bytes(const struct sums *sums)
{
	return sums->allocated_bytes - sums->freed_bytes - sums->freed_with_context_bytes;
}

static unsigned long live(const struct sums *sums)
{
	return sums->allocations - sums->frees - sums->ended;
}

/* The bytes that the device's free memory must be lower by. */
unsigned long device_bytes(const struct totals *sum, int device)
{
	unsigned long bytes = 0;

	for (int kind = 0; kind < KINDS; kind++)
		bytes += kind == KIND_PINNED ? 0 : live_bytes(&sum->sums[kind][device]);
	return bytes;
}

static void print_sums(FILE *out, const struct sums *sums)
{
	fprintf(out,
		"\"live\":%lu,\"live_bytes\":%lu,\"allocations\":%lu,\"allocated_bytes\":%lu,\"frees\":%lu,"
		"\"freed_bytes\":%lu,\"ended\":%lu,\"freed_with_context_bytes\":%lu",
		live(sums), live_bytes(sums), sums->allocations, sums->allocated_bytes, sums->frees,
		sums->freed_bytes, sums->ended, sums->freed_with_context_bytes);
}

/* HIP has several names for some functions of the driver, so the calls by these are not those of its names.
 */
#ifdef STANDIN_HIP
#define HAS_NAMES 0
#else
#define HAS_NAMES 1
#endif

static void print_counts(FILE *out, const char *name, const unsigned long *counts)
{
	const char *comma = "";

	fprintf(out, "\"%s\":{", name);
	for (int f = 0; f < FUNCTIONS; f++) {
		if (!counts[f] || !HAS_NAMES)
			continue;
		fprintf(out, "%s\"%s\":%lu", comma, function_names[f], counts[f]);
		comma = ",";
	}
	fprintf(out, "},");
}

/* By kind; and by device and kind. */
static void print_memory(FILE *out, const struct totals *sum)
{
	struct sums all = {0};

	fprintf(out, "\"memory\":{");
	for (int kind = 0; kind < KINDS; kind++) {
		struct sums of_kind = {0};

		for (int device = 0; device < DEVICES; device++)
			add_words(&of_kind, &sum->sums[kind][device], sizeof(of_kind));
		add_words(&all, &of_kind, sizeof(all));
		fprintf(out, "%s\"%s\":{", kind ? "," : "", kind_names[kind]);
		print_sums(out, &of_kind);
		fprintf(out, "}");
	}
	fprintf(out, "},\"devices\":{");
	for (int device = 0; device <= options.devices; device++) {
		fprintf(out, "%s\"%d\":{", device ? "," : "", device);
		for (int kind = 0; kind < KINDS; kind++) {
			fprintf(out, "%s\"%s\":{", kind ? "," : "", kind_names[kind]);
			print_sums(out, &sum->sums[kind][device]);
			fprintf(out, "}");
		}
		fprintf(out, "}");
	}
	fprintf(out, "},");
	print_sums(out, &all);
}

void print_totals(FILE *out, const struct totals *sum, const char *ledger, unsigned int snapshot)
{
	fprintf(out, "{\"ledger\":\"%s\",\"snapshot\":%u,\"pid\":%d,\"threads\":%u,\"seed\":%lu,", ledger,
		snapshot, (int)getpid(), options.threads, options.seed);
	print_counts(out, "calls", sum->calls);
	print_counts(out, "errors", sum->errors);
	print_memory(out, sum);
	fprintf(out,
		",\"failed_allocations\":%lu,\"failed_frees\":%lu,\"unknown_frees\":%lu,\"null_frees\":%lu,"
		"\"cross_thread_frees\":%lu}\n",
		sum->failed_allocations, sum->failed_frees, sum->unknown_frees, sum->null_frees,
		sum->cross_thread_frees);
	fflush(out);
}
