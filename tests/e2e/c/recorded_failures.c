/* Calls the runtime of recording_runtime.S: first so that every call succeeds, then so that calls fail. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define ROUNDS 500
#define THREADS 2

int cudaMalloc(void **, unsigned long);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, unsigned long, int);
int cudaMemsetAsync(void *, int, unsigned long, void *);
int cuMemFree_v2(unsigned long);
int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);

static void *not_allocated = (void *)0x1234;
static void *context;

static void prepare(void)
{
	cuInit(0);
	cuDevicePrimaryCtxRetain(&context, 0);
	cuCtxSetCurrent(context);
}

/* a call of the CUDA driver that fails, far down on the stack */
static __attribute__((noinline)) int fail_below(void)
{
	volatile char deeper[4096];

	deeper[0] = 0;
	return cuMemFree_v2((unsigned long)not_allocated) + deeper[0];
}

static int succeed(void)
{
	int wrong = 0;
	void *p;

	for (int i = 0; i < ROUNDS; i++) {
		wrong += !!cudaMalloc(&p, 256);
		wrong += !!cudaMemcpy(p, &p, 8, 1);
		wrong += !!cudaMemsetAsync(p, 0, 8, NULL);
		wrong += !!cudaFree(p);
	}
	return wrong;
}

static void *fail(void *unused)
{
	long wrong = 0;

	(void)unused;
	cuCtxSetCurrent(context);
	for (int i = 0; i < ROUNDS; i++) {
		/* in the runtime */
		wrong += cudaMalloc(NULL, 16) != 1;
		wrong += cudaMemcpy(NULL, NULL, 8, 1) != 1;
		/* in the CUDA driver, through the runtime */
		wrong += cudaFree(not_allocated) != 1;
		/* in the CUDA driver, without the runtime, and then in the runtime */
		wrong += fail_below() != 1;
		wrong += cudaMemsetAsync(NULL, 0, 8, NULL) != 1;
		/* twice in the runtime after a failure in the CUDA driver */
		wrong += cudaFree(not_allocated) != 1;
		wrong += cudaFree(NULL) != 1;
		wrong += cudaFree(NULL) != 1;
	}
	return (void *)wrong;
}

static void report(long wrong)
{
	printf("{\"pid\": %d, \"wrong\": %ld, \"rounds\": %d}\n", getpid(), wrong, ROUNDS * THREADS);
	fflush(stdout);
	getchar();
}

int main(void)
{
	pthread_t threads[THREADS];
	long wrong = 0;

	report(0);
	prepare();
	report(succeed());
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, fail, NULL);
	for (int i = 0; i < THREADS; i++) {
		void *of_thread;

		pthread_join(threads[i], &of_thread);
		wrong += (long)of_thread;
	}
	report(wrong);
	return 0;
}
