/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads and child processes that call the CUDA driver and exit, all the time, until a line arrives. Prints
 * its pid first, and at the end the number of threads that it started.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE 8

int cuStreamSynchronize(void *stream);

static atomic_int is_over;
static atomic_ulong started;

static void *wait_for_stream(void *unused)
{
	cuStreamSynchronize(NULL);
	return unused;
}

static void *start_threads(void *unused)
{
	pthread_t thread;

	while (!is_over && !pthread_create(&thread, NULL, wait_for_stream, NULL)) {
		started++;
		pthread_join(thread, NULL);
	}
	return unused;
}

int main(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};
	pthread_t starters[AT_ONCE];

	printf("%d\n", getpid());
	fflush(stdout);
	for (int i = 0; i < AT_ONCE; i++)
		if (pthread_create(&starters[i], NULL, start_threads, NULL))
			return 1;
	while (poll(&input, 1, 5) == 0) {
		pid_t child = fork();

		if (child == 0) {
			cuStreamSynchronize(NULL);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	is_over = 1;
	for (int i = 0; i < AT_ONCE; i++)
		pthread_join(starters[i], NULL);
	printf("%lu\n", started);
	return 0;
}
