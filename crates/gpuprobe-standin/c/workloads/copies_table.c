/* Every function of the driver that copies or sets memory, by the shape of its arguments. */
#include "copies.h"

#include <string.h>

#include "cuda_api.h"

enum { HOST = 1, DEVICE = 2, ARRAY = 3 };

/* The structs of the first version of the interface, with 32-bit fields instead of 64-bit ones. */
struct old_2d {
	unsigned int srcX, srcY, srcType;
	const void *srcHost;
	unsigned int srcDevice;
	void *srcArray;
	unsigned int srcPitch, dstX, dstY, dstType;
	void *dstHost;
	unsigned int dstDevice;
	void *dstArray;
	unsigned int dstPitch, width, height;
};

struct old_3d {
	unsigned int srcX, srcY, srcZ, srcLOD, srcType;
	const void *srcHost;
	unsigned int srcDevice;
	void *srcArray, *reserved0;
	unsigned int srcPitch, srcHeight, dstX, dstY, dstZ, dstLOD, dstType;
	void *dstHost;
	unsigned int dstDevice;
	void *dstArray, *reserved1;
	unsigned int dstPitch, dstHeight, width, height, depth;
};

_Static_assert(sizeof(struct old_2d) == 96, "CUDA_MEMCPY2D_v1");
_Static_assert(sizeof(struct old_3d) == 144, "CUDA_MEMCPY3D_v1");

/* destination, source, size, and the stream if the function has one */
static void linear(const char *name, const struct memory *m, enum kind kind, int is_async)
{
	uint64_t target = kind == D2H || kind == H2H ? address(m->pageable) : m->device + 512;
	uint64_t source = kind == H2D || kind == H2H ? address(m->pinned) : m->device;
	size_t size = next_size();

	call(name, target, source, size, STREAM, 0, 0, 0, 0, 0);
	copied(kind, kind == H2D ? PINNED : kind == D2D ? NO_HOST : PAGEABLE, is_async, size);
}

static void linear_functions(const struct memory *m)
{
	linear("cuMemcpyHtoD", m, H2D, 0);
	linear("cuMemcpyHtoD_v2", m, H2D, 0);
	linear("cuMemcpyHtoD_v2_ptds", m, H2D, 0);
	linear("cuMemcpyHtoDAsync", m, H2D, 1);
	linear("cuMemcpyHtoDAsync_v2", m, H2D, 1);
	linear("cuMemcpyHtoDAsync_v2_ptsz", m, H2D, 1);
	linear("cuMemcpyDtoH", m, D2H, 0);
	linear("cuMemcpyDtoH_v2", m, D2H, 0);
	linear("cuMemcpyDtoH_v2_ptds", m, D2H, 0);
	linear("cuMemcpyDtoHAsync", m, D2H, 1);
	linear("cuMemcpyDtoHAsync_v2", m, D2H, 1);
	linear("cuMemcpyDtoHAsync_v2_ptsz", m, D2H, 1);
	linear("cuMemcpyDtoD", m, D2D, 0);
	linear("cuMemcpyDtoD_v2", m, D2D, 0);
	linear("cuMemcpyDtoD_v2_ptds", m, D2D, 0);
	linear("cuMemcpyDtoDAsync", m, D2D, 1);
	linear("cuMemcpyDtoDAsync_v2", m, D2D, 1);
	linear("cuMemcpyDtoDAsync_v2_ptsz", m, D2D, 1);
	linear("cuMemcpy", m, D2H, 0);
	linear("cuMemcpy_ptds", m, H2D, 0);
	linear("cuMemcpyAsync", m, D2D, 1);
	linear("cuMemcpyAsync_ptsz", m, H2H, 1);
}

static void of_array(const char *name, const struct memory *m, int is_async)
{
	size_t size = next_size();
	uint64_t array = m->array, host = address(m->pinned);

	switch (name[8] * 256 + name[11]) {
	case 'A' * 256 + 'A':
		call(name, array, 0, array, 0, size, 0, 0, 0, 0);
		return copied(D2D, NO_HOST, is_async, size);
	case 'A' * 256 + 'D':
		call(name, m->device, array, 0, size, 0, 0, 0, 0, 0);
		return copied(D2D, NO_HOST, is_async, size);
	case 'A' * 256 + 'H':
		call(name, host, array, 0, size, STREAM, 0, 0, 0, 0);
		return copied(D2H, PINNED, is_async, size);
	case 'D' * 256 + 'A':
		call(name, array, 0, m->device, size, 0, 0, 0, 0, 0);
		return copied(D2D, NO_HOST, is_async, size);
	case 'H' * 256 + 'A':
		call(name, array, 0, host, size, STREAM, 0, 0, 0, 0);
		return copied(H2D, PINNED, is_async, size);
	}
}

static void array_functions(const struct memory *m)
{
	static const char *const names[] = {
	    "cuMemcpyAtoA",	 "cuMemcpyAtoA_v2",	 "cuMemcpyAtoA_v2_ptds",
	    "cuMemcpyAtoD",	 "cuMemcpyAtoD_v2",	 "cuMemcpyAtoD_v2_ptds",
	    "cuMemcpyAtoH",	 "cuMemcpyAtoH_v2",	 "cuMemcpyAtoH_v2_ptds",
	    "cuMemcpyAtoHAsync", "cuMemcpyAtoHAsync_v2", "cuMemcpyAtoHAsync_v2_ptsz",
	    "cuMemcpyDtoA",	 "cuMemcpyDtoA_v2",	 "cuMemcpyDtoA_v2_ptds",
	    "cuMemcpyHtoA",	 "cuMemcpyHtoA_v2",	 "cuMemcpyHtoA_v2_ptds",
	    "cuMemcpyHtoAAsync", "cuMemcpyHtoAAsync_v2", "cuMemcpyHtoAAsync_v2_ptsz",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		of_array(names[i], m, strstr(names[i], "Async") != NULL);
}

static void peer_functions(const struct memory *m)
{
	static const char *const names[] = {"cuMemcpyPeer", "cuMemcpyPeer_ptds", "cuMemcpyPeerAsync",
					    "cuMemcpyPeerAsync_ptsz"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		size_t size = next_size();

		call(names[i], m->other_device, 0, m->device, 0, size, STREAM, 0, 0, 0);
		copied(P2P, NO_HOST, i > 1, size);
	}
}

static void rectangles(const struct memory *m)
{
	static const char *const names[] = {
	    "cuMemcpy2D_v2",	      "cuMemcpy2D_v2_ptds",
	    "cuMemcpy2DUnaligned_v2", "cuMemcpy2DUnaligned_v2_ptds",
	    "cuMemcpy2DAsync_v2",     "cuMemcpy2DAsync_v2_ptsz",
	};
	static const char *const old[] = {"cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct CUDA_MEMCPY2D copy = {.srcMemoryType = HOST,
					     .srcHost = m->registered + 100,
					     .dstMemoryType = DEVICE,
					     .dstDevice = m->device,
					     .WidthInBytes = next_size(),
					     .Height = 3};

		call(names[i], address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
		copied(H2D, PINNED, i > 3, copy.WidthInBytes * 3);
	}
	for (size_t i = 0; i < sizeof(old) / sizeof(*old); i++) {
		struct old_2d copy = {.srcType = ARRAY,
				      .dstType = HOST,
				      .dstHost = m->pageable,
				      .width = next_size(),
				      .height = 5};

		call(old[i], address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
		copied(D2H, PAGEABLE, i > 1, copy.width * 5);
	}
}

static void boxes(const struct memory *m)
{
	static const char *const names[] = {"cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds", "cuMemcpy3DAsync_v2",
					    "cuMemcpy3DAsync_v2_ptsz"};
	static const char *const peers[] = {"cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds", "cuMemcpy3DPeerAsync",
					    "cuMemcpy3DPeerAsync_ptsz"};
	static const char *const old[] = {"cuMemcpy3D", "cuMemcpy3DAsync"};

	for (size_t i = 0; i < 4; i++) {
		/* the driver finds out what the addresses are */
		struct CUDA_MEMCPY3D copy = {.srcMemoryType = 4,
					     .srcDevice = m->pool + 4000,
					     .dstMemoryType = 4,
					     .dstDevice = address(m->pinned),
					     .WidthInBytes = next_size(),
					     .Height = 2,
					     .Depth = 4};

		call(names[i], address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
		copied(D2H, PINNED, i > 1, copy.WidthInBytes * 8);
		copy.srcMemoryType = copy.dstMemoryType = DEVICE;
		call(peers[i], address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
		copied(P2P, NO_HOST, i > 1, copy.WidthInBytes * 8);
	}
	for (size_t i = 0; i < 2; i++) {
		struct old_3d copy = {.srcType = HOST,
				      .srcHost = m->pageable + 9,
				      .dstType = ARRAY,
				      .width = next_size(),
				      .height = 2,
				      .depth = 3};

		call(old[i], address(&copy), STREAM, 0, 0, 0, 0, 0, 0, 0);
		copied(H2D, PAGEABLE, i > 0, copy.width * 6);
	}
}

static void batches(const struct memory *m)
{
	static const char *const names[] = {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz",
					    "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync_v2_ptsz"};

	for (size_t i = 0; i < 4; i++) {
		uint64_t targets[3] = {m->device, address(m->pageable), address(m->pinned) + 1};
		uint64_t sources[3] = {address(m->pageable), m->mapped + 5, address(m->registered)};
		size_t sizes[3] = {next_size(), next_size(), next_size()};

		call(names[i], address(targets), address(sources), address(sizes), 3, 0, 0, 0,
		     i < 2 ? 0 : STREAM, STREAM);
		copied(H2D, PAGEABLE, 1, sizes[0]);
		copied(D2H, PAGEABLE, 1, sizes[1]);
		copied(H2H, PINNED, 1, sizes[2]);
	}
}

static void operations(const struct memory *m)
{
	static const char *const names[] = {"cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_ptsz",
					    "cuMemcpy3DBatchAsync_v2", "cuMemcpy3DBatchAsync_v2_ptsz"};
	static const char *const single[] = {"cuMemcpy3DWithAttributesAsync",
					     "cuMemcpy3DWithAttributesAsync_ptsz"};
	static const char *const plain[] = {"cuMemcpyWithAttributesAsync",
					    "cuMemcpyWithAttributesAsync_ptsz"};

	for (size_t i = 0; i < 4; i++) {
		struct operation list[2] = {
		    {.source = {1, m->managed, 0, 0, {0, 0}},
		     .target = {1, m->device, 0, 0, {0, 0}},
		     .extent = {next_size(), 2, 2}},
		    {.source = {1, address(m->pinned), 0, 0, {0, 0}},
		     .target = {2, m->array, 0, 0, {0, 0}},
		     .extent = {next_size(), 1, 1}},
		};

		call(names[i], 2, address(list), 0, i < 2 ? 0 : STREAM, STREAM, 0, 0, 0, 0);
		copied(D2D, NO_HOST, 1, list[0].extent.width * 4);
		copied(H2D, PINNED, 1, list[1].extent.width);
		if (i < 2) {
			call(single[i], address(list), 0, STREAM, 0, 0, 0, 0, 0, 0);
			copied(D2D, NO_HOST, 1, list[0].extent.width * 4);
			call(plain[i], m->device, address(m->pageable), list[0].extent.width, 0, STREAM, 0, 0,
			     0, 0);
			copied(H2D, PAGEABLE, 1, list[0].extent.width);
		}
	}
}

/* `cuMemset` D, then 2D for rows, the bits of an element, and the remaining suffix */
static void fill(const char *name, const struct memory *m)
{
	int rows = !strncmp(name, "cuMemsetD2D", 11);
	const char *bits = name + (rows ? 11 : 9);
	size_t bytes = *bits == '8' ? 1 : *bits == '1' ? 2 : 4, size = next_size();

	if (rows)
		call(name, m->device, 4096, 0, size, 7, STREAM, 0, 0, 0);
	else
		call(name, m->device, 0, size, STREAM, 0, 0, 0, 0, 0);
	copied(FILL, NO_HOST, strstr(name, "Async") != NULL, size * bytes * (rows ? 7 : 1));
}

static void fills(const struct memory *m)
{
	static const char *const names[] = {"D8", "D16", "D32", "D2D8", "D2D16", "D2D32"};
	static const char *const ends[] = {"", "_v2", "_v2_ptds", "Async", "Async_ptsz"};
	char name[64];

	for (size_t i = 0; i < 6; i++) {
		for (size_t j = 0; j < 5; j++) {
			strcpy(name, "cuMemset");
			strcat(strcat(name, names[i]), ends[j]);
			fill(name, m);
		}
	}
}

static void infer(uint64_t target, uint64_t source, enum kind kind, enum host host)
{
	size_t size = next_size();

	call("cuMemcpy", target, source, size, 0, 0, 0, 0, 0, 0);
	copied(kind, host, 0, size);
	call("cuMemcpyAsync", target, source, size, 0, 0, 0, 0, 0, 0);
	copied(kind, host, 1, size);
}

/* Directions that follow only from the addresses: at the beginning, inside and at the end of allocations. */
static void by_address(const struct memory *m)
{
	uint64_t pinned = (uint64_t)m->pinned, pageable = (uint64_t)m->pageable;
	uint64_t registered = (uint64_t)m->registered;

	infer(m->device, pinned + 999999, H2D, PINNED);
	infer(m->device + ARENA + 12344, pageable, H2D, PAGEABLE);
	infer(m->pool + 99999, registered + 12287, H2D, PINNED);
	infer(m->mapped + (3 << 20), registered + 12288, H2D, PAGEABLE);
	infer(pageable + 77, m->mapped, D2H, PAGEABLE);
	infer(pinned, m->managed + 4999, D2H, PINNED);
	infer(m->pool, m->mapped, D2D, NO_HOST);
	infer(m->managed, m->device + 1, D2D, NO_HOST);
	infer(pinned, registered, H2H, PINNED);
	infer(pageable, pinned, H2H, PAGEABLE);
	infer(m->other_device + 5, m->device + (9 << 20), P2P, NO_HOST);
}

/*
 * After a free, an address is ordinary host memory or unknown; a reused address has the kind of its new
 * allocation.
 */
static void after_frees(struct memory *m)
{
	void *context = NULL;

	check(cuMemHostUnregister(m->registered));
	infer(m->device, (uint64_t)m->registered + 100, H2D, PAGEABLE);
	check(cuMemHostRegister_v2(m->registered + 4096, 4096, 0));
	infer(m->device, (uint64_t)m->registered + 4095, H2D, PAGEABLE);
	infer(m->device, (uint64_t)m->registered + 4096, H2D, PINNED);
	infer(m->device, (uint64_t)m->registered + 8192, H2D, PAGEABLE);
	/* a free that fails frees nothing */
	check(!cuMemFreeHost((void *)m->device));
	infer((uint64_t)m->pageable, m->device + 99, D2H, PAGEABLE);
	check(cuMemUnmap(m->mapped, 4 << 20));
	infer((uint64_t)m->pageable, m->mapped + 4096, H2H, PAGEABLE);
	/* all memory of a context ends with it */
	check(cuCtxCreate_v2(&context, 0, 0));
	check(cuMemAlloc_v2(&m->pool, 3000000));
	infer((uint64_t)m->pageable, m->pool + 2999999, D2H, PAGEABLE);
	check(cuCtxDestroy_v2(context));
	infer((uint64_t)m->pageable, m->pool + 2999999, H2H, PAGEABLE);
}

void call_every_function(struct memory *m)
{
	linear_functions(m);
	array_functions(m);
	peer_functions(m);
	rectangles(m);
	boxes(m);
	batches(m);
	operations(m);
	fills(m);
	by_address(m);
	after_frees(m);
}
