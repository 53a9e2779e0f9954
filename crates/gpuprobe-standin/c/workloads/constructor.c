/* One call before main, in a constructor, and two in main. Prints {"pid","calls","live","live_bytes"}. */
#include <stdio.h>
#include <unistd.h>

#include "cuda_api.h"

static void *early, *late;
static int early_result;

__attribute__((constructor)) static void before_main(void)
{
	early_result = cudaMalloc(&early, 4096);
}

int main(void)
{
	int result = cudaMalloc(&late, 8192);

	result |= cudaFree(late);
	printf("{\"pid\":%d,\"calls\":{\"cudaMalloc\":2,\"cudaFree\":1},\"live\":1,\"live_bytes\":4096}\n",
	       (int)getpid());
	return early_result || result;
}
