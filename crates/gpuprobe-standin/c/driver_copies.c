/* Copies and memsets of the stand-in driver. Nothing is moved: device addresses are never dereferenced. */
#include "driver.h"

#include "gpu_op.h"

/* CUpti_ActivityMemcpyKind */
enum { UNKNOWN = 0, HTOD = 1, DTOH = 2, DTOD = 8, HTOH = 9, PTOP = 10 };

static int copy(int copy_kind, uint64_t bytes, void *stream)
{
	struct gpu_op op = {
	    .kind = copy_kind == PTOP ? GPU_OP_PEER_COPY : GPU_OP_COPY,
	    .copy_kind = copy_kind,
	    .bytes = bytes,
	};

	if (bytes && gpu_is_observed())
		gpu_submit(stream, &op);
	return CUDA_SUCCESS;
}

static int set(uint64_t bytes, void *stream)
{
	struct gpu_op op = {.kind = GPU_OP_MEMSET, .bytes = bytes};

	if (bytes && gpu_is_observed())
		gpu_submit(stream, &op);
	return CUDA_SUCCESS;
}

static int is_device(uint64_t address)
{
	size_t size;
	int kind = heap_kind_of((const void *)address, &size);

	return kind >= 0 && kind != HEAP_PINNED && kind != HEAP_REGISTERED;
}

/* The kind of a copy whose function does not say it. Addresses inside of an allocation count as host memory.
 */
static int kind_of(uint64_t to, uint64_t from)
{
	if (is_device(from))
		return is_device(to) ? DTOD : DTOH;
	return is_device(to) ? HTOD : HTOH;
}

#define COPY(function, copy_kind)                                                                            \
	int impl_##function(uint64_t to, uint64_t from, size_t bytes)                                        \
	{                                                                                                    \
		(void)to;                                                                                    \
		(void)from;                                                                                  \
		ENTER(function);                                                                             \
		return gpu_is_observed() ? copy(copy_kind, bytes, NULL) : CUDA_SUCCESS;                      \
	}

#define COPY_ASYNC(function, copy_kind)                                                                      \
	int impl_##function(uint64_t to, uint64_t from, size_t bytes, void *stream)                          \
	{                                                                                                    \
		(void)to;                                                                                    \
		(void)from;                                                                                  \
		ENTER(function);                                                                             \
		return gpu_is_observed() ? copy(copy_kind, bytes, stream) : CUDA_SUCCESS;                    \
	}

COPY(cuMemcpy, kind_of(to, from))
COPY(cuMemcpyHtoD_v2, HTOD)
COPY(cuMemcpyDtoH_v2, DTOH)
COPY(cuMemcpyDtoD_v2, DTOD)
COPY_ASYNC(cuMemcpyAsync, kind_of(to, from))
COPY_ASYNC(cuMemcpyHtoDAsync_v2, HTOD)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, DTOH)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, DTOD)

int impl_cuMemcpyPeer(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes)
{
	(void)to;
	(void)to_context;
	(void)from;
	(void)from_context;
	ENTER(cuMemcpyPeer);
	return copy(PTOP, bytes, NULL);
}

int impl_cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes,
			   void *stream)
{
	(void)to;
	(void)to_context;
	(void)from;
	(void)from_context;
	ENTER(cuMemcpyPeerAsync);
	return copy(PTOP, bytes, stream);
}

#define SET(function, value_type)                                                                            \
	int impl_##function##_v2(uint64_t to, value_type value, size_t count)                                \
	{                                                                                                    \
		(void)to;                                                                                    \
		(void)value;                                                                                 \
		ENTER(function##_v2);                                                                        \
		return set(count * sizeof(value), NULL);                                                     \
	}                                                                                                    \
	int impl_##function##Async(uint64_t to, value_type value, size_t count, void *stream)                \
	{                                                                                                    \
		(void)to;                                                                                    \
		(void)value;                                                                                 \
		ENTER(function##Async);                                                                      \
		return set(count * sizeof(value), stream);                                                   \
	}

SET(cuMemsetD8, unsigned char)
SET(cuMemsetD16, unsigned short)
SET(cuMemsetD32, unsigned int)
