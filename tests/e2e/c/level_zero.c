/*
 * Calls of Level Zero with distinctive arguments, on the real loader: prints one JSON line per call,
 * {"api","function","ret","args":{name: value}}. Prototypes are declared here, so that no headers are needed.
 */
#include <stddef.h>
#include <stdint.h>

#define API "levelzero"
#include "show_call.h"

struct group_count {
	uint32_t x, y, z;
};

struct kernel_desc {
	uint32_t type;
	const void *next;
	uint32_t flags;
	const char *name;
};

int zeInit(uint32_t);
int zeDriverGet(uint32_t *, void **);
int zeDeviceGet(void *, uint32_t *, void **);
int zeContextCreate(void *, const void *, void **);
int zeCommandListCreateImmediate(void *, void *, const void *, void **);
int zeMemAllocDevice(void *, const void *, size_t, size_t, void *, void **);
int zeMemAllocHost(void *, const void *, size_t, size_t, void **);
int zeMemAllocShared(void *, const void *, const void *, size_t, size_t, void *, void **);
int zeMemFree(void *, void *);
int zeModuleCreate(void *, void *, const void *, void **, void **);
int zeKernelCreate(void *, const void *, void **);
int zeKernelSetGroupSize(void *, uint32_t, uint32_t, uint32_t);
int zeCommandListAppendLaunchKernel(void *, void *, const void *, void *, uint32_t, void **);
int zeCommandListAppendMemoryCopy(void *, void *, const void *, size_t, void *, uint32_t, void **);
int zeCommandListAppendMemoryFill(void *, void *, const void *, size_t, size_t, void *, uint32_t, void **);
int zeCommandListClose(void *);
int zeCommandQueueExecuteCommandLists(void *, uint32_t, void **, void *);
int zeCommandQueueSynchronize(void *, uint64_t);
int zeEventHostSynchronize(void *, uint64_t);
int zeContextDestroy(void *);

static void devices(void)
{
	static uint32_t count;
	static void *made;

	SHOW(zeInit, (1), "'flags':1");
	SHOW(zeDriverGet, (&count, NULL), "'pCount':'%p','phDrivers':'0x0'", (void *)&count);
	SHOW(zeDeviceGet, (FAKE(1), &count, NULL), "'hDriver':'%p','pCount':'%p','phDevices':'0x0'", FAKE(1),
	     (void *)&count);
	SHOW(zeContextCreate, (FAKE(1), FAKE(2), &made), "'hDriver':'%p','desc':'%p','phContext':'%p'",
	     FAKE(1), FAKE(2), (void *)&made);
	SHOW(zeCommandListCreateImmediate, (FAKE(3), FAKE(4), FAKE(5), &made),
	     "'hContext':'%p','hDevice':'%p','altdesc':'%p','phCommandList':'%p'", FAKE(3), FAKE(4), FAKE(5),
	     (void *)&made);
}

static void memory(void)
{
	static void *out;

	SHOW(zeMemAllocDevice, (FAKE(3), FAKE(6), 1048577, 64, FAKE(4), &out),
	     "'hContext':'%p','device_desc':'%p','size':1048577,'alignment':64,'hDevice':'%p','pptr':'%p'",
	     FAKE(3), FAKE(6), FAKE(4), (void *)&out);
	SHOW(zeMemAllocHost, (FAKE(3), FAKE(6), 8193, 1, &out),
	     "'hContext':'%p','host_desc':'%p','size':8193,'alignment':1,'pptr':'%p'", FAKE(3), FAKE(6),
	     (void *)&out);
	SHOW(zeMemAllocShared, (FAKE(3), FAKE(6), FAKE(7), 4099, 8, NULL, &out),
	     "'hContext':'%p','device_desc':'%p','host_desc':'%p','size':4099,'alignment':8,"
	     "'hDevice':'0x0','pptr':'%p'",
	     FAKE(3), FAKE(6), FAKE(7), (void *)&out);
	SHOW(zeMemFree, (FAKE(3), FAKE(8)), "'hContext':'%p','ptr':'%p'", FAKE(3), FAKE(8));
}

static void work(void)
{
	static const struct kernel_desc desc = {29, NULL, 0, "vector_add"};
	static const struct group_count groups = {7, 5, 3};
	static char host[64];
	static void *out, *list = FAKE(9);

	SHOW(zeModuleCreate, (FAKE(3), FAKE(4), FAKE(10), &out, NULL),
	     "'hContext':'%p','hDevice':'%p','desc':'%p','phModule':'%p','phBuildLog':'0x0'", FAKE(3),
	     FAKE(4), FAKE(10), (void *)&out);
	SHOW(zeKernelCreate, (FAKE(11), &desc, &out), "'hModule':'%p','desc':'%p','phKernel':'%p'", FAKE(11),
	     (const void *)&desc, (void *)&out);
	SHOW(zeKernelSetGroupSize, (FAKE(12), 32, 4, 2),
	     "'hKernel':'%p','groupSizeX':32,'groupSizeY':4,'groupSizeZ':2", FAKE(12));
	SHOW(zeCommandListAppendLaunchKernel, (FAKE(9), FAKE(12), &groups, NULL, 0, NULL),
	     "'hCommandList':'%p','hKernel':'%p','pLaunchFuncArgs':'%p','hSignalEvent':'0x0',"
	     "'numWaitEvents':0,'phWaitEvents':'0x0'",
	     FAKE(9), FAKE(12), (const void *)&groups);
	SHOW(zeCommandListAppendMemoryCopy, (FAKE(9), FAKE(13), host, 33, NULL, 0, NULL),
	     "'hCommandList':'%p','dstptr':'%p','srcptr':'%p','size':33,'hSignalEvent':'0x0',"
	     "'numWaitEvents':0,'phWaitEvents':'0x0'",
	     FAKE(9), FAKE(13), (void *)host);
	SHOW(zeCommandListAppendMemoryFill, (FAKE(9), FAKE(13), host, 4, 36, NULL, 0, NULL),
	     "'hCommandList':'%p','ptr':'%p','pattern':'%p','pattern_size':4,'size':36,'hSignalEvent':'0x0',"
	     "'numWaitEvents':0,'phWaitEvents':'0x0'",
	     FAKE(9), FAKE(13), (void *)host);
	SHOW(zeCommandListClose, (FAKE(9)), "'hCommandList':'%p'", FAKE(9));
	SHOW(zeCommandQueueExecuteCommandLists, (FAKE(14), 1, &list, NULL),
	     "'hCommandQueue':'%p','numCommandLists':1,'phCommandLists':'%p','hFence':'0x0'", FAKE(14),
	     (void *)&list);
	SHOW(zeCommandQueueSynchronize, (FAKE(14), 1000), "'hCommandQueue':'%p','timeout':1000", FAKE(14));
	SHOW(zeEventHostSynchronize, (FAKE(15), 2000), "'hEvent':'%p','timeout':2000", FAKE(15));
	SHOW(zeContextDestroy, (FAKE(3)), "'hContext':'%p'", FAKE(3));
}

int main(void)
{
	devices();
	memory();
	work();
	return 0;
}
