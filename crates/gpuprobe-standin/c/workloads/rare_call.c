/*
 * A driver call inside a runtime call that is seldom used: it returns the handle of a registered kernel.
 * Prints {"pid","calls"}.
 */
#include <stdio.h>
#include <unistd.h>

#include "cuda_api.h"

int __cudaGetKernel(void **kernel, const void *entryFuncAddr);

static void kernel_of_ours(void)
{
	__asm__ volatile("");
}

int main(void)
{
	void **module = __cudaRegisterFatBinary(NULL);
	void *kernel = NULL;
	int result;

	__cudaRegisterFunction(module, (const char *)kernel_of_ours, "ours", "ours", -1, NULL, NULL, NULL,
			       NULL, NULL);
	__cudaRegisterFatBinaryEnd(module);
	result = __cudaGetKernel(&kernel, (const void *)kernel_of_ours);
	printf("{\"pid\":%d,\"calls\":{\"__cudaGetKernel\":1,\"cuLibraryGetKernel\":1}}\n", (int)getpid());
	return result;
}
