/* Every function of HIP that launches a kernel. */
#include "launches.h"

#define DIMENSIONS 3, 2, 1, 32, 4, 1, 128

/* hipFunctionLaunchParams is CUDA_LAUNCH_PARAMS; in hipLaunchParams shared memory and stream are last. */
struct hipLaunchParams {
	void *function;
	struct dim3 grid, block;
	void **args;
	size_t shared;
	void *stream;
};
_Static_assert(sizeof(struct hipLaunchParams) == 56, "hipLaunchParams");

int hipModuleLaunchCooperativeKernelMultiDevice(struct CUDA_LAUNCH_PARAMS *list, unsigned int count,
						unsigned int flags);
int hipLaunchCooperativeKernelMultiDevice(struct hipLaunchParams *list, int count, unsigned int flags);
int hipExtLaunchMultiKernelMultiDevice(struct hipLaunchParams *list, int count, unsigned int flags);
int hipLaunchCooperativeKernel_spt(const void *function, struct dim3 grid, struct dim3 block, void **args,
				   unsigned int shared, void *stream);
int hipExtLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **args, size_t shared,
		       void *stream, void *start, void *stop, int flags);
int hipExtModuleLaunchKernel(void *f, uint32_t threads_x, uint32_t threads_y, uint32_t threads_z,
			     uint32_t block_x, uint32_t block_y, uint32_t block_z, size_t shared,
			     void *stream, void **args, void **extra, void *start, void *stop,
			     uint32_t flags);

void run_launch_functions(void)
{
	struct CUlaunchConfig config = {DIMENSIONS, NULL, NULL, 0};
	struct cudaLaunchConfig runtime = {{3, 2, 1}, {32, 4, 1}, 128, NULL, NULL, 0};
	struct dim3 grid = {3, 2, 1}, block = {32, 4, 1};
	void *stream = NULL;

	CHECK(hipStreamCreateWithFlags(&stream, 0));
	LAUNCH_BY(hipLaunchKernel, 1, hipLaunchKernel(f, grid, block, NULL, 128, stream));
	LAUNCH_BY(hipLaunchKernel_spt, 1, hipLaunchKernel_spt(f, grid, block, NULL, 128, NULL));
	LAUNCH_BY(hipLaunchCooperativeKernel, 1,
		  hipLaunchCooperativeKernel(f, grid, block, NULL, 128, stream));
	LAUNCH_BY(hipLaunchCooperativeKernel_spt, 1,
		  hipLaunchCooperativeKernel_spt(f, grid, block, NULL, 128, NULL));
	LAUNCH_BY(hipLaunchKernelExC, 1, hipLaunchKernelExC(&runtime, f, NULL));
	LAUNCH_BY(hipExtLaunchKernel, 1,
		  hipExtLaunchKernel(f, grid, block, NULL, 128, stream, NULL, NULL, 0));
	LAUNCH_BY(hipModuleLaunchKernel, 1, hipModuleLaunchKernel(f, DIMENSIONS, stream, NULL, NULL));
	LAUNCH_BY(hipModuleLaunchCooperativeKernel, 1,
		  hipModuleLaunchCooperativeKernel(f, DIMENSIONS, stream, NULL));
	LAUNCH_BY(hipDrvLaunchKernelEx, 1, hipDrvLaunchKernelEx(&config, f, NULL, NULL));
	/* the grid in threads: 3 x 2 x 1 blocks, of which the last ones are not full */
	LAUNCH_BY(hipExtModuleLaunchKernel, 1,
		  hipExtModuleLaunchKernel(f, 3 * 32 - 5, 2 * 4 - 1, 1, 32, 4, 1, 128, stream, NULL, NULL,
					   NULL, NULL, 0));
	LAUNCH_BY(hipLaunchByPtr, 1, hipLaunchByPtr(f));
	LAUNCH_BY(hipModuleLaunchCooperativeKernelMultiDevice, 2, ({
			  struct CUDA_LAUNCH_PARAMS list[2] = {{f, DIMENSIONS, stream, NULL},
							       {f, DIMENSIONS, NULL, NULL}};
			  hipModuleLaunchCooperativeKernelMultiDevice(list, 2, 0);
		  }));
	LAUNCH_BY(hipLaunchCooperativeKernelMultiDevice, 2, ({
			  struct hipLaunchParams list[2] = {{f, grid, block, NULL, 128, stream},
							    {f, grid, block, NULL, 128, NULL}};
			  hipLaunchCooperativeKernelMultiDevice(list, 2, 0);
		  }));
	LAUNCH_BY(hipExtLaunchMultiKernelMultiDevice, 2, ({
			  struct hipLaunchParams list[2] = {{f, grid, block, NULL, 128, stream},
							    {f, grid, block, NULL, 128, NULL}};
			  hipExtLaunchMultiKernelMultiDevice(list, 2, 0);
		  }));
	/* a launch that fails does not count */
	if (!hipModuleLaunchKernel(NULL, DIMENSIONS, stream, NULL, NULL))
		failures++;
}
