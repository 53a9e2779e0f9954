/*
 * driver_args: like `args`, for the driver: functions of every class, arguments on the stack, a struct by
 * value, variants of names, text. Nothing depends on success.
 */
#include "args_print.h"
#include "cuda_api.h"

#define FAKE(n) (0x700012340000UL + 0x1000 * (n))
#define HANDLE(n) ((void *)(0x56000000UL + 0x10 * (n)))
#define LAUNCH                                                                                               \
	"'f':" HEX                                                                                           \
	",'gridDimX':%u,'gridDimY':%u,'gridDimZ':%u,'blockDimX':%u,'blockDimY':%u,'blockDimZ':%u,"           \
	"'sharedMemBytes':%u,'hStream':" HEX ",'kernelParams':" HEX ",'extra':" HEX

static char host[4096];

static void memory_calls(void)
{
	static uint64_t out;
	static size_t pitch;
	static void *pinned;
	static const struct CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};

	SHOW_DRIVER(cuMemAlloc_v2, (&out, 3333), "'dptr':" HEX ",'bytesize':3333", at(&out));
	SHOW_DRIVER(cuMemAllocPitch_v2, (&out, &pitch, 1001, 37, 16),
		    "'dptr':" HEX ",'pPitch':" HEX ",'WidthInBytes':1001,'Height':37,'ElementSizeBytes':16",
		    at(&out), at(&pitch));
	SHOW_DRIVER(cuMemAllocManaged, (&out, 2097153, 2), "'dptr':" HEX ",'bytesize':2097153,'flags':2",
		    at(&out));
	SHOW_DRIVER(cuMemAllocAsync_ptsz, (&out, 65537, HANDLE(1)),
		    "'dptr':" HEX ",'bytesize':65537,'hStream':" HEX, at(&out), at(HANDLE(1)));
	SHOW_DRIVER(cuMemHostAlloc, (&pinned, 8193, 6), "'pp':" HEX ",'bytesize':8193,'Flags':6",
		    at(&pinned));
	SHOW_DRIVER(cuMemHostRegister_v2, (host, sizeof(host), 2), "'p':" HEX ",'bytesize':4096,'Flags':2",
		    at(host));
	SHOW_DRIVER(cuMemFree_v2, (FAKE(1)), "'dptr':" HEX, FAKE(1));
	SHOW_DRIVER(cuMemCreate, (&out, 4UL << 20, &prop, 0),
		    "'handle':" HEX ",'size':4194304,'prop':" HEX ",'flags':0", at(&out), at(&prop));
	SHOW_DRIVER(cuMemAddressReserve, (&out, 8UL << 20, 4096, FAKE(2), 0),
		    "'ptr':" HEX ",'size':8388608,'alignment':4096,'addr':" HEX ",'flags':0", at(&out),
		    FAKE(2));
	SHOW_DRIVER(cuMemMap, (FAKE(3), 4UL << 20, 0, 0x99, 0),
		    "'ptr':" HEX ",'size':4194304,'offset':0,'handle':153,'flags':0", FAKE(3));
	SHOW_DRIVER(cuMemPrefetchAsync_v2, (FAKE(4), 12290, (struct cudaMemLocation){1, 3}, 0, HANDLE(2)),
		    "'devPtr':" HEX ",'count':12290,'location':[1,3],'flags':0,'hStream':" HEX, FAKE(4),
		    at(HANDLE(2)));
}

static void copy_calls(void)
{
	static const struct CUDA_MEMCPY2D copy = {
	    .srcMemoryType = 1, .dstMemoryType = 2, .WidthInBytes = 200, .Height = 11};

	SHOW_DRIVER(cuMemcpyHtoD_v2, (FAKE(5), host, 1025),
		    "'dstDevice':" HEX ",'srcHost':" HEX ",'ByteCount':1025", FAKE(5), at(host));
	SHOW_DRIVER(cuMemcpyHtoDAsync_v2_ptsz, (FAKE(6), host, 1026, HANDLE(3)),
		    "'dstDevice':" HEX ",'srcHost':" HEX ",'ByteCount':1026,'hStream':" HEX, FAKE(6),
		    at(host), at(HANDLE(3)));
	SHOW_DRIVER(cuMemcpyDtoH_v2, (host, FAKE(7), 1027),
		    "'dstHost':" HEX ",'srcDevice':" HEX ",'ByteCount':1027", at(host), FAKE(7));
	SHOW_DRIVER(cuMemcpyDtoD_v2_ptds, (FAKE(8), FAKE(9), 1028),
		    "'dstDevice':" HEX ",'srcDevice':" HEX ",'ByteCount':1028", FAKE(8), FAKE(9));
	SHOW_DRIVER(cuMemcpyPeerAsync, (FAKE(10), HANDLE(4), FAKE(11), HANDLE(5), 2049, HANDLE(6)),
		    "'dstDevice':" HEX ",'dstContext':" HEX ",'srcDevice':" HEX ",'srcContext':" HEX
		    ",'ByteCount':2049,'hStream':" HEX,
		    FAKE(10), at(HANDLE(4)), FAKE(11), at(HANDLE(5)), at(HANDLE(6)));
	SHOW_DRIVER(cuMemcpy2D_v2, (&copy), "'pCopy':" HEX, at(&copy));
	SHOW_DRIVER(cuMemsetD32Async, (FAKE(12), 0xdeadbeefU, 750, HANDLE(7)),
		    "'dstDevice':" HEX ",'ui':3735928559,'N':750,'hStream':" HEX, FAKE(12), at(HANDLE(7)));
	SHOW_DRIVER(cuMemsetD2D16_v2, (FAKE(13), 512, 0xabcd, 100, 9),
		    "'dstDevice':" HEX ",'dstPitch':512,'us':43981,'Width':100,'Height':9", FAKE(13));
}

static void launch_calls(void)
{
	static const struct CUlaunchConfig config = {5, 6, 7, 8, 9, 10, 128, HANDLE(8), NULL, 0};
	static void *parameters[2], *function, *module;

	SHOW_DRIVER(cuModuleLoadData, (&module, host), "'module':" HEX ",'image':" HEX, at(&module),
		    at(host));
	SHOW_DRIVER(cuModuleGetFunction, (&function, HANDLE(9), "driver \xc3\xa9 kernel"),
		    "'hfunc':" HEX ",'hmod':" HEX ",'name':'driver \xc3\xa9 kernel'", at(&function),
		    at(HANDLE(9)));
	SHOW_DRIVER(cuLaunchKernel, (function, 101, 102, 103, 11, 12, 13, 555, HANDLE(10), parameters, NULL),
		    LAUNCH, at(function), 101U, 102U, 103U, 11U, 12U, 13U, 555U, at(HANDLE(10)),
		    at(parameters), 0UL);
	SHOW_DRIVER(cuLaunchKernel_ptsz,
		    (function, 1, 2, 3, 4, 5, 6, 7, HANDLE(11), parameters, (void **)HANDLE(12)), LAUNCH,
		    at(function), 1U, 2U, 3U, 4U, 5U, 6U, 7U, at(HANDLE(11)), at(parameters), at(HANDLE(12)));
	SHOW_DRIVER(cuLaunchKernelEx, (&config, function, parameters, NULL),
		    "'config':" HEX ",'f':" HEX ",'kernelParams':" HEX ",'extra':'0x0'", at(&config),
		    at(function), at(parameters));
	SHOW_DRIVER(cuGraphLaunch, (HANDLE(13), HANDLE(14)), "'hGraphExec':" HEX ",'hStream':" HEX,
		    at(HANDLE(13)), at(HANDLE(14)));
}

static void other_calls(void)
{
	static void *stream, *context;
	static int value;

	SHOW_DRIVER(cuInit, (0), "'Flags':0");
	SHOW_DRIVER(cuDeviceGet, (&value, 0), "'device':" HEX ",'ordinal':0", at(&value));
	SHOW_DRIVER(cuDeviceGetAttribute, (&value, 16, 0), "'pi':" HEX ",'attrib':16,'dev':0", at(&value));
	SHOW_DRIVER(cuCtxCreate_v2, (&context, 4, 0), "'pctx':" HEX ",'flags':4,'dev':0", at(&context));
	SHOW_DRIVER(cuStreamCreateWithPriority, (&stream, 1, -2),
		    "'phStream':" HEX ",'flags':1,'priority':-2", at(&stream));
	SHOW_DRIVER(cuStreamWaitEvent, (HANDLE(15), HANDLE(16), 1),
		    "'hStream':" HEX ",'hEvent':" HEX ",'Flags':1", at(HANDLE(15)), at(HANDLE(16)));
	SHOW_DRIVER(cuEventRecord_ptsz, (HANDLE(17), HANDLE(18)), "'hEvent':" HEX ",'hStream':" HEX,
		    at(HANDLE(17)), at(HANDLE(18)));
	SHOW_DRIVER(cuCtxSynchronize, (), "%s", "");
}

int main(void)
{
	other_calls();
	memory_calls();
	copy_calls();
	launch_calls();
	return 0;
}
