/*
 * Only the driver: context, module, memory, copies and a launch with stack arguments. Prints
 * {"pid","calls",...}.
 */
#include <stdio.h>
#include <unistd.h>

#include "cuda_api.h"

int main(void)
{
	static char host[65536];
	uint64_t first, second;
	void *context, *module, *function;
	int device, result = 0;

	result |= cuInit(0);
	result |= cuDeviceGet(&device, 0);
	result |= cuCtxCreate_v2(&context, 0, device);
	result |= cuModuleLoadData(&module, "image");
	result |= cuModuleGetFunction(&function, module, "driver_only_kernel");
	result |= cuMemAlloc_v2(&first, sizeof(host));
	result |= cuMemAlloc_v2(&second, 1 << 20);
	result |= cuMemcpyHtoD_v2(first, host, sizeof(host));
	for (int i = 0; i < 5; i++) {
		void *parameters[] = {&first, &second};

		result |= cuLaunchKernel(function, 11, 12, 13, 21, 22, 1, 2048, NULL, parameters, NULL);
	}
	result |= cuCtxSynchronize();
	result |= cuMemcpyDtoH_v2(host, first, 4096);
	result |= cuMemFree_v2(first);
	printf("{\"pid\":%d,\"calls\":{\"cuInit\":1,\"cuDeviceGet\":1,\"cuCtxCreate_v2\":1,"
	       "\"cuModuleLoadData\":1,"
	       "\"cuModuleGetFunction\":1,\"cuMemAlloc_v2\":2,\"cuMemcpyHtoD_v2\":1,\"cuLaunchKernel\":5,"
	       "\"cuCtxSynchronize\":1,\"cuMemcpyDtoH_v2\":1,\"cuMemFree_v2\":1},\"launches\":{\"driver_only_"
	       "kernel\":5},"
	       "\"live\":1,\"live_bytes\":%d,\"copy_bytes\":{\"H2D\":%zu,\"D2H\":4096}}\n",
	       (int)getpid(), 1 << 20, sizeof(host));
	return result;
}
