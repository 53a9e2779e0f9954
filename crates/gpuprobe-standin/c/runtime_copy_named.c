/* Copies of the stand-in runtime to and from symbols and arrays: arguments are passed on, no bytes move. */
#include "runtime_copy.h"

int impl_cudaMemcpyToSymbol(const void *symbol, const void *from, size_t count, size_t offset, int kind)
{
	char *to = (char *)symbol + offset;

	ENTER(cudaMemcpyToSymbol);
	switch (kind) {
	case COPY_H2D:
		return runtime_done(inner.cudaMemcpyToSymbol_H2D(to, from, count));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyToSymbol_D2D(to, from, count));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyToSymbol_Default(to, from, count));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t count, size_t offset, int kind,
				 void *stream)
{
	char *to = (char *)symbol + offset;

	ENTER(cudaMemcpyToSymbolAsync);
	switch (kind) {
	case COPY_H2D:
		return runtime_done(inner.cudaMemcpyToSymbolAsync_H2D(to, from, count, stream));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyToSymbolAsync_D2D(to, from, count, stream));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyToSymbolAsync_Default(to, from, count, stream));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyFromSymbol(void *to, const void *symbol, size_t count, size_t offset, int kind)
{
	const char *from = (const char *)symbol + offset;

	ENTER(cudaMemcpyFromSymbol);
	switch (kind) {
	case COPY_D2H:
		return runtime_done(inner.cudaMemcpyFromSymbol_D2H(to, from, count));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyFromSymbol_D2D(to, from, count));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyFromSymbol_Default(to, from, count));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t count, size_t offset, int kind,
				   void *stream)
{
	const char *from = (const char *)symbol + offset;

	ENTER(cudaMemcpyFromSymbolAsync);
	switch (kind) {
	case COPY_D2H:
		return runtime_done(inner.cudaMemcpyFromSymbolAsync_D2H(to, from, count, stream));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyFromSymbolAsync_D2D(to, from, count, stream));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyFromSymbolAsync_Default(to, from, count, stream));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

/* A rectangle with an array as source, destination or both. */
static struct CUDA_MEMCPY2D into_array(void *array, size_t x, size_t y, const void *from, size_t pitch,
				       size_t width, size_t height, int kind)
{
	struct CUDA_MEMCPY2D copy = rectangle(NULL, 0, from, pitch, width, height, kind);

	copy.dstMemoryType = MEMORY_ARRAY;
	copy.dstArray = array;
	copy.dstXInBytes = x;
	copy.dstY = y;
	return copy;
}

static struct CUDA_MEMCPY2D out_of_array(void *to, size_t pitch, const void *array, size_t x, size_t y,
					 size_t width, size_t height, int kind)
{
	struct CUDA_MEMCPY2D copy = rectangle(to, pitch, NULL, 0, width, height, kind);

	copy.srcMemoryType = MEMORY_ARRAY;
	copy.srcArray = (void *)array;
	copy.srcXInBytes = x;
	copy.srcY = y;
	return copy;
}

int impl_cudaMemcpyToArray(void *array, size_t x, size_t y, const void *from, size_t count, int kind)
{
	struct CUDA_MEMCPY2D copy = into_array(array, x, y, from, count, count, 1, kind);

	ENTER(cudaMemcpyToArray);
	switch (kind) {
	case COPY_H2D:
		return runtime_done(inner.cudaMemcpyToArray_H2D(array, x, from, count));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyToArray_D2D(array, x, from, count));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyToArray_Default(&copy));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t count, int kind,
				void *stream)
{
	struct CUDA_MEMCPY2D copy = into_array(array, x, y, from, count, count, 1, kind);

	ENTER(cudaMemcpyToArrayAsync);
	switch (kind) {
	case COPY_H2D:
		return runtime_done(inner.cudaMemcpyToArrayAsync_H2D(array, x, from, count, stream));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyToArrayAsync_D2D(&copy, stream));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyToArrayAsync_Default(&copy, stream));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyFromArray(void *to, const void *array, size_t x, size_t y, size_t count, int kind)
{
	struct CUDA_MEMCPY2D copy = out_of_array(to, count, array, x, y, count, 1, kind);

	ENTER(cudaMemcpyFromArray);
	switch (kind) {
	case COPY_D2H:
		return runtime_done(inner.cudaMemcpyFromArray_D2H(to, array, x, count));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyFromArray_D2D(to, array, x, count));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyFromArray_Default(&copy));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyFromArrayAsync(void *to, const void *array, size_t x, size_t y, size_t count, int kind,
				  void *stream)
{
	struct CUDA_MEMCPY2D copy = out_of_array(to, count, array, x, y, count, 1, kind);

	ENTER(cudaMemcpyFromArrayAsync);
	switch (kind) {
	case COPY_D2H:
		return runtime_done(inner.cudaMemcpyFromArrayAsync_D2H(to, array, x, count, stream));
	case COPY_D2D:
		return runtime_done(inner.cudaMemcpyFromArrayAsync_D2D(&copy, stream));
	case COPY_DEFAULT:
		return runtime_done(inner.cudaMemcpyFromArrayAsync_Default(&copy, stream));
	}
	return runtime_done(cudaErrorInvalidMemcpyDirection);
}

int impl_cudaMemcpyArrayToArray(void *to, size_t to_x, size_t to_y, const void *from, size_t from_x,
				size_t from_y, size_t count, int kind)
{
	(void)to_y;
	(void)from_y;
	(void)kind;
	ENTER(cudaMemcpyArrayToArray);
	return runtime_done(inner.cudaMemcpyArrayToArray(to, to_x, from, from_x, count));
}

int impl_cudaMemcpy2DToArray(void *array, size_t x, size_t y, const void *from, size_t pitch, size_t width,
			     size_t height, int kind)
{
	struct CUDA_MEMCPY2D copy = into_array(array, x, y, from, pitch, width, height, kind);

	ENTER(cudaMemcpy2DToArray);
	return runtime_done(inner.cudaMemcpy2DToArray(&copy));
}

int impl_cudaMemcpy2DToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t pitch,
				  size_t width, size_t height, int kind, void *stream)
{
	struct CUDA_MEMCPY2D copy = into_array(array, x, y, from, pitch, width, height, kind);

	ENTER(cudaMemcpy2DToArrayAsync);
	return runtime_done(inner.cudaMemcpy2DToArrayAsync(&copy, stream));
}

int impl_cudaMemcpy2DFromArray(void *to, size_t pitch, const void *array, size_t x, size_t y, size_t width,
			       size_t height, int kind)
{
	struct CUDA_MEMCPY2D copy = out_of_array(to, pitch, array, x, y, width, height, kind);

	ENTER(cudaMemcpy2DFromArray);
	return runtime_done(inner.cudaMemcpy2DFromArray(&copy));
}

int impl_cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, const void *array, size_t x, size_t y,
				    size_t width, size_t height, int kind, void *stream)
{
	struct CUDA_MEMCPY2D copy = out_of_array(to, pitch, array, x, y, width, height, kind);

	ENTER(cudaMemcpy2DFromArrayAsync);
	return runtime_done(inner.cudaMemcpy2DFromArrayAsync(&copy, stream));
}

int impl_cudaMemcpy2DArrayToArray(void *to, size_t to_x, size_t to_y, const void *from, size_t from_x,
				  size_t from_y, size_t width, size_t height, int kind)
{
	struct CUDA_MEMCPY2D copy = out_of_array(NULL, 0, from, from_x, from_y, width, height, kind);

	copy.dstMemoryType = MEMORY_ARRAY;
	copy.dstArray = to;
	copy.dstXInBytes = to_x;
	copy.dstY = to_y;
	ENTER(cudaMemcpy2DArrayToArray);
	return runtime_done(inner.cudaMemcpy2DArrayToArray(&copy));
}
