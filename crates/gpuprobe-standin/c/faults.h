/*
 * Errors and delays on demand, from the environment:
 *
 *   STANDIN_FAIL=cudaMalloc:2:10,cuMemFree_v2:1:1
 *       function:code:N: every Nth call returns the code and does nothing
 *
 *   STANDIN_DELAY=cudaMemcpy:100
 *       function:microseconds spent inside each call
 *
 *   STANDIN_SPIN=cuStreamSynchronize:1000000
 *   STANDIN_WAIT=cuStreamSynchronize:1000000
 *   STANDIN_POLL=cuStreamSynchronize:1000000
 *       the same, but the time passes in a loop, in a condition variable, or in the system call poll
 *
 *   STANDIN_DELAY_AFTER=cuMemFree_v2:100
 *       microseconds between the effect of a call and its return, for calls whose effect other threads
 *       can see earlier: frees, and the end of contexts
 *
 *   STANDIN_IOCTL=cuMemAlloc_v2,cuMemFree_v2:bad
 *       each call makes three ioctls on /dev/nvidiactl: RM_ALLOC, RM_CONTROL and RM_FREE; with `bad`, two
 *       invalid ones and one on /dev/null
 *
 * Read once, at the first call. If none is set, a call costs one load and one branch.
 */
#ifndef STANDIN_FAULTS_H
#define STANDIN_FAULTS_H

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { FAULTS_UNKNOWN, FAULTS_OFF, FAULTS_ON };

extern int faults_state;

/* Reads the environment once; returns FAULTS_OFF or FAULTS_ON. */
int faults_load(void);

/* Waits and returns the code that the rules demand; 0 if the call is to continue. */
int faults_apply(const char *function);

/* Waits as long as the rules demand. */
void faults_wait_after(const char *function);

static inline void faults_leave(const char *function)
{
	if (UNLIKELY(__atomic_load_n(&faults_state, __ATOMIC_RELAXED) == FAULTS_ON))
		faults_wait_after(function);
}

static inline int faults_enter(const char *function)
{
	if (LIKELY(__atomic_load_n(&faults_state, __ATOMIC_ACQUIRE) == FAULTS_OFF))
		return 0;
	return faults_load() == FAULTS_ON ? faults_apply(function) : 0;
}

#endif
