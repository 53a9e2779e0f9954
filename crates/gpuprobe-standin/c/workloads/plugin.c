/* libplugin.so: linked with the runtime, makes one call when it is loaded and five on request. */
#include "cuda_api.h"

static void *allocation;

__attribute__((constructor)) static void loaded(void)
{
	cudaMalloc(&allocation, 12345);
}

__attribute__((visibility("default"))) int plugin_work(void)
{
	void *blocks[3];
	int result = 0;

	for (int i = 0; i < 3; i++)
		result |= cudaMalloc(&blocks[i], 1000 * (size_t)(i + 1));
	for (int i = 0; i < 2; i++)
		result |= cudaFree(blocks[i]);
	return result;
}
