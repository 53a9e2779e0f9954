// SPDX-License-Identifier: Apache-2.0 OR MIT
// Waits for a stream with the runtime, which calls the CUDA driver. Prints its pid first.
#include <cstdio>
#include <unistd.h>

extern "C" int cudaStreamSynchronize(void *stream);

namespace training
{
struct Epoch {
	int steps = 0;

	__attribute__((noinline)) void wait_for_stream()
	{
		cudaStreamSynchronize(nullptr);
		steps++;
	}
};
} // namespace training

int main()
{
	training::Epoch epoch;

	printf("%d\n", getpid());
	fflush(stdout);
	epoch.wait_for_stream();
	return epoch.steps;
}
