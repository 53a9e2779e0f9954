/*
 * Gaps between launches: on one stream three of 30 ms after a synchronization, in which nothing is called,
 * and two of 40 ms between launches, in which a copy takes most of the time (STANDIN_DELAY). Prints
 * {"pid","after_sync","after_launch"}, the number of each, and with --wait waits for a line.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launches.h"

static void pause_ms(long ms)
{
	struct timespec time = {0, ms * 1000000};

	nanosleep(&time, NULL);
}

int main(int argc, char **argv)
{
	static char host[64];
	void *module, *function, *stream;
	uint64_t device;
	int result = 0;

	result |= cuInit(0);
	result |= cuStreamCreate(&stream, 0);
	result |= cuMemAlloc_v2(&device, sizeof(host));
	result |= cuModuleLoadData(&module, "image");
	result |= cuModuleGetFunction(&function, module, "gap_kernel");
	result |= cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
	for (int i = 0; i < 3; i++) {
		/* waits for one stream, or for all of them */
		result |= i == 1 ? cuCtxSynchronize() : cuStreamSynchronize(stream);
		pause_ms(30);
		result |= cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
	}
	for (int i = 0; i < 2; i++) {
		result |= cuMemcpyHtoD_v2(device, host, sizeof(host));
		result |= cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
	}
	printf("{\"pid\":%d,\"after_sync\":3,\"after_launch\":2}\n", (int)getpid());
	fflush(stdout);
	if (!strcmp(argv[argc - 1], "--wait"))
		getchar();
	return result;
}
