/*
 * brief: a few driver calls in a process that exits at once. Prints
 * {"pid","calls","first_call_us","last_call_us"}, the times since the start of the process as the Linux
 * kernel records it, which is in steps of 10 ms and never too short.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

static long long boot_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* The 22nd field of /proc/self/stat; the name, the second field, may contain blanks. */
static long long began_us(void)
{
	char text[1024];
	long long ticks = 0;
	FILE *file = fopen("/proc/self/stat", "r");
	size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
	char *at;

	text[length] = 0;
	at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		sscanf(at, " %lld", &ticks);
	if (file)
		fclose(file);
	return ticks * (1000000 / sysconf(_SC_CLK_TCK));
}

int main(void)
{
	long long first = boot_us(), began = began_us();
	uint64_t block;
	void *context;
	int device, result = 0;

	result |= cuInit(0);
	result |= cuDeviceGet(&device, 0);
	result |= cuCtxCreate_v2(&context, 0, device);
	for (int i = 0; i < 3; i++)
		result |= cuMemAlloc_v2(&block, 1000);
	result |= cuMemFree_v2(block);
	result |= cuCtxSynchronize();
	printf(
	    "{\"pid\":%d,\"calls\":{\"cuInit\":1,\"cuDeviceGet\":1,\"cuCtxCreate_v2\":1,\"cuMemAlloc_v2\":3,"
	    "\"cuMemFree_v2\":1,\"cuCtxSynchronize\":1},\"first_call_us\":%lld,\"last_call_us\":%lld}\n",
	    (int)getpid(), first - began, boot_us() - began);
	return result;
}
