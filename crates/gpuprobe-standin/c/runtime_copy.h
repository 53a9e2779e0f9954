/* How the stand-in runtime describes copies to the driver. */
#ifndef STANDIN_RUNTIME_COPY_H
#define STANDIN_RUNTIME_COPY_H

#include "runtime.h"

/* CUmemorytype of source and destination for a copy kind. */
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

static inline unsigned int source_type(int kind)
{
	return kind == COPY_DEFAULT		      ? MEMORY_UNIFIED
	       : kind == COPY_D2H || kind == COPY_D2D ? MEMORY_DEVICE
						      : MEMORY_HOST;
}

static inline unsigned int target_type(int kind)
{
	return kind == COPY_DEFAULT		      ? MEMORY_UNIFIED
	       : kind == COPY_H2D || kind == COPY_D2D ? MEMORY_DEVICE
						      : MEMORY_HOST;
}

static inline struct CUDA_MEMCPY2D rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch,
					     size_t width, size_t height, int kind)
{
	return (struct CUDA_MEMCPY2D){
	    .srcMemoryType = source_type(kind),
	    .srcHost = from,
	    .srcDevice = (uint64_t)from,
	    .srcPitch = from_pitch,
	    .dstMemoryType = target_type(kind),
	    .dstHost = to,
	    .dstDevice = (uint64_t)to,
	    .dstPitch = to_pitch,
	    .WidthInBytes = width,
	    .Height = height,
	};
}

#endif
