// A fake NVML that stands for an attacker's code in the daemon: it tries system calls that a daemon never
// makes and writes a line for each: its name and errno, 0 if it succeeded.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(FILE *to, const char *name, long done)
{
	fprintf(to, "%s %d\n", name, done < 0 ? errno : 0);
}

// In a child process, because it replaces the process if it succeeds.
static int executed(void)
{
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		char *const words[] = {"/bin/true", NULL};
		execv(words[0], words);
		_exit(errno);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int in_child(long (*attempt)(void))
{
	int status = 0;
	pid_t child = fork();
	if (child == 0)
		_exit(attempt() < 0 ? errno : 0);
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static long leave_users(void)
{
	return unshare(CLONE_NEWUSER);
}
static long be_traced(void)
{
	return ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

__attribute__((constructor)) static void attack(void)
{
	const char *path = getenv("HOSTILE_RESULTS");
	FILE *to = path ? fopen(path, "w") : NULL;
	if (!to)
		return;
	fprintf(to, "execve %d\n", executed());
	fprintf(to, "unshare %d\n", in_child(leave_users));
	fprintf(to, "ptrace %d\n", in_child(be_traced));
	say(to, "kill", kill(getppid(), 0));
	say(to, "personality", syscall(SYS_personality, 0xffffffff));
	say(to, "add_key", syscall(SYS_add_key, "user", "gpuprobe-test", "x", 1, -1));
	say(to, "setuid", syscall(SYS_setuid, getuid()));
	say(to, "socket", socket(AF_VSOCK, SOCK_STREAM, 0));
	say(to, "bpf", syscall(SYS_bpf, 5, NULL, 0));
	void *page = mmap(NULL, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say(to, "mmap", page == MAP_FAILED ? -1 : 0);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say(to, "mprotect", mprotect(page, 4096, PROT_READ | PROT_EXEC));
	// system calls that NVML makes
	say(to, "open", open("/dev/null", O_RDWR));
	say(to, "unix", socket(AF_UNIX, SOCK_STREAM, 0));
	fprintf(to, "end 0\n");
	fclose(to);
}
