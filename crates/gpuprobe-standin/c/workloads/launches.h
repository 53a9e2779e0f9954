/*
 * Declarations shared by the parts of the workload `launches`: its ledger, and functions that no other
 * workload calls.
 */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include "cuda_api.h"

#define MAX_KERNELS 64

struct totals {
	unsigned int kernels;
	const char *names[MAX_KERNELS];
	unsigned long launches[MAX_KERNELS];
	/* runs of the kernel by launches of graphs */
	unsigned long in_graphs[MAX_KERNELS];
	unsigned long graph_launches, derived, captured, disabled, conditional;
};

extern struct totals totals;
extern int failures;

/* A kernel by its name, with a row in the ledger; and launches of it that ran. */
void *kernel_of(const char *name, unsigned int *row);
void ran(unsigned int row, unsigned long launches);

/* Records an unexpected result. */
void check(int result, const char *what);
#define CHECK(call) check(call, #call)

/* Each launch function has its own kernel, and launches it once more often than the previous function. */
#define LAUNCH_BY(name, made, call)                                                                          \
	do {                                                                                                 \
		unsigned int row;                                                                            \
		void *f = kernel_of("door_" #name, &row);                                                    \
		for (unsigned int i = 0; i < row + 2; i++)                                                   \
			CHECK(call);                                                                         \
		ran(row, (row + 2) * (made));                                                                \
	} while (0)

void run_launch_functions(void);
void run_graphs(void);
void run_counted(unsigned int threads, unsigned long launches);

struct CUDA_LAUNCH_PARAMS {
	void *function;
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void *hStream;
	void **kernelParams;
};
_Static_assert(sizeof(struct CUDA_LAUNCH_PARAMS) == 56, "CUDA_LAUNCH_PARAMS");

int cuLaunch(void *f);
int cuLaunchGrid(void *f, int grid_width, int grid_height);
int cuLaunchGridAsync(void *f, int grid_width, int grid_height, void *hStream);
int cuLaunchKernelEx_ptsz(const struct CUlaunchConfig *config, void *f, void **kernelParams, void **extra);
int cuLaunchCooperativeKernel(void *f, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
			      unsigned int, unsigned int, void *, void **);
int cuLaunchCooperativeKernel_ptsz(void *f, unsigned int, unsigned int, unsigned int, unsigned int,
				   unsigned int, unsigned int, unsigned int, void *, void **);
int cuLaunchCooperativeKernelMultiDevice(struct CUDA_LAUNCH_PARAMS *list, unsigned int count,
					 unsigned int flags);
int cuStreamCreate(void **phStream, unsigned int Flags);
int cuStreamDestroy_v2(void *hStream);
int cuStreamSynchronize(void *hStream);
int cuEventCreate(void **phEvent, unsigned int Flags);
int cuEventRecord(void *hEvent, void *hStream);
int cuMemcpyHtoDAsync_v2(uint64_t dstDevice, const void *srcHost, size_t ByteCount, void *hStream);
int cuStreamBeginCapture_v2(void *hStream, int mode);
int cuStreamBeginCapture_v2_ptsz(void *hStream, int mode);
int cuStreamBeginCaptureToGraph(void *hStream, void *hGraph, const void *dependencies,
				const void *dependencyData, size_t numDependencies, int mode);
int cuStreamEndCapture(void *hStream, void **phGraph);
int cuStreamEndCapture_ptsz(void *hStream, void **phGraph);
int cuGraphCreate(void **phGraph, unsigned int flags);
int cuGraphClone(void **phGraphClone, void *originalGraph);
int cuGraphDestroy(void *hGraph);
int cuGraphExecDestroy(void *hGraphExec);
int cuGraphExecUpdate_v2(void *hGraphExec, void *hGraph, void *resultInfo);
int cuGraphInstantiateWithFlags(void **phGraphExec, void *hGraph, unsigned long long flags);
int cuGraphInstantiateWithParams(void **phGraphExec, void *hGraph, void *instantiateParams);
int cuGraphInstantiate_v2(void **phGraphExec, void *hGraph, void **error, char *log, size_t size);
int cuGraphAddKernelNode_v2(void **node, void *hGraph, const void *dependencies, size_t count,
			    const void *params);
int cuGraphAddChildGraphNode(void **node, void *hGraph, const void *dependencies, size_t count, void *child);
int cuGraphAddNode_v2(void **node, void *hGraph, const void *dependencies, const void *data, size_t count,
		      const void *params);
int cuGraphDestroyNode(void *hNode);
int cuGraphKernelNodeSetParams_v2(void *hNode, const void *nodeParams);
int cuGraphExecKernelNodeSetParams_v2(void *hGraphExec, void *hNode, const void *nodeParams);
int cuGraphExecChildGraphNodeSetParams(void *hGraphExec, void *hNode, void *childGraph);
int cuGraphNodeSetEnabled(void *hGraphExec, void *hNode, unsigned int isEnabled);
int cuStreamGetCaptureInfo_v2(void *hStream, int *captureStatus_out, uint64_t *id_out, void **graph_out,
			      const void **dependencies_out, size_t *numDependencies_out);

#endif
