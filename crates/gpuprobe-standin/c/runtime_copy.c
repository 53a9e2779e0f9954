/* Copies and memsets of the stand-in runtime: arguments are passed on, no bytes move. */
#include "runtime_copy.h"

int impl_cudaMemcpy(void *to, const void *from, size_t count, int kind)
{
	ENTER(cudaMemcpy);
	switch (kind) {
	case COPY_H2H:
		return runtime_done(inner.cudaMemcpy_H2H(to, from, count));
	case COPY_H2D:
		return runtime_done(inner.cudaMemcpy_H2D(to, from, count));
	case COPY_D2H:
		return runtime_done(inner.cudaMemcpy_D2H(to, from, count));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpy_D2D(to, from, count));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpy_Default(to, from, count));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyAsync(void *to, const void *from, size_t count, int kind, void *stream)
{
	ENTER(cudaMemcpyAsync);
	switch (kind) {
	case COPY_H2H:
		return runtime_done(inner.cudaMemcpyAsync_H2H(to, from, count, stream));
	case COPY_H2D:
		return runtime_done(inner.cudaMemcpyAsync_H2D(to, from, count, stream));
	case COPY_D2H:
		return runtime_done(inner.cudaMemcpyAsync_D2H(to, from, count, stream));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyAsync_D2D(to, from, count, stream));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyAsync_Default(to, from, count, stream));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
		      size_t height, int kind)
{
	struct CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height, kind);

	ENTER(cudaMemcpy2D);
	return runtime_done(inner.cudaMemcpy2D(&copy));
}

int impl_cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
			   size_t height, int kind, void *stream)
{
	struct CUDA_MEMCPY2D copy = rectangle(to, to_pitch, from, from_pitch, width, height, kind);

	ENTER(cudaMemcpy2DAsync);
	return runtime_done(inner.cudaMemcpy2DAsync(&copy, stream));
}

static struct CUDA_MEMCPY3D box(const struct cudaMemcpy3DParms *p)
{
	return (struct CUDA_MEMCPY3D){
	    .srcXInBytes = p->srcPos.x,
	    .srcY = p->srcPos.y,
	    .srcZ = p->srcPos.z,
	    .srcMemoryType = p->srcArray ? MEMORY_ARRAY : source_type(p->kind),
	    .srcHost = p->srcPtr.ptr,
	    .srcDevice = (uint64_t)p->srcPtr.ptr,
	    .srcArray = p->srcArray,
	    .srcPitch = p->srcPtr.pitch,
	    .srcHeight = p->srcPtr.ysize,
	    .dstXInBytes = p->dstPos.x,
	    .dstY = p->dstPos.y,
	    .dstZ = p->dstPos.z,
	    .dstMemoryType = p->dstArray ? MEMORY_ARRAY : target_type(p->kind),
	    .dstHost = p->dstPtr.ptr,
	    .dstDevice = (uint64_t)p->dstPtr.ptr,
	    .dstArray = p->dstArray,
	    .dstPitch = p->dstPtr.pitch,
	    .dstHeight = p->dstPtr.ysize,
	    .WidthInBytes = p->extent.width,
	    .Height = p->extent.height,
	    .Depth = p->extent.depth,
	};
}

int impl_cudaMemcpy3D(const struct cudaMemcpy3DParms *p)
{
	struct CUDA_MEMCPY3D copy;

	ENTER(cudaMemcpy3D);
	copy = box(p);
	return runtime_done(inner.cudaMemcpy3D(&copy));
}

int impl_cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, void *stream)
{
	struct CUDA_MEMCPY3D copy;

	ENTER(cudaMemcpy3DAsync);
	copy = box(p);
	return runtime_done(inner.cudaMemcpy3DAsync(&copy, stream));
}

int impl_cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t count)
{
	(void)to_device;
	(void)from_device;
	ENTER(cudaMemcpyPeer);
	return runtime_done(inner.cudaMemcpyPeer(to, NULL, from, NULL, count));
}

int impl_cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t count,
			     void *stream)
{
	(void)to_device;
	(void)from_device;
	ENTER(cudaMemcpyPeerAsync);
	return runtime_done(inner.cudaMemcpyPeerAsync(to, NULL, from, NULL, count, stream));
}

static struct CUDA_MEMCPY3D box_of_peers(const struct cudaMemcpy3DPeerParms *p)
{
	struct cudaMemcpy3DParms plain = {
	    p->srcArray, p->srcPos, p->srcPtr, p->dstArray, p->dstPos, p->dstPtr, p->extent, COPY_D2D,
	};

	return box(&plain);
}

int impl_cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *p)
{
	struct CUDA_MEMCPY3D copy;

	ENTER(cudaMemcpy3DPeer);
	copy = box_of_peers(p);
	return runtime_done(inner.cudaMemcpy3DPeer(&copy));
}

int impl_cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *p, void *stream)
{
	struct CUDA_MEMCPY3D copy;

	ENTER(cudaMemcpy3DPeerAsync);
	copy = box_of_peers(p);
	return runtime_done(inner.cudaMemcpy3DPeerAsync(&copy, stream));
}

/* Before CUDA 13 the batch functions have an output for the index of the copy that failed. */
#if CUDA_MAJOR < 13
#define FAILED_INDEX size_t *failed,
#define NO_FAILED_INDEX (void)failed
#else
#define FAILED_INDEX
#define NO_FAILED_INDEX
#endif

int impl_cudaMemcpyBatchAsync(void *targets, void *sources, size_t *sizes, size_t count, void *attributes,
			      size_t *indices, size_t attribute_count, FAILED_INDEX void *stream)
{
	NO_FAILED_INDEX;
	ENTER(cudaMemcpyBatchAsync);
	return runtime_done(inner.cudaMemcpyBatchAsync(targets, sources, sizes, count, attributes, indices,
						       attribute_count, stream));
}

int impl_cudaMemcpy3DBatchAsync(size_t count, void *operations, FAILED_INDEX unsigned long long flags,
				void *stream)
{
	NO_FAILED_INDEX;
	ENTER(cudaMemcpy3DBatchAsync);
	return runtime_done(inner.cudaMemcpy3DBatchAsync(count, operations, flags, stream));
}

int impl_cudaMemcpyWithAttributesAsync(void *to, const void *from, size_t count, void *attributes,
				       void *stream)
{
	ENTER(cudaMemcpyWithAttributesAsync);
	return runtime_done(inner.cudaMemcpyWithAttributesAsync(to, from, count, attributes, stream));
}

int impl_cudaMemcpy3DWithAttributesAsync(void *operation, unsigned long long flags, void *stream)
{
	ENTER(cudaMemcpy3DWithAttributesAsync);
	return runtime_done(inner.cudaMemcpy3DWithAttributesAsync(operation, flags, stream));
}

int impl_cudaMemset(void *address, int value, size_t count)
{
	ENTER(cudaMemset);
	return runtime_done(inner.cudaMemset(address, (unsigned char)value, count));
}

int impl_cudaMemsetAsync(void *address, int value, size_t count, void *stream)
{
	ENTER(cudaMemsetAsync);
	return runtime_done(inner.cudaMemsetAsync(address, (unsigned char)value, count, stream));
}

int impl_cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height)
{
	ENTER(cudaMemset2D);
	return runtime_done(inner.cudaMemset2D(address, pitch, (unsigned char)value, width, height));
}

int impl_cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height, void *stream)
{
	ENTER(cudaMemset2DAsync);
	return runtime_done(
	    inner.cudaMemset2DAsync(address, pitch, (unsigned char)value, width, height, stream));
}

int impl_cudaMemset3D(struct cudaPitchedPtr to, int value, struct cudaExtent extent)
{
	ENTER(cudaMemset3D);
	return runtime_done(inner.cudaMemset3D(to.ptr, to.pitch, (unsigned char)value, extent.width,
					       extent.height * extent.depth));
}

int impl_cudaMemset3DAsync(struct cudaPitchedPtr to, int value, struct cudaExtent extent, void *stream)
{
	ENTER(cudaMemset3DAsync);
	return runtime_done(inner.cudaMemset3DAsync(to.ptr, to.pitch, (unsigned char)value, extent.width,
						    extent.height * extent.depth, stream));
}
