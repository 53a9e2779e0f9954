// Waits for a CUDA kernel that spins: hang SECONDS. Prints its pid before it waits.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

__global__ void spin(unsigned long long nanoseconds)
{
	unsigned long long begin, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - begin < nanoseconds);
}

__attribute__((noinline)) void wait_for_gpu(cudaStream_t stream)
{
	cudaStreamSynchronize(stream);
	asm volatile("");
}

int main(int count, char **arguments)
{
	cudaStream_t stream;

	if (count < 2 || cudaStreamCreate(&stream))
		return 1;
	spin<<<1, 1, 0, stream>>>(strtoull(arguments[1], NULL, 10) * 1000000000ULL);
	printf("{\"pid\":%d}\n", (int)getpid());
	fflush(stdout);
	wait_for_gpu(stream);
	return 0;
}
