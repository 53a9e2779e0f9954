/* A stand-in libc10_cuda: an allocator of tensors that reports to libc10 as PyTorch's does. */
#ifndef STANDIN_C10_CUDA_H
#define STANDIN_C10_CUDA_H

#include <stddef.h>

namespace standin
{
/* GPUs that it has tensors on. */
const int DEVICES = 2;

/* The figures of the allocator on one GPU. Fragmented bytes are free, in segments that are not. */
struct Figures {
	unsigned long in_use, reserved, fragmented, live, allocations, frees, out_of_memory;
};

/* NULL if the GPU has no room for it, after that was reported. */
void *allocate(size_t bytes, int device);
void free(void *tensor, int device);
Figures figures(int device);
/* Reports memory of the host, as PyTorch does under a profiler. */
void report_of_host(void *pointer, long bytes);
} // namespace standin

#endif
