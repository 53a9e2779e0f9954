/*
 * Calls of every class of HIP with distinctive arguments, on AMD's own library and without a GPU: prints one
 * JSON line per call, {"api","function","ret","args":{name: value}}. Prototypes are declared here, so that no
 * headers are needed.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API "hip"
#include "show_call.h"

struct dim3 {
	unsigned int x, y, z;
};

struct extent {
	size_t width, height, depth;
};

struct pitched {
	void *pointer;
	size_t pitch, x, y;
};

int hipInit(unsigned int);
int hipRuntimeGetVersion(int *);
int hipDriverGetVersion(int *);
int hipGetDeviceCount(int *);
int hipSetDevice(int);
int hipGetDevice(int *);
int hipDeviceReset(void);
int hipDeviceSynchronize(void);
int hipMalloc(void **, size_t);
int hipExtMallocWithFlags(void **, size_t, unsigned int);
int hipMallocManaged(void **, size_t, unsigned int);
int hipHostMalloc(void **, size_t, unsigned int);
int hipMallocPitch(void **, size_t *, size_t, size_t);
int hipMalloc3D(struct pitched *, struct extent);
int hipMallocAsync(void **, size_t, void *);
int hipFree(void *);
int hipHostFree(void *);
int hipFreeAsync(void *, void *);
int hipHostRegister(void *, size_t, unsigned int);
int hipHostUnregister(void *);
int hipMemcpy(void *, const void *, size_t, int);
int hipMemcpyAsync(void *, const void *, size_t, int, void *);
int hipMemcpyHtoD(void *, void *, size_t);
int hipMemcpyDtoH(void *, void *, size_t);
int hipMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int hipMemcpyPeer(void *, int, const void *, int, size_t);
int hipMemset(void *, int, size_t);
int hipMemsetD32Async(void *, int, size_t, void *);
int hipMemGetInfo(size_t *, size_t *);
int hipStreamCreateWithFlags(void **, unsigned int);
int hipStreamSynchronize(void *);
int hipStreamDestroy(void *);
int hipEventCreate(void **);
int hipEventRecord(void *, void *);
int hipEventSynchronize(void *);
int hipModuleLoad(void **, const char *);
int hipLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
int hipModuleLaunchKernel(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
			  unsigned int, unsigned int, void *, void **, void **);
int hipGraphCreate(void **, unsigned int);
int hipDevicePrimaryCtxRetain(void **, int);
int hipGetLastError(void);

static void devices(void)
{
	static int number;

	SHOW(hipInit, (0), "'flags':0");
	SHOW(hipRuntimeGetVersion, (&number), "'runtimeVersion':'%p'", (void *)&number);
	SHOW(hipDriverGetVersion, (&number), "'driverVersion':'%p'", (void *)&number);
	SHOW(hipGetDeviceCount, (&number), "'count':'%p'", (void *)&number);
	SHOW(hipSetDevice, (3), "'deviceId':3");
	SHOW(hipGetDevice, (&number), "'deviceId':'%p'", (void *)&number);
}

static void memory(void)
{
	static struct pitched box;
	static void *out = (void *)0x1234;
	static size_t pitch, total;
	static char host[4096];

	SHOW(hipMalloc, (&out, 1048577), "'ptr':'%p','size':1048577", (void *)&out);
	SHOW(hipExtMallocWithFlags, (&out, 4099, 1), "'ptr':'%p','sizeBytes':4099,'flags':1", (void *)&out);
	SHOW(hipMallocManaged, (&out, 2097153, 1), "'dev_ptr':'%p','size':2097153,'flags':1", (void *)&out);
	SHOW(hipHostMalloc, (&out, 8193, 2), "'ptr':'%p','size':8193,'flags':2", (void *)&out);
	SHOW(hipMallocPitch, (&out, &pitch, 1001, 37), "'ptr':'%p','pitch':'%p','width':1001,'height':37",
	     (void *)&out, (void *)&pitch);
	SHOW(hipMalloc3D, (&box, (struct extent){1003, 19, 7}), "'pitchedDevPtr':'%p','extent':[1003,19,7]",
	     (void *)&box);
	SHOW(hipMallocAsync, (&out, 65537, NULL), "'dev_ptr':'%p','size':65537,'stream':'0x0'", (void *)&out);
	SHOW(hipFree, (FAKE(1)), "'ptr':'%p'", FAKE(1));
	SHOW(hipHostFree, (FAKE(2)), "'ptr':'%p'", FAKE(2));
	SHOW(hipFreeAsync, (FAKE(3), NULL), "'dev_ptr':'%p','stream':'0x0'", FAKE(3));
	SHOW(hipHostRegister, (host, sizeof(host), 2), "'hostPtr':'%p','sizeBytes':4096,'flags':2",
	     (void *)host);
	SHOW(hipHostUnregister, (host), "'hostPtr':'%p'", (void *)host);
	SHOW(hipMemGetInfo, (&pitch, &total), "'free':'%p','total':'%p'", (void *)&pitch, (void *)&total);
}

static void copies(void)
{
	static char host[64];

	for (int kind = 0; kind < 5; kind++)
		SHOW(hipMemcpy, (host, FAKE(4), 63 - kind, kind),
		     "'dst':'%p','src':'%p','sizeBytes':%d,'kind':%d", (void *)host, FAKE(4), 63 - kind,
		     kind);
	SHOW(hipMemcpyAsync, (FAKE(5), host, 33, 1, NULL),
	     "'dst':'%p','src':'%p','sizeBytes':33,'kind':1,'stream':'0x0'", FAKE(5), (void *)host);
	SHOW(hipMemcpyHtoD, (FAKE(6), host, 34), "'dst':'%p','src':'%p','sizeBytes':34", FAKE(6),
	     (void *)host);
	SHOW(hipMemcpyDtoH, (host, FAKE(7), 35), "'dst':'%p','src':'%p','sizeBytes':35", (void *)host,
	     FAKE(7));
	SHOW(hipMemcpy2D, (FAKE(8), 128, host, 16, 15, 3, 1),
	     "'dst':'%p','dpitch':128,'src':'%p','spitch':16,'width':15,'height':3,'kind':1", FAKE(8),
	     (void *)host);
	SHOW(hipMemcpyPeer, (FAKE(9), 1, FAKE(10), 2, 36),
	     "'dst':'%p','dstDeviceId':1,'src':'%p','srcDeviceId':2,'sizeBytes':36", FAKE(9), FAKE(10));
	SHOW(hipMemset, (FAKE(11), 7, 37), "'dst':'%p','value':7,'sizeBytes':37", FAKE(11));
	SHOW(hipMemsetD32Async, (FAKE(12), 8, 38, NULL), "'dst':'%p','value':8,'count':38,'stream':'0x0'",
	     FAKE(12));
}

static void work(void)
{
	static void *out;
	const char *file = "/no/such/module.co";

	SHOW(hipStreamCreateWithFlags, (&out, 1), "'stream':'%p','flags':1", (void *)&out);
	SHOW(hipStreamSynchronize, (NULL), "'stream':'0x0'");
	SHOW(hipEventCreate, (&out), "'event':'%p'", (void *)&out);
	SHOW(hipEventRecord, (NULL, NULL), "'event':'0x0','stream':'0x0'");
	SHOW(hipEventSynchronize, (NULL), "'event':'0x0'");
	SHOW(hipModuleLoad, (&out, file), "'module':'%p','fname':'%s'", (void *)&out, file);
	SHOW(hipLaunchKernel, (FAKE(13), (struct dim3){3, 5, 7}, (struct dim3){11, 13, 17}, NULL, 19, NULL),
	     "'function_address':'%p','numBlocks':[3,5,7],'dimBlocks':[11,13,17],'args':'0x0','"
	     "sharedMemBytes':19,"
	     "'stream':'0x0'",
	     FAKE(13));
	SHOW(hipModuleLaunchKernel, (NULL, 2, 3, 4, 5, 6, 7, 8, NULL, NULL, NULL),
	     "'f':'0x0','gridDimX':2,'gridDimY':3,'gridDimZ':4,'blockDimX':5,'blockDimY':6,'blockDimZ':7,"
	     "'sharedMemBytes':8,'stream':'0x0','kernelParams':'0x0','extra':'0x0'");
	SHOW(hipGraphCreate, (&out, 0), "'pGraph':'%p','flags':0", (void *)&out);
	SHOW(hipDevicePrimaryCtxRetain, (&out, 1), "'pctx':'%p','dev':1", (void *)&out);
	SHOW(hipDeviceSynchronize, (), " ");
	SHOW(hipDeviceReset, (), " ");
	SHOW(hipGetLastError, (), " ");
}

int main(void)
{
	devices();
	memory();
	copies();
	work();
	return 0;
}
