/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* read_counters PID: prints the sums over the threads of a process that has the interposer. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "interposer.h"

static const char *const names[] = {
#define FUNCTION(name, registers, words) #name,
#include "functions.def"
#undef FUNCTION
};

int main(int count, char **words)
{
	const struct counters *counters;
	struct stat status;
	char path[64];
	int file;

	if (count != 2)
		return 2;
	snprintf(path, sizeof(path), COUNTERS_PATH, atoi(words[1]));
	file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	/* the process can shorten its file at any time, and reading beyond its end ends the reader: a copy
	 * would not */
	if (file < 0 || fstat(file, &status) || (size_t)status.st_size != sizeof(*counters))
		return fprintf(stderr, "read_counters: no counters of process %s\n", words[1]), 1;
	counters = mmap(NULL, sizeof(*counters), PROT_READ, MAP_SHARED, file, 0);
	if (counters == MAP_FAILED || counters->magic != MAGIC)
		return fprintf(stderr, "read_counters: %s is no file of counters\n", path), 1;
	for (int i = 0; i < FUNCTION_COUNT; i++) {
		unsigned long long calls = 0, failures = 0;

		for (int thread = 0; thread < MOST_THREADS; thread++) {
			calls += counters->threads[thread].functions[i].calls;
			failures += counters->threads[thread].functions[i].failures;
		}
		if (calls)
			printf("%s %llu %llu\n", names[i], calls, failures);
	}
	return 0;
}
