/* Every function of CUDA that launches a kernel. */
#include "launches.h"

#include <stddef.h>

#define DIMENSIONS 3, 2, 1, 32, 4, 1, 128

void run_launch_functions(void)
{
	struct CUlaunchConfig config = {DIMENSIONS, NULL, NULL, 0};
	struct cudaLaunchConfig runtime = {{3, 2, 1}, {32, 4, 1}, 128, NULL, NULL, 0};
	struct dim3 grid = {3, 2, 1}, block = {32, 4, 1};
	void *stream = NULL;

	CHECK(cuStreamCreate(&stream, 0));
	LAUNCH_BY(cuLaunchKernel, 1, cuLaunchKernel(f, DIMENSIONS, stream, NULL, NULL));
	LAUNCH_BY(cuLaunchKernel_ptsz, 1, cuLaunchKernel_ptsz(f, DIMENSIONS, NULL, NULL, NULL));
	LAUNCH_BY(cuLaunchKernelEx, 1, cuLaunchKernelEx(&config, f, NULL, NULL));
	LAUNCH_BY(cuLaunchKernelEx_ptsz, 1, cuLaunchKernelEx_ptsz(&config, f, NULL, NULL));
	LAUNCH_BY(cuLaunchCooperativeKernel, 1, cuLaunchCooperativeKernel(f, DIMENSIONS, stream, NULL));
	LAUNCH_BY(cuLaunchCooperativeKernel_ptsz, 1,
		  cuLaunchCooperativeKernel_ptsz(f, DIMENSIONS, NULL, NULL));
	LAUNCH_BY(cuLaunchCooperativeKernelMultiDevice, 2, ({
			  struct CUDA_LAUNCH_PARAMS list[2] = {{f, DIMENSIONS, stream, NULL},
							       {f, DIMENSIONS, NULL, NULL}};
			  cuLaunchCooperativeKernelMultiDevice(list, 2, 0);
		  }));
	LAUNCH_BY(cuLaunch, 1, cuLaunch(f));
	LAUNCH_BY(cuLaunchGrid, 1, cuLaunchGrid(f, 7, 5));
	LAUNCH_BY(cuLaunchGridAsync, 1, cuLaunchGridAsync(f, 7, 5, stream));
	LAUNCH_BY(cudaLaunchKernel, 1, cudaLaunchKernel(f, grid, block, NULL, 128, stream));
	LAUNCH_BY(cudaLaunchKernel_ptsz, 1, cudaLaunchKernel_ptsz(f, grid, block, NULL, 128, NULL));
	LAUNCH_BY(cudaLaunchCooperativeKernel, 1,
		  cudaLaunchCooperativeKernel(f, grid, block, NULL, 0, stream));
	LAUNCH_BY(cudaLaunchKernelExC, 1, cudaLaunchKernelExC(&runtime, f, NULL));
	/* a launch that fails does not count */
	if (!cuLaunchKernel(NULL, DIMENSIONS, stream, NULL, NULL))
		failures++;
}
