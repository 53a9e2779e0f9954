/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reads its clock in a loop and finds the pauses in it. Between two readings it maps memory, uses and unmaps
 * it, which waits for everyone who reads its mappings, and calls the CUDA driver.
 *
 * While other programs run on its CPU, it waits, too. The Linux kernel counts that time for each thread, and
 * it is subtracted.
 *
 * Prints its pid. At each line on its standard input it prints what it saw since the last one:
 * {"turns", "pauses" (above 5 ms), "longest_us", "signals"}
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 5000000LL
#define PAGE 4096

int cuStreamSynchronize(void *stream);

static volatile sig_atomic_t signals;

static void count(int number)
{
	(void)number;
	signals++;
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* How long this thread has waited for a CPU. */
static long long waited_ns(int schedstat)
{
	char text[128] = "";
	long long waited = 0;

	if (pread(schedstat, text, sizeof(text) - 1, 0) <= 0 || sscanf(text, "%*d %lld", &waited) != 1)
		exit(1);
	return waited;
}

static void use_memory(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		exit(1);
	page[0] = 1;
	munmap(page, PAGE);
}

int main(void)
{
	int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
	struct pollfd input = {.fd = 0, .events = POLLIN};
	long long turns = 0, pauses = 0, longest = 0, before, waited;
	char line[16];

	for (int number = 1; number < NSIG; number++)
		signal(number, count);
	printf("%d\n", getpid());
	fflush(stdout);
	before = now_ns();
	waited = waited_ns(schedstat);
	for (;;) {
		long long now, waited_now, pause;

		use_memory();
		cuStreamSynchronize(NULL);
		turns++;
		/* first the clock: what it waits between the two is subtracted from the next pause, not from
		 * this one */
		now = now_ns();
		waited_now = waited_ns(schedstat);
		pause = now - before - (waited_now - waited);
		before = now;
		waited = waited_now;
		longest = pause > longest ? pause : longest;
		pauses += pause > PAUSE_NS;
		/* a signal interrupts it */
		if (poll(&input, 1, 0) != 1)
			continue;
		if (read(0, line, sizeof(line)) <= 0)
			return 0;
		printf("{\"turns\":%lld,\"pauses\":%lld,\"longest_us\":%lld,\"signals\":%d}\n", turns, pauses,
		       longest / 1000, (int)signals);
		fflush(stdout);
		turns = pauses = longest = 0;
		signals = 0;
		before = now_ns();
		waited = waited_ns(schedstat);
	}
}
