#include "stubs.h"
STUB cuCtxSynchronize, impl_cuCtxSynchronize
STUB cuStreamSynchronize, impl_cuStreamSynchronize
STUB cuMemAlloc_v2, impl_cuMemAlloc_v2
STUB cuMemFree_v2, impl_cuMemFree_v2
