/*
 * recursion [DEPTH]: host functions that call CUDA again, each inside the last, DEPTH levels deep (default
 * 5). A level makes one cudaMalloc, one cudaLaunchHostFunc (except the last) and one cudaFree. Prints
 * {"pid","depth","calls",...}.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_api.h"

static int depth = 5, failed;

static void level(void *argument)
{
	int number = *(int *)argument, next = number + 1;
	void *block;

	failed |= cudaMalloc(&block, 100 * (size_t)number);
	if (number < depth)
		failed |= cudaLaunchHostFunc(NULL, level, &next);
	failed |= cudaFree(block);
}

int main(int count, char **words)
{
	int first = 1;

	if (count > 1)
		depth = atoi(words[1]);
	failed |= cudaLaunchHostFunc(NULL, level, &first);
	printf("{\"pid\":%d,\"depth\":%d,\"calls\":{\"cudaLaunchHostFunc\":%d,\"cudaMalloc\":%d,\"cudaFree\":"
	       "%d},"
	       "\"live\":0,\"live_bytes\":0}\n",
	       (int)getpid(), depth, depth, depth, depth);
	return failed;
}
