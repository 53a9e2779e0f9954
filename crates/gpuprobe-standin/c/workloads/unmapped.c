/*
 * unmapped: calls with unmapped addresses, each of which fails before it reads them. Prints one JSON line per
 * call, as `args` does, with null for what is behind such an address.
 */
#include <stdlib.h>

#include "args_print.h"
#include "cuda_api.h"

#define NOWHERE(n) ((void *)(0x1000UL * (n)))

/* its symbol is the kernel's name */
void unmapped_kernel(void)
{
	__asm__ volatile("");
}

__attribute__((constructor)) static void fail_all(void)
{
	setenv("STANDIN_FAIL",
	       "cudaMalloc:1,cudaMemcpy3D:1,cudaLaunchKernelExC:1,cudaMalloc3D:1,cuModuleGetFunction:500,"
	       "cuMemcpy2D_v2:1",
	       1);
}

int main(void)
{
	const void *kernel = (const void *)unmapped_kernel;
	static void *function;

	SHOW(cudaMalloc, (NOWHERE(1), 77), "'devPtr':" HEX ",'size':77", at(NOWHERE(1)));
	SHOW(cudaMalloc3D, (NOWHERE(2), (struct cudaExtent){3, 2, 1}),
	     "'pitchedDevPtr':" HEX ",'extent':[3,2,1]", at(NOWHERE(2)));
	SHOW(cudaMemcpy3D, (NOWHERE(3)), "'p':" HEX, at(NOWHERE(3)));
	SHOW(cudaLaunchKernelExC, (NOWHERE(4), kernel, NULL), "'config':" HEX ",'func':" HEX ",'args':'0x0'",
	     at(NOWHERE(4)), at(kernel));
	SHOW_DRIVER(cuMemcpy2D_v2, (NOWHERE(5)), "'pCopy':" HEX, at(NOWHERE(5)));
	SHOW_DRIVER(cuModuleGetFunction, (&function, NOWHERE(6), NOWHERE(7)),
		    "'hfunc':" HEX ",'hmod':" HEX ",'name':null", at(&function), at(NOWHERE(6)));
	return 0;
}
