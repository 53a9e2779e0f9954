/* The few public CUDA types that the stand-ins and workloads use, written from their documented layout. */
#ifndef STANDIN_CUDA_TYPES_H
#define STANDIN_CUDA_TYPES_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct dim3 {
	unsigned int x, y, z;
};

struct cudaExtent {
	size_t width, height, depth;
};

struct cudaPos {
	size_t x, y, z;
};

struct cudaPitchedPtr {
	void *ptr;
	size_t pitch, xsize, ysize;
};

struct cudaMemLocation {
	int type, id;
};

struct cudaChannelFormatDesc {
	int x, y, z, w, f;
};

struct cudaIpcMemHandle {
	char reserved[64];
};

struct cudaMemcpy3DParms {
	void *srcArray;
	struct cudaPos srcPos;
	struct cudaPitchedPtr srcPtr;
	void *dstArray;
	struct cudaPos dstPos;
	struct cudaPitchedPtr dstPtr;
	struct cudaExtent extent;
	int kind;
};

struct cudaMemcpy3DPeerParms {
	void *srcArray;
	struct cudaPos srcPos;
	struct cudaPitchedPtr srcPtr;
	int srcDevice;
	void *dstArray;
	struct cudaPos dstPos;
	struct cudaPitchedPtr dstPtr;
	int dstDevice;
	struct cudaExtent extent;
};

struct cudaLaunchConfig {
	struct dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	void *stream, *attrs;
	unsigned int numAttrs;
};

struct cudaPointerAttributes {
	int type, device;
	void *devicePointer, *hostPointer;
};

/* CUmemorytype: 1 host, 2 device, 3 array, 4 unified */
struct CUDA_MEMCPY2D {
	size_t srcXInBytes, srcY;
	unsigned int srcMemoryType;
	const void *srcHost;
	uint64_t srcDevice;
	void *srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	unsigned int dstMemoryType;
	void *dstHost;
	uint64_t dstDevice;
	void *dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
};

struct CUDA_MEMCPY3D {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	unsigned int srcMemoryType;
	const void *srcHost;
	uint64_t srcDevice;
	void *srcArray, *reserved0;
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	unsigned int dstMemoryType;
	void *dstHost;
	uint64_t dstDevice;
	void *dstArray, *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
};

struct CUDA_ARRAY_DESCRIPTOR {
	size_t Width, Height;
	unsigned int Format, NumChannels;
};

struct CUDA_ARRAY3D_DESCRIPTOR {
	size_t Width, Height, Depth;
	unsigned int Format, NumChannels, Flags;
};

struct CUlaunchConfig {
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void *hStream, *attrs;
	unsigned int numAttrs;
};

struct CUmemAllocationProp {
	int type, requestedHandleTypes;
	struct cudaMemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
};

enum { COPY_H2H, COPY_H2D, COPY_D2H, COPY_D2D, COPY_DEFAULT, COPY_KINDS };

static_assert(sizeof(struct CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D");
static_assert(sizeof(struct CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D");
static_assert(sizeof(struct cudaMemcpy3DParms) == 160, "cudaMemcpy3DParms");
static_assert(sizeof(struct cudaMemcpy3DPeerParms) == 168, "cudaMemcpy3DPeerParms");
static_assert(sizeof(struct cudaLaunchConfig) == 56, "cudaLaunchConfig_t");

#endif
