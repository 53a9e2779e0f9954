/* many_copies SECONDS: copies 20,000 times a second through the runtime of recording_runtime.S, and counts
 * failures. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE 20

int cudaMalloc(void **, unsigned long);
int cudaMemcpyAsync(void *, const void *, unsigned long, int);
int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);

static void report(long copies, long failed)
{
	printf("{\"pid\": %d, \"copies\": %ld, \"failed\": %ld}\n", getpid(), copies, failed);
	fflush(stdout);
	getchar();
}

int main(int argc, char **argv)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	long copies = 0, failed = 0;
	time_t end;
	void *context, *memory;
	char bytes[64] = "";

	cuInit(0);
	cuDevicePrimaryCtxRetain(&context, 0);
	cuCtxSetCurrent(context);
	cudaMalloc(&memory, sizeof(bytes));
	report(0, 0);
	end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	while (time(NULL) < end) {
		for (int i = 0; i < AT_ONCE; i++, copies++)
			failed += !!cudaMemcpyAsync(memory, bytes, sizeof(bytes), 1);
		nanosleep(&pause, NULL);
	}
	report(copies, failed);
	return 0;
}
