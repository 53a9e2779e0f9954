/*
 * Many threads, an exact number of runtime calls, and a ledger of all of them, as JSON on stdout.
 *
 *   ledger [--threads N] [--calls N] [--seed N] [--wait] [--pauses K [--hold SECONDS | --pause-file PATH]]
 *
 * --wait prints {"ready":true,...} before the first call and waits for a line on stdin. --pauses parks all
 * threads K times, prints a snapshot, and continues after a line on stdin, after --hold seconds, or once
 * --pause-file exists (it is then removed). Some allocations are left live at the end on purpose; the ledger
 * says how many.
 */
#include "ledger.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct options options = {.threads = 8, .calls = 100000, .seed = 1};
static struct worker *workers;
static pthread_barrier_t parked, released;

static void sleep_for(double seconds)
{
	struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	while (nanosleep(&left, &left))
		;
}

static void wait_for_line(void)
{
	int c;

	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

static void wait_to_go_on(void)
{
	if (options.hold > 0) {
		sleep_for(options.hold);
	} else if (options.pause_file) {
		while (access(options.pause_file, F_OK))
			sleep_for(0.01);
		unlink(options.pause_file);
	} else {
		wait_for_line();
	}
}

static void *run(void *argument)
{
	struct worker *worker = argument;
	unsigned long share = worker->budget / (options.pauses + 1);

	for (unsigned int pause = 0; pause < options.pauses; pause++) {
		make_calls(worker, share);
		pthread_barrier_wait(&parked);
		pthread_barrier_wait(&released);
	}
	make_calls(worker, worker->budget);
	return NULL;
}

static void print(unsigned int snapshot)
{
	struct totals *sum = calloc(1, sizeof(*sum));

	if (!sum)
		abort();
	for (unsigned int i = 0; i < options.threads; i++)
		add_totals(sum, &workers[i].totals);
	print_ledger(stdout, sum, &options, snapshot);
	free(sum);
}

static void usage(void)
{
	fprintf(stderr,
		"usage: ledger [--threads N] [--calls N] [--seed N] [--wait] [--pauses K [--hold SECONDS | "
		"--pause-file PATH]]\n");
	exit(2);
}

static void parse(int count, char **words)
{
	for (int i = 1; i < count; i++) {
		const char *word = words[i], *value = i + 1 < count ? words[i + 1] : NULL;

		if (!strcmp(word, "--wait")) {
			options.wait = 1;
			continue;
		}
		if (!value)
			usage();
		if (!strcmp(word, "--threads"))
			options.threads = (unsigned int)strtoul(value, NULL, 10);
		else if (!strcmp(word, "--calls"))
			options.calls = strtoul(value, NULL, 10);
		else if (!strcmp(word, "--seed"))
			options.seed = strtoul(value, NULL, 10);
		else if (!strcmp(word, "--pauses"))
			options.pauses = (unsigned int)strtoul(value, NULL, 10);
		else if (!strcmp(word, "--hold"))
			options.hold = strtod(value, NULL);
		else if (!strcmp(word, "--pause-file"))
			options.pause_file = value;
		else
			usage();
		i++;
	}
	if (!options.threads)
		usage();
	if (!options.pauses && (options.hold > 0 || options.pause_file))
		options.pauses = 1;
}

static void start(void)
{
	for (unsigned int i = 0; i < options.threads; i++) {
		struct worker *worker = &workers[i];

		worker->number = i;
		worker->budget = options.calls / options.threads + (i < options.calls % options.threads);
		worker->random = (options.seed + 1) * 0x9e3779b97f4a7c15UL + (i + 1) * 0xbf58476d1ce4e5b9UL;
		if (pthread_create(&worker->thread, NULL, run, worker))
			abort();
	}
}

int main(int count, char **words)
{
	parse(count, words);
	workers = calloc(options.threads, sizeof(*workers));
	if (!workers)
		abort();
	if (options.wait) {
		printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
		fflush(stdout);
		wait_for_line();
	}
	pthread_barrier_init(&parked, NULL, options.threads + 1);
	pthread_barrier_init(&released, NULL, options.threads + 1);
	start();
	for (unsigned int pause = 1; pause <= options.pauses; pause++) {
		pthread_barrier_wait(&parked);
		print(pause);
		wait_to_go_on();
		pthread_barrier_wait(&released);
	}
	for (unsigned int i = 0; i < options.threads; i++)
		pthread_join(workers[i].thread, NULL);
	print(0);
	return 0;
}
