/*
 * The fields of the stand-in NVML, and what it reports about faulty memory, NVLinks and video engines. The
 * first device has two NVLinks, of which the second is down; the second device supports nothing of this.
 */
#include "nvml.h"

enum { LINKS = 2 };

/* a field of the first device; the scope is the number of an NVLink for fields of NVLinks, and zero for
 * others */
static const struct {
	unsigned int field, scope;
	unsigned long long value;
} FIELDS[] = {
    {82, 0, 52}, /* the temperature of the memory */
    {91, 0, LINKS},
    /* payload in KiB, sent and received, errors (replay, recovery, crc), speed in MB/s */
    {138, 0, 2048},
    {139, 0, 4096},
    {161, 0, 5},
    {162, 0, 6},
    {163, 0, 7},
    {164, 0, 26562},
    /* remapped rows: corrected, uncorrected, pending, failed */
    {142, 0, 3},
    {143, 0, 2},
    {144, 0, 1},
    {145, 0, 0},
};

int impl_nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values)
{
	enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

	ENTER(nvmlDeviceGetFieldValues);
	for (int i = 0; i < count; i++) {
		values[i].result = NOT_SUPPORTED;
		for (unsigned int at = 0; !SECOND(device) && at < sizeof(FIELDS) / sizeof(*FIELDS); at++) {
			if (FIELDS[at].field != values[i].field || FIELDS[at].scope != values[i].scope)
				continue;
			values[i].result = 0;
			values[i].type = values[i].field == 138 ? UNSIGNED_LONG_LONG : UNSIGNED_INT;
			values[i].value.large = FIELDS[at].value;
		}
	}
	return 0;
}

int impl_nvmlDeviceGetNvLinkState(void *device, unsigned int link, int *is_active)
{
	ENTER_FIRST_ONLY(nvmlDeviceGetNvLinkState, device);
	*is_active = link == 0;
	return link < LINKS ? 0 : INVALID_ARGUMENT;
}

/* Two pages because of errors of single bits, none because of others. */
static int pages(int cause, unsigned int *count, unsigned long long *addresses)
{
	unsigned int room = *count, found = cause ? 0 : 2;

	*count = found;
	if (room < found)
		return INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < found; i++)
		addresses[i] = 0x1000 * (i + 1);
	return 0;
}

int impl_nvmlDeviceGetRetiredPages(void *device, int cause, unsigned int *count,
				   unsigned long long *addresses)
{
	ENTER_FIRST_ONLY(nvmlDeviceGetRetiredPages, device);
	return pages(cause, count, addresses);
}

int impl_nvmlDeviceGetRetiredPages_v2(void *device, int cause, unsigned int *count,
				      unsigned long long *addresses, unsigned long long *times)
{
	int result;

	ENTER_FIRST_ONLY(nvmlDeviceGetRetiredPages_v2, device);
	result = pages(cause, count, addresses);
	for (unsigned int i = 0; !result && i < *count; i++)
		times[i] = i;
	return result;
}

READING_OF_FIRST(nvmlDeviceGetRetiredPagesPendingStatus, int, 1)

#define VIDEO_ENGINE(function, percent)                                                                      \
	int impl_##function(void *device, unsigned int *utilization, unsigned int *period_us)                \
	{                                                                                                    \
		ENTER_FIRST_ONLY(function, device);                                                          \
		*utilization = (percent);                                                                    \
		*period_us = 167000;                                                                         \
		return 0;                                                                                    \
	}

VIDEO_ENGINE(nvmlDeviceGetEncoderUtilization, 35)
VIDEO_ENGINE(nvmlDeviceGetDecoderUtilization, 12)
VIDEO_ENGINE(nvmlDeviceGetJpgUtilization, 4)
VIDEO_ENGINE(nvmlDeviceGetOfaUtilization, 0)

int impl_nvmlDeviceGetEncoderStats(void *device, unsigned int *sessions, unsigned int *frames_per_second,
				   unsigned int *latency_us)
{
	ENTER_FIRST_ONLY(nvmlDeviceGetEncoderStats, device);
	*sessions = 2;
	*frames_per_second = 60;
	*latency_us = 1500;
	return 0;
}
