/*
 * forker [CHILDREN [PROGRAM]]: a parent that makes calls, and forks children that make calls (default 3), one
 * of which then executes this program again, or another one. Every process prints its own line
 * {"process","pid","parent","calls","live","live_bytes"}. A child does not have the live memory of its
 * parent, and an exec drops the live memory of the process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_api.h"

static int failed;

static void make_calls(int allocations, int frees, size_t size)
{
	void *blocks[32];

	for (int i = 0; i < allocations; i++)
		failed |= cudaMalloc(&blocks[i], size);
	for (int i = 0; i < frees; i++)
		failed |= cudaFree(blocks[i]);
}

static void print(const char *process, int allocations, int frees, size_t size)
{
	printf("{\"process\":\"%s\",\"pid\":%d,\"parent\":%d,\"calls\":{\"cudaMalloc\":%d,\"cudaFree\":%d},"
	       "\"live\":%d,"
	       "\"live_bytes\":%zu}\n",
	       process, (int)getpid(), (int)getppid(), allocations, frees, allocations - frees,
	       (size_t)(allocations - frees) * size);
	fflush(stdout);
}

static int child(int number, char **words)
{
	const char *other = words[1] ? words[2] : NULL;

	make_calls(10, 9, 5000);
	print("child", 10, 9, 5000);
	if (number == 0) {
		if (other)
			execl(other, other, (char *)NULL);
		else
			execl("/proc/self/exe", words[0], "--executed", (char *)NULL);
		return 1;
	}
	return failed;
}

int main(int count, char **words)
{
	int children = count > 1 ? atoi(words[1]) : 3;

	if (count > 1 && !strcmp(words[1], "--executed")) {
		make_calls(5, 2, 600);
		print("executed", 5, 2, 600);
		return failed;
	}
	make_calls(4, 1, 1000);
	for (int i = 0; i < children; i++) {
		pid_t pid = fork();

		if (pid < 0)
			return 1;
		if (pid == 0)
			return child(i, words);
	}
	for (int i = 0; i < children; i++) {
		int status;

		if (wait(&status) < 0 || status)
			failed = 1;
	}
	make_calls(1, 1, 1000);
	print("parent", 5, 2, 1000);
	return failed;
}
