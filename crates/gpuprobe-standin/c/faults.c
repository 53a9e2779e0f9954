#include "faults.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#define MAX_RULES 32
#define SPIN_LIMIT_US 50

struct rule {
	char function[80];
	int code;
	unsigned long every, delay_us, spin_us, wait_us, poll_us, after_us, calls;
	enum { NO_IOCTLS, VALID_IOCTLS, INVALID_IOCTLS } ioctls;
};

int faults_state = FAULTS_UNKNOWN;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct rule rules[MAX_RULES];
static unsigned int rule_count;
static int control = -1, null = -1;

/* Reads "name:" at the start of the text; NULL if it is not there. */
static const char *take_name(const char *text, struct rule *rule)
{
	size_t length = strcspn(text, ":,");

	if (text[length] != ':' || length >= sizeof(rule->function))
		return NULL;
	memcpy(rule->function, text, length);
	return text + length + 1;
}

/* Reads "name" or "name:bad", the functions that make ioctls on the kernel module's device. */
static void parse_ioctls(const char *text)
{
	while (text && *text && rule_count < MAX_RULES) {
		struct rule rule = {.every = 1, .ioctls = VALID_IOCTLS};
		size_t length = strcspn(text, ":,");

		if (text[length] == ':')
			rule.ioctls = INVALID_IOCTLS;
		if (length && length < sizeof(rule.function)) {
			memcpy(rule.function, text, length);
			rules[rule_count++] = rule;
		}
		text = strchr(text, ',');
		if (text)
			text++;
	}
	if (!rule_count)
		return;
	control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
}

enum meaning { FAIL, DELAY, DELAY_AFTER, SPIN, WAIT, POLL };

static void parse(const char *text, enum meaning meaning)
{
	while (text && *text && rule_count < MAX_RULES) {
		struct rule rule = {.every = 1};
		const char *rest = take_name(text, &rule);
		char *end = NULL;

		if (rest && meaning == DELAY) {
			rule.delay_us = strtoul(rest, &end, 10);
		} else if (rest && meaning == DELAY_AFTER) {
			rule.after_us = strtoul(rest, &end, 10);
		} else if (rest && meaning == SPIN) {
			rule.spin_us = strtoul(rest, &end, 10);
		} else if (rest && meaning == WAIT) {
			rule.wait_us = strtoul(rest, &end, 10);
		} else if (rest && meaning == POLL) {
			rule.poll_us = strtoul(rest, &end, 10);
		} else if (rest) {
			rule.code = (int)strtol(rest, &end, 10);
			if (*end == ':')
				rule.every = strtoul(end + 1, &end, 10);
		}
		if (rest && rule.every)
			rules[rule_count++] = rule;
		text = strchr(text, ',');
		if (text)
			text++;
	}
}

static void load(void)
{
	parse_ioctls(getenv("STANDIN_IOCTL"));
	parse(getenv("STANDIN_FAIL"), FAIL);
	parse(getenv("STANDIN_DELAY"), DELAY);
	parse(getenv("STANDIN_DELAY_AFTER"), DELAY_AFTER);
	parse(getenv("STANDIN_SPIN"), SPIN);
	parse(getenv("STANDIN_WAIT"), WAIT);
	parse(getenv("STANDIN_POLL"), POLL);
	__atomic_store_n(&faults_state, rule_count ? FAULTS_ON : FAULTS_OFF, __ATOMIC_RELEASE);
}

int faults_load(void)
{
	pthread_once(&once, load);
	return faults_state;
}

/* Frames of different sizes come and go while it spins, as they do in libcuda: a stack that is copied
 * meanwhile does not fit to registers that were saved before. */
__attribute__((noinline)) static unsigned long look(unsigned long seed)
{
	volatile unsigned char seen[64];

	for (unsigned int i = 0; i < sizeof(seen); i++)
		seen[i] = (unsigned char)(seed + i);
	return seen[seed % sizeof(seen)];
}

__attribute__((noinline)) static unsigned long look_twice(unsigned long seed)
{
	volatile unsigned char seen[200];

	seen[seed % sizeof(seen)] = 1;
	return look(seed * 3) + look(seed ^ 5) + seen[seed % sizeof(seen)];
}

__attribute__((noinline)) static unsigned long look_deeper(unsigned long seed)
{
	volatile unsigned char seen[1000];

	seen[seed % sizeof(seen)] = 1;
	return look_twice(seed + 1) + look(seed + 2) + seen[seed % sizeof(seen)];
}

static void spin_us(unsigned long us)
{
	struct timespec start, now;
	unsigned long seed = us;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		seed += look_deeper(seed);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < (long)us * 1000);
}

static void wait_us(unsigned long us)
{
	struct timespec left = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

	if (us <= SPIN_LIMIT_US)
		return spin_us(us);
	while (nanosleep(&left, &left))
		;
}

/* Waits for a condition that never comes. */
static void wait_for_condition_us(unsigned long us)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(us / 1000000);
	pthread_mutex_lock(&mutex);
	while (!pthread_cond_timedwait(&condition, &mutex, &until))
		;
	pthread_mutex_unlock(&mutex);
}

/* The ioctls that libcuda makes for an allocation, with the argument structs of the public headers. */
static void make_ioctls(void)
{
	struct {
		uint32_t root, parent, object, class;
		uint64_t parameters, rights;
		uint32_t bytes, flags, status, reserved;
	} alloc = {1, 2, 3, 0x40, 0, 0, 0, 0, 0, 0};
	struct {
		uint32_t client, object, command, flags;
		uint64_t parameters;
		uint32_t bytes, status;
	} command = {1, 3, 0x20800102, 0, 0, 0, 0};
	struct {
		uint32_t root, parent, object, status;
	} release = {1, 2, 3, 0};

	ioctl(control, _IOWR('F', 0x2b, alloc), &alloc);
	ioctl(control, _IOWR('F', 0x2a, command), &command);
	ioctl(control, _IOWR('F', 0x29, release), &release);
}

/* An unmapped argument, an unknown request, and a request to another device. */
static void make_invalid_ioctls(void)
{
	ioctl(control, 0xc020462aUL, (void *)1);
	ioctl(control, 0xdeadbeefUL, NULL);
	ioctl(null, 0xc020462aUL, NULL);
}

int faults_apply(const char *function)
{
	int code = 0;

	for (unsigned int i = 0; i < rule_count; i++) {
		struct rule *rule = &rules[i];
		unsigned long call;

		if (strcmp(rule->function, function))
			continue;
		if (rule->delay_us)
			wait_us(rule->delay_us);
		if (rule->spin_us)
			spin_us(rule->spin_us);
		if (rule->wait_us)
			wait_for_condition_us(rule->wait_us);
		if (rule->poll_us)
			poll(NULL, 0, (int)(rule->poll_us / 1000));
		if (rule->ioctls == VALID_IOCTLS)
			make_ioctls();
		else if (rule->ioctls == INVALID_IOCTLS)
			make_invalid_ioctls();
		call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_RELAXED);
		if (rule->code && call % rule->every == 0)
			code = rule->code;
	}
	return code;
}

void faults_wait_after(const char *function)
{
	for (unsigned int i = 0; i < rule_count; i++) {
		if (rules[i].after_us && !strcmp(rules[i].function, function))
			wait_us(rules[i].after_us);
	}
}
