/*
 * Stands in for gpuprobe, without BPF: a library that the stand-in driver loads in place of the agent. It
 * loads the agent, writes its semaphores as the Linux kernel would, and has every batch written to a file.
 *
 *   TAP_AGENT    the agent's file, or several, separated by colons
 *   TAP_OUTPUT   gets each batch after its length, four bytes
 *   TAP_BEFORE   semaphores that are set before the agent is initialized, such as collect,nodes
 *   TAP_ANSWER   if set, the program waits after the agent is initialized until it has sent something
 *   TAP_STEPS    what happens later: 200:collect:1,500:collect:0 are milliseconds to wait, a semaphore and
 *                its value
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static void *agents[4];
static unsigned int agent_count;
static int output = -1;
static volatile int has_sent;

/* What the probed function does instead. */
static void write_batch(const void *batch, size_t length)
{
	uint32_t bytes = (uint32_t)length;
	struct iovec parts[2] = {{&bytes, sizeof(bytes)}, {(void *)batch, length}};

	if (writev(output, parts, 2) != (ssize_t)(sizeof(bytes) + length))
		abort();
	has_sent = 1;
}

/* Writes a jump over the beginning of the function, where a breakpoint would be. */
static void replace(void *function)
{
#if defined(__x86_64__)
	unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
	size_t address_at = 2;
#else
	unsigned char jump[16] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6};
	size_t address_at = 8;
#endif
	uintptr_t target = (uintptr_t)write_batch, page = (uintptr_t)function & ~(uintptr_t)4095;

	memcpy(jump + address_at, &target, sizeof(target));
	if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
		abort();
	memcpy(function, jump, sizeof(jump));
	__builtin___clear_cache((char *)function, (char *)function + sizeof(jump));
}

static void set(const char *name, size_t length, int value)
{
	char symbol[80];

	snprintf(symbol, sizeof(symbol), "gpuprobe_agent_%.*s_semaphore", (int)length, name);
	for (unsigned int i = 0; i < agent_count; i++) {
		uint16_t *semaphore = dlsym(agents[i], symbol);

		if (!semaphore)
			abort();
		__atomic_store_n(semaphore, (uint16_t)value, __ATOMIC_SEQ_CST);
	}
}

static void *run_steps(void *steps)
{
	char *at = steps;

	while (*at) {
		unsigned long wait_ms = strtoul(at, &at, 10);
		char *name = at + 1;
		size_t length = strcspn(name, ":");

		usleep((useconds_t)wait_ms * 1000);
		set(name, length, (int)strtol(name + length + 1, &at, 10));
		at += *at == ',';
	}
	return NULL;
}

static void load(char *files)
{
	for (char *file = strtok(files, ":"); file && agent_count < 4; file = strtok(NULL, ":")) {
		void *agent = dlopen(file, RTLD_NOW | RTLD_LOCAL);

		if (!agent) {
			fprintf(stderr, "%s\n", dlerror());
			abort();
		}
		replace(dlsym(agent, "gpuprobe_agent_emit"));
		agents[agent_count++] = agent;
	}
}

/* Loads everything, once. */
static void prepare(void)
{
	const char *before = getenv("TAP_BEFORE"), *steps = getenv("TAP_STEPS");
	pthread_t thread;

	output = open(getenv("TAP_OUTPUT"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	load(strdup(getenv("TAP_AGENT")));
	while (before && *before) {
		size_t length = strcspn(before, ",");

		set(before, length, 1);
		before += length + (before[length] == ',');
	}
	if (steps)
		pthread_create(&thread, NULL, run_steps, strdup(steps));
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

int InitializeInjection(void)
{
	int result = 1;

	pthread_once(&once, prepare);
	for (unsigned int i = 0; i < agent_count; i++) {
		int (*initialize)(void) = (int (*)(void))dlsym(agents[i], "InitializeInjection");

		result &= initialize() == 1;
	}
	/* ten seconds at most */
	for (int ms = 0; getenv("TAP_ANSWER") && !has_sent && ms < 10000; ms++)
		usleep(1000);
	return result;
}

int InitializeInjectionNvtx2(void *tables)
{
	int (*initialize)(void *);

	pthread_once(&once, prepare);
	initialize = (int (*)(void *))dlsym(agents[0], "InitializeInjectionNvtx2");
	return initialize(tables);
}
