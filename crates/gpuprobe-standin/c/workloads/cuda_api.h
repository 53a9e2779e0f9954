/* The public prototypes that the workloads call, with our own types. Handles are plain pointers. */
#ifndef STANDIN_CUDA_API_H
#define STANDIN_CUDA_API_H

#include "../cuda_types.h"

/* The workloads of HIP are the same programs, with its names. */
#ifdef STANDIN_HIP
#include "hip_names.h"
#endif

int cudaMalloc(void **devPtr, size_t size);
int cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height);
int cudaMalloc3D(struct cudaPitchedPtr *pitchedDevPtr, struct cudaExtent extent);
int cudaMallocManaged(void **devPtr, size_t size, unsigned int flags);
int cudaMallocHost(void **ptr, size_t size);
int cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
int cudaMallocAsync(void **devPtr, size_t size, void *hStream);
int cudaMallocFromPoolAsync(void **ptr, size_t size, void *memPool, void *stream);
int cudaMallocArray(void **array, const struct cudaChannelFormatDesc *desc, size_t width, size_t height,
		    unsigned int flags);
int cudaMalloc3DArray(void **array, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
		      unsigned int flags);
int cudaMallocMipmappedArray(void **mipmappedArray, const struct cudaChannelFormatDesc *desc,
			     struct cudaExtent extent, unsigned int numLevels, unsigned int flags);
int cudaFree(void *devPtr);
int cudaFreeHost(void *ptr);
int cudaFreeAsync(void *devPtr, void *hStream);
int cudaFreeArray(void *array);
int cudaFreeMipmappedArray(void *mipmappedArray);
int cudaIpcGetMemHandle(struct cudaIpcMemHandle *handle, void *devPtr);
int cudaIpcOpenMemHandle(void **devPtr, struct cudaIpcMemHandle handle, unsigned int flags);
int cudaIpcCloseMemHandle(void *devPtr);
int cudaHostRegister(void *ptr, size_t size, unsigned int flags);
int cudaHostUnregister(void *ptr);
int cudaMemGetInfo(size_t *free, size_t *total);
int cudaDeviceGetDefaultMemPool(void **memPool, int device);
#if CUDA_MAJOR >= 13
int cudaMemPrefetchAsync(const void *devPtr, size_t count, struct cudaMemLocation location,
			 unsigned int flags, void *stream);
#else
int cudaMemPrefetchAsync(const void *devPtr, size_t count, int dstDevice, void *stream);
int cudaMemPrefetchAsync_v2(const void *devPtr, size_t count, struct cudaMemLocation location,
			    unsigned int flags, void *stream);
#endif

int cudaMemcpy(void *dst, const void *src, size_t count, int kind);
int cudaMemcpyAsync(void *dst, const void *src, size_t count, int kind, void *stream);
int cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t count, int kind, void *stream);
int cudaMemcpy_ptds(void *dst, const void *src, size_t count, int kind);
int cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
		 int kind);
int cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
		      int kind, void *stream);
int cudaMemcpy3D(const struct cudaMemcpy3DParms *p);
int cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count);
int cudaMemset(void *devPtr, int value, size_t count);
int cudaMemsetAsync(void *devPtr, int value, size_t count, void *stream);
int cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width, size_t height);
int cudaMemset3D(struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent);

int cudaLaunchKernel(const void *func, struct dim3 gridDim, struct dim3 blockDim, void **args,
		     size_t sharedMem, void *stream);
int cudaLaunchKernel_ptsz(const void *func, struct dim3 gridDim, struct dim3 blockDim, void **args,
			  size_t sharedMem, void *stream);
int cudaLaunchCooperativeKernel(const void *func, struct dim3 gridDim, struct dim3 blockDim, void **args,
				size_t sharedMem, void *stream);
int cudaLaunchKernelExC(const struct cudaLaunchConfig *config, const void *func, void **args);
int cudaLaunchHostFunc(void *stream, void (*fn)(void *), void *userData);
int cudaGraphCreate(void **pGraph, unsigned int flags);
int cudaGraphInstantiateWithFlags(void **pGraphExec, void *graph, unsigned long long flags);
int cudaGraphLaunch(void *graphExec, void *stream);

int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamEndCapture(void *stream, void **pGraph);
int cudaStreamIsCapturing(void *stream, int *pCaptureStatus);

int cudaStreamCreate(void **pStream);
int cudaStreamCreateWithFlags(void **pStream, unsigned int flags);
int cudaStreamCreateWithPriority(void **pStream, unsigned int flags, int priority);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);
int cudaStreamQuery(void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned int flags);
int cudaEventCreate(void **event);
int cudaEventCreateWithFlags(void **event, unsigned int flags);
int cudaEventRecord(void *event, void *stream);
int cudaEventSynchronize(void *event);
int cudaEventQuery(void *event);
int cudaEventElapsedTime(float *ms, void *start, void *end);
int cudaEventDestroy(void *event);

int cudaDeviceSynchronize(void);
int cudaGetDeviceCount(int *count);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaDeviceReset(void);
int cudaDeviceGetAttribute(int *value, int attr, int device);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaRuntimeGetVersion(int *runtimeVersion);
int cudaDriverGetVersion(int *driverVersion);
int cudaFuncGetAttributes(void *attr, const void *func);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *func, int blockSize,
						  size_t dynamicSMemSize);
const char *cudaGetErrorName(int error);

void **__cudaRegisterFatBinary(void *fatCubin);
void __cudaRegisterFatBinaryEnd(void **fatCubinHandle);
void __cudaUnregisterFatBinary(void **fatCubinHandle);
void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
			    const char *deviceName, int thread_limit, void *tid, void *bid, void *bDim,
			    void *gDim, int *wSize);

int cuInit(unsigned int Flags);
int cuDeviceGet(int *device, int ordinal);
int cuCtxCreate_v2(void **pctx, unsigned int flags, int dev);
int cuCtxSynchronize(void);
int cuStreamSynchronize(void *hStream);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuCtxDestroy_v2(void *ctx);
int cuCtxSetCurrent(void *ctx);
int cuCtxGetCurrent(void **pctx);
int cuCtxGetDevice(int *device);
int cuCtxPushCurrent_v2(void *ctx);
int cuCtxPopCurrent_v2(void **pctx);
int cuDeviceGetCount(int *count);
int cuDeviceGetName(char *name, int len, int dev);
int cuDeviceGetPCIBusId(char *pciBusId, int len, int dev);
int cuDeviceGetUuid_v2(char *uuid, int dev);
int cuDevicePrimaryCtxRetain(void **pctx, int dev);
int cuDevicePrimaryCtxRelease_v2(int dev);
int cuDevicePrimaryCtxReset_v2(int dev);
int cuDeviceGetAttribute(int *pi, int attrib, int dev);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **hfunc, void *hmod, const char *name);
int cuLibraryLoadData(void **library, const void *code, int *jitOptions, void **jitOptionsValues,
		      unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
		      unsigned int numLibraryOptions);
int cuLibraryGetKernel(void **pKernel, void *library, const char *name);
int cuKernelGetFunction(void **pFunc, void *kernel);
int cuMemAlloc_v2(uint64_t *dptr, size_t bytesize);
int cuMemAllocPitch_v2(uint64_t *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
		       unsigned int ElementSizeBytes);
int cuMemAllocManaged(uint64_t *dptr, size_t bytesize, unsigned int flags);
int cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags);
int cuMemAllocHost_v2(void **pp, size_t bytesize);
int cuMemAllocAsync(uint64_t *dptr, size_t bytesize, void *hStream);
int cuMemAllocAsync_ptsz(uint64_t *dptr, size_t bytesize, void *hStream);
int cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags);
int cuMemFree_v2(uint64_t dptr);
int cuMemFreeHost(void *p);
int cuMemFreeAsync(uint64_t dptr, void *hStream);
int cuMemHostUnregister(void *p);
int cuArrayCreate_v2(void **pHandle, const struct CUDA_ARRAY_DESCRIPTOR *pAllocateArray);
int cuArray3DCreate_v2(void **pHandle, const struct CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray);
int cuArrayDestroy(void *hArray);
int cuMipmappedArrayCreate(void **pHandle, const struct CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
			   unsigned int numMipmapLevels);
int cuMipmappedArrayDestroy(void *hMipmappedArray);
int cuMemcpyHtoD_v2(uint64_t dstDevice, const void *srcHost, size_t ByteCount);
int cuMemcpyDtoH_v2(void *dstHost, uint64_t srcDevice, size_t ByteCount);
int cuMemcpyHtoDAsync_v2_ptsz(uint64_t dstDevice, const void *srcHost, size_t ByteCount, void *hStream);
int cuMemcpyDtoD_v2_ptds(uint64_t dstDevice, uint64_t srcDevice, size_t ByteCount);
int cuMemcpyPeerAsync(uint64_t dstDevice, void *dstContext, uint64_t srcDevice, void *srcContext,
		      size_t ByteCount, void *hStream);
int cuMemcpy2D_v2(const struct CUDA_MEMCPY2D *pCopy);
int cuMemsetD32Async(uint64_t dstDevice, unsigned int ui, size_t N, void *hStream);
int cuMemsetD2D16_v2(uint64_t dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height);
int cuMemPrefetchAsync_v2(uint64_t devPtr, size_t count, struct cudaMemLocation location, unsigned int flags,
			  void *hStream);
int cuStreamCreateWithPriority(void **phStream, unsigned int flags, int priority);
int cuStreamWaitEvent(void *hStream, void *hEvent, unsigned int Flags);
int cuEventRecord_ptsz(void *hEvent, void *hStream);
int cuGraphLaunch(void *hGraphExec, void *hStream);
int cuLaunchKernelEx(const struct CUlaunchConfig *config, void *f, void **kernelParams, void **extra);
int cuLaunchKernel_ptsz(void *f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
			unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
			unsigned int sharedMemBytes, void *hStream, void **kernelParams, void **extra);
int cuLaunchKernel(void *f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
		   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
		   unsigned int sharedMemBytes, void *hStream, void **kernelParams, void **extra);
int cuMemCreate(uint64_t *handle, size_t size, const struct CUmemAllocationProp *prop,
		unsigned long long flags);
int cuMemRelease(uint64_t handle);
int cuMemRetainAllocationHandle(uint64_t *handle, uint64_t addr);
int cuMemAddressReserve(uint64_t *ptr, size_t size, size_t alignment, uint64_t addr,
			unsigned long long flags);
int cuMemAddressFree(uint64_t ptr, size_t size);
int cuMemMap(uint64_t ptr, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
int cuMemUnmap(uint64_t ptr, size_t size);
int cuMemExportToShareableHandle(void *shareableHandle, uint64_t handle, int handleType,
				 unsigned long long flags);
int cuMemImportFromShareableHandle(uint64_t *handle, void *osHandle, int shHandleType);
int cuMemGetAllocationGranularity(size_t *granularity, const struct CUmemAllocationProp *prop, int option);

#endif
