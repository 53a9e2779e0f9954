/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads that wait for a stream, and threads that wait for a line and exit:
 *
 *     many_waits IN_CALL UNTIL_LINE
 *
 * Prints its pid when all have begun. Closes its output when those that wait for a line have exited.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 4096

int cuStreamSynchronize(void *stream);

static atomic_int begun;
static int line[2];

static void *wait_for_stream(void *unused)
{
	atomic_fetch_add(&begun, 1);
	cuStreamSynchronize(NULL);
	return unused;
}

static void *wait_for_line(void *unused)
{
	char byte;

	atomic_fetch_add(&begun, 1);
	if (read(line[0], &byte, 1) != 1)
		exit(1);
	return unused;
}

int main(int argc, char **argv)
{
	static pthread_t until_line[MOST];
	int in_call = argc > 1 ? atoi(argv[1]) : 0, waiting = argc > 2 ? atoi(argv[2]) : 0;
	pthread_attr_t small;
	pthread_t thread;

	if (waiting > MOST || pipe(line))
		return 1;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 128 << 10);
	for (int i = 0; i < in_call; i++)
		if (pthread_create(&thread, &small, wait_for_stream, NULL))
			return 1;
	for (int i = 0; i < waiting; i++)
		if (pthread_create(&until_line[i], &small, wait_for_line, NULL))
			return 1;
	while (begun < in_call + waiting)
		usleep(1000);
	printf("%d\n", getpid());
	fflush(stdout);
	getchar();
	for (int i = 0; i < waiting; i++)
		if (write(line[1], "", 1) != 1)
			return 1;
	for (int i = 0; i < waiting; i++)
		pthread_join(until_line[i], NULL);
	close(1);
	for (;;)
		pause();
}
