#include "stubs.h"
STUB cuCtxSynchronize, impl_cuCtxSynchronize
STUB cuStreamSynchronize, impl_cuStreamSynchronize
STUB cuMemAlloc_v2, impl_cuMemAlloc_v2
STUB cuMemFree_v2, impl_cuMemFree_v2
STUB cuMemAllocHost_v2, impl_cuMemAllocHost_v2
STUB cuMemcpyHtoD_v2, impl_cuMemcpyHtoD_v2
STUB cuLaunchKernel, impl_cuLaunchKernel
