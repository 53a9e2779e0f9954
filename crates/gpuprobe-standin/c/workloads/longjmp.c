/*
 * longjmp [N]: N calls (default 3) that never return, because a host function leaves them by longjmp, then
 * calls that do. Prints {"pid","abandoned","calls",...}; `calls` has only those that returned.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_api.h"

static jmp_buf out;

static void leave(void *unused)
{
	(void)unused;
	longjmp(out, 1);
}

int main(int count, char **words)
{
	int times = count > 1 ? atoi(words[1]) : 3;
	static volatile int done;
	static int result;
	void *block;

	for (done = 0; done < times; done++) {
		if (!setjmp(out))
			cudaLaunchHostFunc(NULL, leave, NULL);
	}
	for (int i = 0; i < 10; i++) {
		result |= cudaMalloc(&block, 3000);
		if (i < 9)
			result |= cudaFree(block);
	}
	printf("{\"pid\":%d,\"abandoned\":{\"cudaLaunchHostFunc\":%d},\"calls\":{\"cudaMalloc\":10,"
	       "\"cudaFree\":9},"
	       "\"live\":1,\"live_bytes\":3000}\n",
	       (int)getpid(), times);
	return result;
}
