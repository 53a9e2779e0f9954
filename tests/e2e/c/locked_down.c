/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Waits for a stream in a process that may make no system calls but those of the wait: any other one kills
 * it. It cannot get privileges, and no ordinary user may read its memory. Prints its pid first.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number)                                                                                        \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int cuInit(unsigned int flags);
int cuStreamSynchronize(void *stream);

int main(void)
{
	struct sock_filter filter[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    ALLOW(SYS_futex),
	    ALLOW(SYS_clock_gettime),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};

	cuInit(0);
	printf("%d\n", getpid());
	fflush(stdout);
	if (prctl(PR_SET_DUMPABLE, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 1;
	return cuStreamSynchronize(NULL);
}
