/*
 * gpus [ASK [CHOICE]]: allocates on every GPU that it sees: N + 1 million bytes on the GPU with the machine's
 * number N. ASK is what it queries from the driver for each of them before: `uuid`, `pci` or `nothing`. It
 * writes CHOICE to CUDA_VISIBLE_DEVICES itself, like programs that start without it. Prints {"pid","gpus"},
 * the machine's numbers in its own order, and waits for a line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

static int query(const char *what, int device)
{
	char answer[32];

	if (!strcmp(what, "uuid"))
		return cuDeviceGetUuid_v2(answer, device);
	return strcmp(what, "pci") ? 0 : cuDeviceGetPCIBusId(answer, sizeof(answer), device);
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "nothing";
	int devices = 0, result = 0;

	if (count > 2)
		setenv("CUDA_VISIBLE_DEVICES", words[2], 1);
	result |= cuInit(0);
	result |= cuDeviceGetCount(&devices);
	printf("{\"pid\":%d,\"gpus\":[", (int)getpid());
	for (int device = 0; device < devices; device++) {
		int number = -1;
		char name[64];
		void *context;
		uint64_t block;

		/* the name ends with the machine's number */
		result |= query(what, device) | cuDeviceGetName(name, sizeof(name), device);
		if (sscanf(name, "Stand-in GPU %d", &number) != 1)
			return 2;
		result |= cuDevicePrimaryCtxRetain(&context, device) | cuCtxPushCurrent_v2(context);
		result |= cuMemAlloc_v2(&block, 1000000 * (size_t)(number + 1));
		result |= cuCtxPopCurrent_v2(&context);
		printf("%s%d", device ? "," : "", number);
	}
	printf("]}\n");
	fflush(stdout);
	getchar();
	return result;
}
