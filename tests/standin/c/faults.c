#include "faults.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_RULES 32
#define SPIN_LIMIT_US 50

struct rule {
	char function[80];
	int code;
	unsigned long every, delay_us, after_us, calls;
};

int faults_state = FAULTS_UNKNOWN;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct rule rules[MAX_RULES];
static unsigned int rule_count;

/* Takes "name:" off the text; NULL where there is none. */
static const char *take_name(const char *text, struct rule *rule)
{
	size_t length = strcspn(text, ":,");

	if (text[length] != ':' || length >= sizeof(rule->function))
		return NULL;
	memcpy(rule->function, text, length);
	return text + length + 1;
}

enum meaning { FAIL, DELAY, DELAY_AFTER };

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
	parse(getenv("STANDIN_FAIL"), FAIL);
	parse(getenv("STANDIN_DELAY"), DELAY);
	parse(getenv("STANDIN_DELAY_AFTER"), DELAY_AFTER);
	__atomic_store_n(&faults_state, rule_count ? FAULTS_ON : FAULTS_OFF, __ATOMIC_RELEASE);
}

int faults_load(void)
{
	pthread_once(&once, load);
	return faults_state;
}

static void wait_us(unsigned long us)
{
	struct timespec start, now, left = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

	if (us > SPIN_LIMIT_US) {
		while (nanosleep(&left, &left))
			;
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < (long)us * 1000);
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
