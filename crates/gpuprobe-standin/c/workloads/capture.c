/*
 * A graph made by stream capture: three kernels and a copy are recorded, not run; a second stream joins the
 * capture through an event. The graph is launched four times, and two kernels are launched on a stream that
 * never captured. Prints {"pid","calls","captured","graph_launches","launches"}; `launches` counts only
 * direct launches, `captured` those of the graph, once.
 */
#include <stdio.h>
#include <unistd.h>

#include "cuda_api.h"

#define LAUNCHES 4

void captured_kernel(void)
{
	__asm__ volatile("");
}

void direct_kernel(void)
{
	__asm__ volatile("nop");
}

static int launch(void (*kernel)(void), void *stream)
{
	return cudaLaunchKernel((const void *)kernel, (struct dim3){3, 1, 1}, (struct dim3){32, 1, 1}, NULL,
				0, stream);
}

int main(void)
{
	static char host[512];
	void *capturing, *joined, *plain, *event, *back, *graph, *exec, *device;
	int during = 0, after = 0, result = 0;

	result |= cudaStreamCreate(&capturing);
	result |= cudaStreamCreate(&joined);
	result |= cudaStreamCreate(&plain);
	result |= cudaEventCreate(&event);
	result |= cudaEventCreate(&back);
	result |= cudaMalloc(&device, sizeof(host));
	result |= cudaStreamBeginCapture(capturing, 2);
	result |= launch(captured_kernel, capturing);
	result |= launch(captured_kernel, capturing);
	result |= cudaEventRecord(event, capturing);
	result |= cudaStreamWaitEvent(joined, event, 0);
	result |= launch(captured_kernel, joined);
	result |= cudaMemcpyAsync(device, host, sizeof(host), COPY_H2D, joined);
	result |= cudaEventRecord(back, joined);
	result |= cudaStreamWaitEvent(capturing, back, 0);
	result |= cudaStreamIsCapturing(capturing, &during);
	result |= launch(direct_kernel, plain);
	result |= cudaStreamEndCapture(capturing, &graph);
	result |= cudaStreamIsCapturing(capturing, &after);
	result |= cudaGraphInstantiateWithFlags(&exec, graph, 0);
	for (int i = 0; i < LAUNCHES; i++)
		result |= cudaGraphLaunch(exec, capturing);
	result |= launch(direct_kernel, capturing);
	result |= cudaStreamSynchronize(capturing);
	result |= cudaFree(device);
	printf("{\"pid\":%d,\"calls\":{\"cudaStreamCreate\":3,\"cudaEventCreate\":2,\"cudaMalloc\":1,"
	       "\"cudaStreamBeginCapture\":1,\"cudaLaunchKernel\":5,\"cudaEventRecord\":2,"
	       "\"cudaStreamWaitEvent\":2,"
	       "\"cudaMemcpyAsync\":1,\"cudaStreamIsCapturing\":2,\"cudaStreamEndCapture\":1,"
	       "\"cudaGraphInstantiateWithFlags\":1,\"cudaGraphLaunch\":%d,\"cudaStreamSynchronize\":1,"
	       "\"cudaFree\":1},\"captured\":{\"captured_kernel\":3,\"H2D_bytes\":%zu},\"graph_launches\":%d,"
	       "\"launches\":{\"direct_kernel\":2}}\n",
	       (int)getpid(), LAUNCHES, sizeof(host), LAUNCHES);
	return result || during != 1 || after != 0;
}
