/*
 * Shared by the programs that leak: the ledger of each call site that allocates, and rounds of calls on
 * several threads, with pauses in between in which nothing runs.
 *
 *   --rounds N      of each thread
 *   --threads N     (2)
 *   --pauses N      (0) waits for a line after each, at equal distances
 *   --pace MS       (0) sleeps after each round
 *   --wait          prints {"pid","ready"} and waits for a line before its first call
 *
 * At each pause and at the end it prints {"ledger","snapshot","pid","threads","rounds","call_sites":[...]}.
 * An entry of "call_sites" is a call site. It has the "function" that calls the runtime or the driver and its
 * "line", a function on the stack that leads to it ("through"), "leaks", and "live", "live_bytes",
 * "allocations", "allocated_bytes", "frees", "freed_bytes".
 */
#ifndef STANDIN_LEAKS_H
#define STANDIN_LEAKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <vector>

extern "C" {
#include "cuda_api.h"
}

/* A function that is never inlined or cloned, so that it has its own frame and name. */
#ifdef __clang__
#define OWN_FRAME __attribute__((noinline))
#else
#define OWN_FRAME __attribute__((noinline, noipa))
#endif
/* Placed after a call, so that the compiler does not turn the call into a jump. */
#define STAY() asm volatile("" ::: "memory")

/* The ledger of a call site. */
struct CallSite {
	const char *name, *function, *through;
	bool leaks;
	std::atomic<int> line{0};
	std::atomic<unsigned long> allocations{0}, allocated_bytes{0}, frees{0}, freed_bytes{0};

	CallSite(const char *name, const char *function, const char *through, bool leaks)
	    : name(name), function(function), through(through), leaks(leaks)
	{
		all().push_back(this);
	}

	static std::vector<CallSite *> &all()
	{
		static std::vector<CallSite *> call_sites;
		return call_sites;
	}

	void allocated(size_t bytes, int at_line)
	{
		line = at_line;
		allocations++;
		allocated_bytes += bytes;
	}

	void freed(size_t bytes)
	{
		frees++;
		freed_bytes += bytes;
	}

	void print(const char *comma) const
	{
		printf("%s{\"name\":\"%s\",\"function\":\"%s\",\"through\":\"%s\",\"line\":%d,\"leaks\":%s,",
		       comma, name, function, through, line.load(), leaks ? "true" : "false");
		printf("\"live\":%lu,\"live_bytes\":%lu,\"allocations\":%lu,\"allocated_bytes\":%lu,",
		       allocations - frees, allocated_bytes - freed_bytes, allocations.load(),
		       allocated_bytes.load());
		printf("\"frees\":%lu,\"freed_bytes\":%lu}", frees.load(), freed_bytes.load());
	}
};

inline void succeed(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: %d\n", what, result);
		exit(1);
	}
}

struct Options {
	unsigned long rounds, threads = 2, pauses = 0, pace = 0;
	bool wait = false;

	Options(unsigned long rounds, int count, char **words) : rounds(rounds)
	{
		for (int i = 1; i < count; i++) {
			if (!strcmp(words[i], "--wait")) {
				wait = true;
				continue;
			}
			unsigned long *number = option(words[i]);
			if (!number || i + 1 == count) {
				fprintf(stderr, "unknown option: %s\n", words[i]);
				exit(2);
			}
			*number = strtoul(words[++i], NULL, 10);
		}
	}

      private:
	unsigned long *option(const char *word)
	{
		if (!strcmp(word, "--rounds"))
			return &rounds;
		if (!strcmp(word, "--threads"))
			return &threads;
		if (!strcmp(word, "--pauses"))
			return &pauses;
		return !strcmp(word, "--pace") ? &pace : NULL;
	}
};

/* Prints more members of the ledger, each after a comma; NULL if there are none. */
inline void (*print_more)(void) = NULL;

inline void print_ledger(const Options &options, const char *ledger, unsigned long snapshot,
			 unsigned long rounds)
{
	const char *comma = "";

	printf(
	    "{\"ledger\":\"%s\",\"snapshot\":%lu,\"pid\":%d,\"threads\":%lu,\"rounds\":%lu,\"call_sites\":[",
	    ledger, snapshot, (int)getpid(), options.threads, rounds);
	for (const CallSite *call_site : CallSite::all()) {
		call_site->print(comma);
		comma = ",";
	}
	printf("]");
	if (print_more)
		print_more();
	printf("}\n");
	fflush(stdout);
}

/* Some rounds of one worker, on a thread that exits after them, so that no thread runs during a pause. */
template <typename Worker> struct Shift {
	Worker *worker;
	unsigned long first, end, pace;
	pthread_t thread;

	static void *work(void *argument)
	{
		Shift *shift = static_cast<Shift *>(argument);

		for (unsigned long round = shift->first; round < shift->end; round++) {
			shift->worker->round(round);
			if (shift->pace)
				usleep(shift->pace * 1000);
		}
		return NULL;
	}
};

template <typename Worker>
void work(std::vector<Worker *> &workers, unsigned long first, unsigned long end, unsigned long pace)
{
	std::vector<Shift<Worker>> shifts;

	for (Worker *worker : workers)
		shifts.push_back({worker, first, end, pace, {}});
	for (auto &shift : shifts)
		succeed(pthread_create(&shift.thread, Worker::attributes(), Shift<Worker>::work, &shift),
			"pthread_create");
	for (auto &shift : shifts)
		succeed(pthread_join(shift.thread, NULL), "pthread_join");
}

/*
 * The whole program, for a worker type with a constructor, round(n) and attributes(). Memory of workers is
 * never freed.
 */
template <typename Worker> int leaks_main(unsigned long rounds, int count, char **words)
{
	Options options(rounds, count, words);
	std::vector<Worker *> workers;
	unsigned long done = 0;

	if (options.wait) {
		printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
		fflush(stdout);
		getchar();
	}
	for (unsigned long i = 0; i < options.threads; i++)
		workers.push_back(new Worker);
	for (unsigned long pause = 1; pause <= options.pauses; pause++) {
		unsigned long until = options.rounds * pause / (options.pauses + 1);

		work(workers, done, until, options.pace);
		done = until;
		print_ledger(options, "snapshot", pause, done);
		getchar();
	}
	work(workers, done, options.rounds, options.pace);
	print_ledger(options, "end", options.pauses + 1, options.rounds);
	if (options.wait)
		getchar();
	return 0;
}

#endif
