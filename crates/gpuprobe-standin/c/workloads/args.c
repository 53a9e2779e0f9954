/*
 * args [--no-driver]: calls functions of every class with distinctive argument values and prints one JSON
 * line per call, {"api","function","ret","args":{name: value}}, with the values at entry. Addresses and
 * handles are hexadecimal text, dim3 and cudaExtent are [x,y,z]. Nothing depends on success, so it runs with
 * the real runtime too; --no-driver skips the last two calls, which load the driver themselves.
 */
#include <dlfcn.h>
#include <string.h>

#include "args_print.h"
#include "cuda_api.h"

#define FAKE(n) ((void *)(0x700012340000ULL + 0x1000 * (n)))
#define STREAM ((void *)0x1)
#define DIM "[%u,%u,%u]"

static char host[4096];

void args_kernel(void)
{
	__asm__ volatile("");
}

static void memory_calls(void)
{
	static struct cudaPitchedPtr box;
	static void *out = (void *)0x1234, *array;
	static size_t pitch, free_bytes, total_bytes;
	static const struct cudaChannelFormatDesc desc = {32, 0, 0, 0, 2};

	SHOW(cudaMalloc, (&out, 1048577), "'devPtr':" HEX ",'size':1048577", at(&out));
	SHOW(cudaFree, (FAKE(1)), "'devPtr':" HEX, at(FAKE(1)));
	SHOW(cudaMallocPitch, (&out, &pitch, 1001, 37),
	     "'devPtr':" HEX ",'pitch':" HEX ",'width':1001,'height':37", at(&out), at(&pitch));
	SHOW(cudaMalloc3D, (&box, (struct cudaExtent){1003, 19, 7}),
	     "'pitchedDevPtr':" HEX ",'extent':[1003,19,7]", at(&box));
	SHOW(cudaMallocManaged, (&out, 2097153, 1), "'devPtr':" HEX ",'size':2097153,'flags':1", at(&out));
	SHOW(cudaMallocHost, (&out, 4097), "'ptr':" HEX ",'size':4097", at(&out));
	SHOW(cudaHostAlloc, (&out, 8193, 6), "'pHost':" HEX ",'size':8193,'flags':6", at(&out));
	SHOW(cudaFreeHost, (FAKE(2)), "'ptr':" HEX, at(FAKE(2)));
	SHOW(cudaMallocAsync, (&out, 65537, STREAM), "'devPtr':" HEX ",'size':65537,'hStream':" HEX, at(&out),
	     at(STREAM));
	SHOW(cudaFreeAsync, (FAKE(3), STREAM), "'devPtr':" HEX ",'hStream':" HEX, at(FAKE(3)), at(STREAM));
	SHOW(cudaMallocArray, (&array, &desc, 641, 481, 1),
	     "'array':" HEX ",'desc':" HEX ",'width':641,'height':481,'flags':1", at(&array), at(&desc));
	SHOW(cudaMemGetInfo, (&free_bytes, &total_bytes), "'free':" HEX ",'total':" HEX, at(&free_bytes),
	     at(&total_bytes));
	SHOW(cudaHostRegister, (host, sizeof(host), 2), "'ptr':" HEX ",'size':4096,'flags':2", at(host));
	SHOW(cudaHostUnregister, (host), "'ptr':" HEX, at(host));
#if CUDA_MAJOR >= 13
	SHOW(cudaMemPrefetchAsync, (FAKE(4), 12289, (struct cudaMemLocation){1, 0}, 0, STREAM),
	     "'devPtr':" HEX ",'count':12289,'location':[1,0],'flags':0,'stream':" HEX, at(FAKE(4)),
	     at(STREAM));
#else
	SHOW(cudaMemPrefetchAsync, (FAKE(4), 12289, 0, STREAM),
	     "'devPtr':" HEX ",'count':12289,'dstDevice':0,'stream':" HEX, at(FAKE(4)), at(STREAM));
	SHOW(cudaMemPrefetchAsync_v2, (FAKE(5), 12290, (struct cudaMemLocation){1, 0}, 0, STREAM),
	     "'devPtr':" HEX ",'count':12290,'location':[1,0],'flags':0,'stream':" HEX, at(FAKE(5)),
	     at(STREAM));
#endif
}

static void copy_calls(void)
{
	static struct cudaMemcpy3DParms parms = {.extent = {33, 5, 3}, .kind = COPY_D2D};

	SHOW(cudaMemcpy, (FAKE(6), host, 1025, COPY_H2D), "'dst':" HEX ",'src':" HEX ",'count':1025,'kind':1",
	     at(FAKE(6)), at(host));
	SHOW(cudaMemcpy_ptds, (host, FAKE(7), 1026, COPY_D2H),
	     "'dst':" HEX ",'src':" HEX ",'count':1026,'kind':2", at(host), at(FAKE(7)));
	SHOW(cudaMemcpyAsync, (FAKE(8), FAKE(9), 1027, COPY_D2D, STREAM),
	     "'dst':" HEX ",'src':" HEX ",'count':1027,'kind':3,'stream':" HEX, at(FAKE(8)), at(FAKE(9)),
	     at(STREAM));
	SHOW(cudaMemcpyAsync_ptsz, (FAKE(8), host, 1028, COPY_DEFAULT, STREAM),
	     "'dst':" HEX ",'src':" HEX ",'count':1028,'kind':4,'stream':" HEX, at(FAKE(8)), at(host),
	     at(STREAM));
	SHOW(cudaMemcpy2D, (FAKE(10), 512, host, 256, 200, 11, COPY_H2D),
	     "'dst':" HEX ",'dpitch':512,'src':" HEX ",'spitch':256,'width':200,'height':11,'kind':1",
	     at(FAKE(10)), at(host));
	SHOW(cudaMemcpy2DAsync, (host, 256, FAKE(11), 1024, 201, 12, COPY_D2H, STREAM),
	     "'dst':" HEX ",'dpitch':256,'src':" HEX
	     ",'spitch':1024,'width':201,'height':12,'kind':2,'stream':" HEX,
	     at(host), at(FAKE(11)), at(STREAM));
	SHOW(cudaMemcpy3D, (&parms), "'p':" HEX, at(&parms));
	SHOW(cudaMemcpyPeer, (FAKE(12), 0, FAKE(13), 1, 2049),
	     "'dst':" HEX ",'dstDevice':0,'src':" HEX ",'srcDevice':1,'count':2049", at(FAKE(12)),
	     at(FAKE(13)));
	SHOW(cudaMemset, (FAKE(14), 90, 3001), "'devPtr':" HEX ",'value':90,'count':3001", at(FAKE(14)));
	SHOW(cudaMemsetAsync, (FAKE(15), 91, 3002, STREAM),
	     "'devPtr':" HEX ",'value':91,'count':3002,'stream':" HEX, at(FAKE(15)), at(STREAM));
	SHOW(cudaMemset2D, (FAKE(16), 1536, 92, 1400, 9),
	     "'devPtr':" HEX ",'pitch':1536,'value':92,'width':1400,'height':9", at(FAKE(16)));
	SHOW(cudaMemset3D,
	     ((struct cudaPitchedPtr){FAKE(17), 512, 500, 8}, 93, (struct cudaExtent){400, 6, 2}),
	     "'pitchedDevPtr':[" HEX ",512,500,8],'value':93,'extent':[400,6,2]", at(FAKE(17)));
}

static void launch_calls(void)
{
	static const struct cudaLaunchConfig config = {{5, 6, 7}, {8, 9, 10}, 128, STREAM, NULL, 0};
	static void *parameters[2];
	const void *kernel = (const void *)args_kernel;
	static void *graph, *exec;

	SHOW(cudaLaunchKernel,
	     (kernel, (struct dim3){2, 3, 4}, (struct dim3){32, 2, 1}, parameters, 4096, STREAM),
	     "'func':" HEX ",'gridDim':" DIM ",'blockDim':" DIM ",'args':" HEX
	     ",'sharedMem':4096,'stream':" HEX,
	     at(kernel), 2u, 3u, 4u, 32u, 2u, 1u, at(parameters), at(STREAM));
	SHOW(cudaLaunchKernel_ptsz,
	     (kernel, (struct dim3){9, 8, 7}, (struct dim3){16, 4, 2}, parameters, 33, STREAM),
	     "'func':" HEX ",'gridDim':" DIM ",'blockDim':" DIM ",'args':" HEX
	     ",'sharedMem':33,'stream':" HEX,
	     at(kernel), 9u, 8u, 7u, 16u, 4u, 2u, at(parameters), at(STREAM));
	SHOW(cudaLaunchCooperativeKernel,
	     (kernel, (struct dim3){1, 2, 3}, (struct dim3){64, 1, 1}, parameters, 77, STREAM),
	     "'func':" HEX ",'gridDim':" DIM ",'blockDim':" DIM ",'args':" HEX
	     ",'sharedMem':77,'stream':" HEX,
	     at(kernel), 1u, 2u, 3u, 64u, 1u, 1u, at(parameters), at(STREAM));
	SHOW(cudaLaunchKernelExC, (&config, kernel, parameters),
	     "'config':" HEX ",'func':" HEX ",'args':" HEX, at(&config), at(kernel), at(parameters));
	SHOW(cudaGraphCreate, (&graph, 0), "'pGraph':" HEX ",'flags':0", at(&graph));
	SHOW(cudaGraphInstantiateWithFlags, (&exec, FAKE(18), 1),
	     "'pGraphExec':" HEX ",'graph':" HEX ",'flags':1", at(&exec), at(FAKE(18)));
}

static void stream_calls(void)
{
	static void *stream, *event;

	SHOW(cudaStreamCreate, (&stream), "'pStream':" HEX, at(&stream));
	SHOW(cudaStreamCreateWithFlags, (&stream, 1), "'pStream':" HEX ",'flags':1", at(&stream));
	SHOW(cudaStreamCreateWithPriority, (&stream, 1, -2), "'pStream':" HEX ",'flags':1,'priority':-2",
	     at(&stream));
	SHOW(cudaStreamSynchronize, (STREAM), "'stream':" HEX, at(STREAM));
	SHOW(cudaEventCreate, (&event), "'event':" HEX, at(&event));
	SHOW(cudaEventCreateWithFlags, (&event, 2), "'event':" HEX ",'flags':2", at(&event));
	SHOW(cudaEventRecord, (event, STREAM), "'event':" HEX ",'stream':" HEX, at(event), at(STREAM));
	SHOW(cudaEventSynchronize, (event), "'event':" HEX, at(event));
	SHOW(cudaEventQuery, (event), "'event':" HEX, at(event));
	SHOW(cudaStreamWaitEvent, (STREAM, event, 0), "'stream':" HEX ",'event':" HEX ",'flags':0",
	     at(STREAM), at(event));
}

static void device_calls(void)
{
	static int value;

	SHOW(cudaGetDeviceCount, (&value), "'count':" HEX, at(&value));
	SHOW(cudaGetDevice, (&value), "'device':" HEX, at(&value));
	SHOW(cudaSetDevice, (0), "'device':0");
	SHOW(cudaDeviceGetAttribute, (&value, 16, 0), "'value':" HEX ",'attr':16,'device':0", at(&value));
	SHOW(cudaDeviceSynchronize, (), "%s", "");
	SHOW(cudaRuntimeGetVersion, (&value), "'runtimeVersion':" HEX, at(&value));
	SHOW(cudaDriverGetVersion, (&value), "'driverVersion':" HEX, at(&value));
	SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (&value, (const void *)args_kernel, 256, 1024),
	     "'numBlocks':" HEX ",'func':" HEX ",'blockSize':256,'dynamicSMemSize':1024", at(&value),
	     at((const void *)args_kernel));
	SHOW(cudaPeekAtLastError, (), "%s", "");
	SHOW(cudaGetLastError, (), "%s", "");
}

/* The driver, if there is one. */
static void driver_calls(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		      unsigned int, unsigned int, void *, void **, void **);
	int (*allocate)(uint64_t *, size_t);
	static uint64_t out;
	static void *parameters[1];

	if (!driver)
		return;
	*(void **)&launch = dlsym(driver, "cuLaunchKernel");
	*(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
	line("driver", "cuMemAlloc_v2", allocate(&out, 3333), "'dptr':" HEX ",'bytesize':3333", at(&out));
	line("driver", "cuLaunchKernel",
	     launch(NULL, 101, 102, 103, 11, 12, 13, 555, STREAM, parameters, NULL),
	     "'f':'0x0','gridDimX':101,'gridDimY':102,'gridDimZ':103,'blockDimX':11,'blockDimY':12,'"
	     "blockDimZ':13,"
	     "'sharedMemBytes':555,'hStream':" HEX ",'kernelParams':" HEX ",'extra':'0x0'",
	     at(STREAM), at(parameters));
}

int main(int count, char **words)
{
	int with_driver = count < 2 || strcmp(words[1], "--no-driver");

	memory_calls();
	copy_calls();
	launch_calls();
	stream_calls();
	device_calls();
	if (with_driver)
		driver_calls();
	return 0;
}
