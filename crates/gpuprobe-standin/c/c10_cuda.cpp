/*
 * A stand-in libc10_cuda. Segments come from cudaMalloc and are never given back; blocks are cut from them,
 * and used again when they are free. As in PyTorch, every report is made under the lock of the GPU, with the
 * bytes of the block (negative for a free) and the sums after it.
 */
#include "c10_cuda.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

extern "C" {
#include "workloads/cuda_api.h"
}

namespace c10
{
struct Device {
	int8_t type, index;
};

void reportMemoryUsageToProfiler(void *ptr, int64_t alloc_size, size_t total_allocated, size_t total_reserved,
				 Device device);
void reportOutOfMemoryToProfiler(int64_t alloc_size, size_t total_allocated, size_t total_reserved,
				 Device device);
} // namespace c10

namespace
{
const int8_t CPU = 0, CUDA = 1;
const size_t BLOCK = 512, SEGMENT = 2ul << 20, LARGEST = 1ul << 40;

class Allocator
{
      public:
	void *allocate(size_t bytes, int8_t device)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		size_t rounded = (bytes + BLOCK - 1) / BLOCK * BLOCK;

		if (rounded > LARGEST) {
			figures_.out_of_memory++;
			c10::reportOutOfMemoryToProfiler((int64_t)bytes, figures_.in_use, figures_.reserved,
							 {CUDA, device});
			return NULL;
		}
		void *block = take(rounded, device);

		sizes_[block] = rounded;
		segment_of(block).used += rounded;
		figures_.in_use += rounded;
		figures_.live++;
		figures_.allocations++;
		c10::reportMemoryUsageToProfiler(block, (int64_t)rounded, figures_.in_use, figures_.reserved,
						 {CUDA, device});
		return block;
	}

	void free(void *block, int8_t device)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		size_t bytes = sizes_.at(block);

		sizes_.erase(block);
		segment_of(block).used -= bytes;
		unused_[bytes].push_back(block);
		figures_.in_use -= bytes;
		figures_.live--;
		figures_.frees++;
		c10::reportMemoryUsageToProfiler(block, -(int64_t)bytes, figures_.in_use, figures_.reserved,
						 {CUDA, device});
	}

	standin::Figures figures()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		standin::Figures figures = figures_;

		for (const auto &[start, segment] : segments_)
			figures.fragmented += segment.used ? segment.bytes - segment.used : 0;
		return figures;
	}

      private:
	struct Segment {
		size_t bytes, used;
	};

	Segment &segment_of(void *block)
	{
		return std::prev(segments_.upper_bound(block))->second;
	}

	/* A free block of this size, or one that is cut from a segment. */
	void *take(size_t bytes, int8_t device)
	{
		std::vector<void *> &unused = unused_[bytes];

		if (!unused.empty()) {
			void *block = unused.back();

			unused.pop_back();
			return block;
		}
		if (bytes > left_) {
			size_t segment = bytes > SEGMENT ? bytes : SEGMENT;
			void *start = NULL;

			if (cudaSetDevice(device) || cudaMalloc(&start, segment)) {
				fprintf(stderr, "no segment of %zu bytes on GPU %d\n", segment, device);
				abort();
			}
			segments_[start] = {segment, 0};
			next_ = (char *)start;
			left_ = segment;
			figures_.reserved += segment;
		}
		void *block = next_;

		next_ += bytes;
		left_ -= bytes;
		return block;
	}

	std::mutex mutex_;
	std::map<size_t, std::vector<void *>> unused_;
	std::map<void *, size_t> sizes_;
	std::map<void *, Segment> segments_;
	char *next_ = NULL;
	size_t left_ = 0;
	standin::Figures figures_ = {};
};

Allocator allocators[standin::DEVICES];
} // namespace

void *standin::allocate(size_t bytes, int device)
{
	void *tensor = allocators[device].allocate(bytes, (int8_t)device);

	/* so that the compiler does not turn the call into a jump */
	asm volatile("" ::: "memory");
	return tensor;
}

void standin::free(void *tensor, int device)
{
	allocators[device].free(tensor, (int8_t)device);
}

standin::Figures standin::figures(int device)
{
	return allocators[device].figures();
}

void standin::report_of_host(void *pointer, long bytes)
{
	c10::reportMemoryUsageToProfiler(pointer, bytes, 0, 0, {CPU, -1});
}
