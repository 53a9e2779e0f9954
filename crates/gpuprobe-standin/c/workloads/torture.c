/*
 * Every family of GPU memory in random order, by many threads, and an exact ledger of it as JSON on stdout.
 *
 *   torture [--threads N] [--operations N] [--seed N] [--devices N] [--wait] [--pauses K [--pause-file PATH]]
 *           [--without contexts,primary,reset,vmm,arrays,fork,faults] [--delay-after FUNCTION:US,...]
 *
 * --wait prints {"ready":true,...} before the first call and waits for a line on stdin. At each of K pauses
 * all threads are parked with no call open, {"ledger":"snapshot",...} is printed, and it continues after a
 * line on stdin or once --pause-file exists (it is then removed). Every third pause resets a device first.
 * The middle one forks a child first, which prints {"ledger":"child",...} and keeps its live memory until the
 * pause ends. The last line is {"ledger":"final",...}.
 *
 * --delay-after is STANDIN_DELAY_AFTER. "memory" is by kind, "devices" by device and kind; "ended" is what
 * was freed by the end of its context. "unknown_frees" were refused by the driver, and are included in
 * "failed_frees". "calls" and "errors" are those of the driver's functions.
 */
#include "torture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_TOTAL_BYTES (80ULL << 30)

struct options options = {.threads = 16, .operations = 100000, .seed = 1, .devices = 2, .parts = PARTS};
struct scope scopes[SCOPES];

static struct worker *workers, main_worker;
static pthread_barrier_t parked, released;

/* Injected failures, at intervals that are prime numbers, so that they rarely coincide. */
static const char faults[] =
    "cuMemAlloc_v2:2:997,cuMemAllocManaged:2:211,cuMemHostAlloc:2:223,cuMemAllocAsync:2:199,"
    "cuArrayCreate_v2:2:97,cuMemFree_v2:719:887,cuMemFreeAsync:719:401,cuMemFreeHost:719:307,"
    "cuArrayDestroy:719:101,cuMipmappedArrayDestroy:719:103,cuMemHostUnregister:719:107,cuMemCreate:2:109,"
    "cuMemRelease:719:113,cuMemMap:719:127,cuMemUnmap:719:131,cuMemRetainAllocationHandle:719:137,"
    "cuCtxCreate_v2:2:13,cuCtxDestroy_v2:719:7,cuCtxPushCurrent_v2:201:503,cuCtxSetCurrent:201:509,"
    "cuDevicePrimaryCtxRelease_v2:719:11";

void must(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "torture: not so: %s\n", what);
	exit(1);
}

static void step(struct worker *w)
{
	unsigned long choice = random_below(w, 100);

	if (choice < 15 && options.parts & PART_CONTEXTS)
		context_step(w);
	else if (choice < 22 && options.parts & PART_PRIMARY)
		primary_step(w);
	else if (choice < 35 && options.parts & PART_VMM)
		vmm_step(w);
	else if (choice < 39)
		misuse(w, &scopes[w->device]);
	else if (choice < 41)
		choose_device(w, (int)random_below(w, (unsigned long)options.devices));
	else
		allocate_or_free(w, &scopes[w->device]);
}

static void until_chosen(struct worker *w, int device)
{
	w->device = -1;
	while (w->device != device)
		choose_device(w, device);
}

static void *run(void *argument)
{
	struct worker *worker = argument;
	unsigned long share = worker->budget / (options.pauses + 1);

	until_chosen(worker, (int)random_below(worker, (unsigned long)options.devices));
	for (unsigned int pause = 0; pause < options.pauses; pause++) {
		for (unsigned long i = 0; i < share; i++)
			step(worker);
		pthread_barrier_wait(&parked);
		pthread_barrier_wait(&released);
	}
	for (unsigned long i = share * options.pauses; i < worker->budget; i++)
		step(worker);
	return NULL;
}

/* The free memory that the driver reports agrees with the ledger. */
static void check(const struct totals *sum)
{
	for (int device = 0; device < options.devices; device++) {
		size_t free_bytes, total;

		until_chosen(&main_worker, device);
		must(!cudaMemGetInfo(&free_bytes, &total), "the driver reports free memory");
		must(DEVICE_TOTAL_BYTES - free_bytes == device_bytes(sum, device),
		     "the ledger agrees with the driver");
	}
}

static void print(const char *ledger, unsigned int snapshot)
{
	struct totals sum = {0};

	for (unsigned int i = 0; i < options.threads; i++)
		add_totals(&sum, &workers[i].totals);
	check(&sum);
	add_totals(&sum, &main_worker.totals);
	print_totals(stdout, &sum, ledger, snapshot);
}

static void wait_for_line(void)
{
	int c;

	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

static void wait_to_go_on(void)
{
	const struct timespec look = {0, 10000000};

	if (!options.pause_file)
		return wait_for_line();
	while (access(options.pause_file, F_OK))
		nanosleep(&look, NULL);
	unlink(options.pause_file);
}

/* Ends everything in the primary context of a device while no other call is made. */
static void reset(int device)
{
	/* on behalf of a parked worker, so that the totals of the devices stay with the workers */
	struct worker *w = &workers[0];

	until_chosen(&main_worker, device);
	if (!CALL(&main_worker, cuDevicePrimaryCtxReset_v2, cudaDeviceReset()))
		end_all(w, &scopes[device]);
}

/* A child has none of its parent's live memory, and its own ledger. */
static void be_child(int go_on_pipe, int ready)
{
	static struct totals none;
	char c;

	/* the scopes are copies of the parent's, and so is the memory in them */
	for (int i = 0; i < SCOPES; i++)
		scopes[i].count = 0;
	main_worker.totals = none;
	main_worker.random = options.seed * 0x9e3779b97f4a7c15UL + 99;
	CALL(&main_worker, cuDevicePrimaryCtxRetain, 0);
	until_chosen(&main_worker, 0);
	for (int i = 0; i < 300; i++)
		allocate_or_free(&main_worker, &scopes[0]);
	print_totals(stdout, &main_worker.totals, "child", 0);
	must(write(ready, "", 1) == 1, "the parent is notified");
	must(read(go_on_pipe, &c, 1) == 0, "the parent continues");
	_exit(0);
}

static pid_t fork_child(int *go_on)
{
	int go_on_pipe[2], ready[2];
	char c;
	pid_t pid;

	must(!pipe(go_on_pipe) && !pipe(ready), "pipes");
	pid = fork();
	must(pid >= 0, "fork");
	if (!pid) {
		close(go_on_pipe[1]);
		be_child(go_on_pipe[0], ready[1]);
	}
	close(go_on_pipe[0]);
	close(ready[1]);
	must(read(ready[0], &c, 1) == 1, "the child has printed its ledger");
	close(ready[0]);
	*go_on = go_on_pipe[1];
	return pid;
}

static void pause_all(unsigned int pause)
{
	int go_on = -1, status = 0;
	pid_t child = 0;

	if (pause % 3 == 0 && options.parts & PART_RESET)
		reset((int)(pause / 3) % options.devices);
	if (pause == (options.pauses + 1) / 2 && options.parts & PART_FORK)
		child = fork_child(&go_on);
	print("snapshot", pause);
	wait_to_go_on();
	if (child) {
		close(go_on);
		must(waitpid(child, &status, 0) == child && !status, "the child succeeds");
	}
}

static void usage(void)
{
	fprintf(stderr, "usage: torture [--threads N] [--operations N] [--seed N] [--devices N] [--wait] "
			"[--pauses K [--pause-file PATH]] [--without PART,...] "
			"[--delay-after FUNCTION:US,...]\n");
	exit(2);
}

static unsigned int parts_without(const char *names)
{
	static const char *const parts[] = {"contexts", "primary", "reset", "vmm",
					    "arrays",	"fork",	   "faults"};
	unsigned int left = PARTS;

	for (unsigned int i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (strstr(names, parts[i]))
			left &= ~(1u << i);
	}
	return left;
}

static void parse(int count, char **words)
{
	for (int i = 1; i < count; i++) {
		const char *word = words[i], *value = i + 1 < count ? words[i + 1] : NULL;

		if (!strcmp(word, "--wait")) {
			options.wait = 1;
			continue;
		}
		if (!value)
			usage();
		if (!strcmp(word, "--threads"))
			options.threads = (unsigned int)strtoul(value, NULL, 10);
		else if (!strcmp(word, "--operations"))
			options.operations = strtoul(value, NULL, 10);
		else if (!strcmp(word, "--seed"))
			options.seed = strtoul(value, NULL, 10);
		else if (!strcmp(word, "--devices"))
			options.devices = atoi(value);
		else if (!strcmp(word, "--pauses"))
			options.pauses = (unsigned int)strtoul(value, NULL, 10);
		else if (!strcmp(word, "--pause-file"))
			options.pause_file = value;
		else if (!strcmp(word, "--delay-after"))
			setenv("STANDIN_DELAY_AFTER", value, 1);
		else if (!strcmp(word, "--without"))
			options.parts = parts_without(value);
		else
			usage();
		i++;
	}
	/* one more device is used only through the driver */
	if (!options.threads || options.devices < 1 || options.devices >= DEVICES)
		usage();
}

/* From here on the runtime has references to the primary contexts of its devices. */
static void prepare(void)
{
	main_worker.number = options.threads;
	for (int i = 0; i < SCOPES; i++) {
		pthread_rwlock_init(&scopes[i].users, NULL);
		pthread_mutex_init(&scopes[i].lock, NULL);
		scopes[i].device = i < DEVICES ? i : 0;
	}
	for (int device = options.devices - 1; device >= 0; device--) {
		CALL(&main_worker, cuDevicePrimaryCtxRetain, 0);
		must(!CALL(&main_worker, cuCtxSetCurrent, cudaSetDevice(device)), "a device is chosen");
	}
	vmm_prepare();
}

static void start(void)
{
	for (unsigned int i = 0; i < options.threads; i++) {
		struct worker *worker = &workers[i];

		worker->number = i;
		worker->budget =
		    options.operations / options.threads + (i < options.operations % options.threads);
		worker->random = (options.seed + 1) * 0x9e3779b97f4a7c15UL + (i + 1) * 0xbf58476d1ce4e5b9UL;
		must(!pthread_create(&worker->thread, NULL, run, worker), "a thread");
	}
}

int main(int count, char **words)
{
	parse(count, words);
	/* read by the libraries at the first call */
	if (options.parts & PART_FAULTS)
		setenv("STANDIN_FAIL", faults, 0);
	workers = calloc(options.threads, sizeof(*workers));
	must(workers != NULL, "memory");
	if (options.wait) {
		printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
		fflush(stdout);
		wait_for_line();
	}
	prepare();
	pthread_barrier_init(&parked, NULL, options.threads + 1);
	pthread_barrier_init(&released, NULL, options.threads + 1);
	start();
	for (unsigned int pause = 1; pause <= options.pauses; pause++) {
		pthread_barrier_wait(&parked);
		pause_all(pause);
		pthread_barrier_wait(&released);
	}
	for (unsigned int i = 0; i < options.threads; i++)
		pthread_join(workers[i].thread, NULL);
	print("final", 0);
	return 0;
}
