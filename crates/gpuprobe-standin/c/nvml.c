/*
 * A stand-in NVML with two devices and fixed readings: the first has all of them, the second supports few,
 * like old devices. Functions without code here return success.
 *
 * The file that STANDIN_NVML names has the values that change while a program runs, one per line, read at
 * every call:
 *
 *   process GPU compute|graphics|mps PID BYTES    a process of one of the three lists
 *   busy GPU PID SM MEMORY ENCODER DECODER        the utilization by a process, in percent
 *   xid GPU NUMBER                                an error; each line is reported once, so only append lines
 *   gpm GPU METRIC VALUE                          what GPM reports for a metric; 0 without such a line
 *   mig GPU INSTANCE COMPUTE PROFILE BYTES        an instance of a partitioned GPU, whose GPU instance and
 * compute instance have these numbers, and its memory in use gpm-mig GPU INSTANCE METRIC VALUE what GPM
 * reports for a GPU instance block FUNCTION SECONDS                        that function takes so long; when
 * it starts to block, it creates a file of the same name with .blocked appended
 */
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

FILE *nvml_file(void)
{
	const char *path = getenv("STANDIN_NVML");

	return path ? fopen(path, "re") : NULL;
}

FILE *nvml_closed(FILE *file)
{
	fclose(file);
	return NULL;
}

static void pause_ms(long ms)
{
	struct timespec left = {ms / 1000, ms % 1000 * 1000000};

	while (nanosleep(&left, &left))
		;
}

int nvml_enter(const char *function)
{
	long seconds = 0;

	EACH_LINE(line)
	{
		char name[80];
		long n;

		if (sscanf(line, "block %79s %ld", name, &n) == 2 && !strcmp(name, function))
			seconds = n;
	}
	if (seconds) {
		char path[4096];
		FILE *begun;

		snprintf(path, sizeof(path), "%s.blocked", getenv("STANDIN_NVML"));
		begun = fopen(path, "we");
		if (begun)
			fclose(begun);
		pause_ms(seconds * 1000);
	}
	return faults_enter(function);
}

int standin_generic(const char *function)
{
	return nvml_enter(function);
}

int nvml_text(char *out, unsigned int length, const char *value)
{
	return (unsigned int)snprintf(out, length, "%s", value) < length ? 0 : INSUFFICIENT_SIZE;
}

READING(nvmlDeviceGetIndex, unsigned int, 0, 1)
READING(nvmlDeviceGetMinorNumber, unsigned int, 0, 1)
READING(nvmlDeviceGetPerformanceState, unsigned int, 0, 8)
READING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 5, 1)
READING(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16, 8)
READING(nvmlDeviceGetSupportedEventTypes, unsigned long long, XID_EVENT, XID_EVENT)
READING_OF_FIRST(nvmlDeviceGetPowerUsage, unsigned int, 123456)
READING_OF_FIRST(nvmlDeviceGetEnforcedPowerLimit, unsigned int, 700000)
READING_OF_FIRST(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 987654321)
READING_OF_FIRST(nvmlDeviceGetFanSpeed, unsigned int, 30)
READING_OF_FIRST(nvmlDeviceGetPcieReplayCounter, unsigned int, 7)
/* a power cap and a thermal slowdown by the hardware */
READING_OF_FIRST(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0x44)

int impl_nvmlDeviceGetFanSpeed_v2(void *device, unsigned int fan, unsigned int *percent)
{
	ENTER_FIRST_ONLY(nvmlDeviceGetFanSpeed_v2, device);
	*percent = 30;
	return fan ? INVALID_ARGUMENT : 0;
}

int impl_nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius)
{
	(void)sensor;
	ENTER(nvmlDeviceGetTemperature);
	*celsius = SECOND(device) ? 61 : 45;
	return 0;
}

/* the second device has only the clocks of graphics and memory */
int impl_nvmlDeviceGetClockInfo(void *device, int clock, unsigned int *mhz)
{
	enum { GRAPHICS, SM, MEMORY, CLOCKS = 4 };

	ENTER(nvmlDeviceGetClockInfo);
	if (clock < 0 || clock >= CLOCKS)
		return INVALID_ARGUMENT;
	if (SECOND(device) && clock != GRAPHICS && clock != MEMORY)
		return NOT_SUPPORTED;
	*mhz = (SECOND(device) ? 300 : 1500) + 10 * (unsigned int)clock;
	return 0;
}

int impl_nvmlDeviceGetPcieThroughput(void *device, int direction, unsigned int *kilobytes_per_second)
{
	ENTER_FIRST_ONLY(nvmlDeviceGetPcieThroughput, device);
	*kilobytes_per_second = direction ? 4096 : 2048;
	return 0;
}

int impl_nvmlDeviceGetTotalEccErrors(void *device, int uncorrected, int aggregate, unsigned long long *count)
{
	ENTER_FIRST_ONLY(nvmlDeviceGetTotalEccErrors, device);
	*count = (uncorrected ? 1 : 12) + (aggregate ? 100 : 0);
	return 0;
}

int impl_nvmlDeviceGetCount_v2(unsigned int *count)
{
	ENTER(nvmlDeviceGetCount_v2);
	*count = DEVICES;
	return 0;
}

int impl_nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	ENTER(nvmlDeviceGetHandleByIndex_v2);
	*device = DEVICE(index);
	return index < DEVICES ? 0 : INVALID_ARGUMENT;
}

int impl_nvmlDeviceGetName(void *device, char *name, unsigned int length)
{
	struct instance instance;
	char own[60];

	ENTER(nvmlDeviceGetName);
	if (!nvml_instance(device, &instance))
		return nvml_text(name, length, SECOND(device) ? "Stand-in GPU 1" : "Stand-in GPU 0");
	snprintf(own, sizeof(own), "Stand-in GPU %u MIG %s", instance.gpu, instance.profile);
	return nvml_text(name, length, own);
}

/* the same names as in the stand-in driver */
int impl_nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length)
{
	struct instance instance;
	char own[60];

	ENTER(nvmlDeviceGetUUID);
	if (!nvml_instance(device, &instance))
		return nvml_text(uuid, length,
				 SECOND(device) ? "GPU-12233445-5667-7889-9aab-bccddeef0012"
						: "GPU-11223344-5566-7788-99aa-bbccddeeff11");
	snprintf(own, sizeof(own), "MIG-00000000-0000-0000-%04u-%08u%04u", instance.gpu,
		 instance.gpu_instance, instance.compute_instance);
	return nvml_text(uuid, length, own);
}

int impl_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	ENTER(nvmlSystemGetDriverVersion);
	return nvml_text(version, length, "0.0.0-standin");
}

int impl_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	ENTER(nvmlSystemGetNVMLVersion);
	return nvml_text(version, length, "13.0.0-standin");
}

int impl_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	ENTER(nvmlSystemGetCudaDriverVersion_v2);
	*version = 13040;
	return 0;
}

int impl_nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	ENTER(nvmlDeviceGetMemoryInfo);
	*memory = SECOND(device) ? (struct memory){16ULL << 30, 12ULL << 30, 4ULL << 30}
				 : (struct memory){80ULL << 30, 77ULL << 30, 3ULL << 30};
	return 0;
}

int impl_nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
	struct instance instance;

	ENTER(nvmlDeviceGetMemoryInfo_v2);
	if (nvml_instance(device, &instance)) {
		*memory = (struct memory_v2){memory->version, 10ULL << 30, 0, (10ULL << 30) - instance.bytes,
					     instance.bytes};
		return 0;
	}
	if (SECOND(device))
		return NOT_SUPPORTED;
	*memory = (struct memory_v2){memory->version, 80ULL << 30, 1ULL << 30, 77ULL << 30, 2ULL << 30};
	return 0;
}

int impl_nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates)
{
	ENTER(nvmlDeviceGetUtilizationRates);
	*rates = SECOND(device) ? (struct utilization){0, 0} : (struct utilization){42, 7};
	return 0;
}

/* as many as fit; the count is always the full number */
static int processes(void *device, const char *list, unsigned int *count, struct process *infos)
{
	unsigned int room = *count;

	*count = 0;
	EACH_LINE(line)
	{
		char name[20];
		unsigned int gpu, pid;
		long long bytes;

		if (sscanf(line, "process %u %19s %u %lld", &gpu, name, &pid, &bytes) != 4)
			continue;
		if (DEVICE(gpu) != device || strcmp(name, list) != 0)
			continue;
		if (*count < room)
			infos[*count] = (struct process){pid, (unsigned long long)bytes, -1U, -1U};
		++*count;
	}
	return *count > room ? INSUFFICIENT_SIZE : 0;
}

#define PROCESSES(function, list)                                                                            \
	int impl_##function(void *device, unsigned int *count, struct process *infos)                        \
	{                                                                                                    \
		ENTER(function);                                                                             \
		return processes(device, list, count, infos);                                                \
	}

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

int impl_nvmlDeviceGetProcessUtilization(void *device, struct process_utilization *samples,
					 unsigned int *count, unsigned long long since)
{
	unsigned int room = samples ? *count : 0;
	struct timespec now;
	unsigned long long us;

	ENTER_FIRST_ONLY(nvmlDeviceGetProcessUtilization, device);
	clock_gettime(CLOCK_REALTIME, &now);
	us = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
	*count = 0;
	EACH_LINE(line)
	{
		struct process_utilization use = {.time = us};
		unsigned int gpu;

		if (sscanf(line, "busy %u %u %u %u %u %u", &gpu, &use.pid, &use.sm, &use.memory, &use.encoder,
			   &use.decoder) != 6)
			continue;
		if (DEVICE(gpu) != device || us <= since)
			continue;
		if (*count < room)
			samples[*count] = use;
		++*count;
	}
	if (!*count)
		return NOT_FOUND;
	return *count > room ? INSUFFICIENT_SIZE : 0;
}

int impl_nvmlEventSetCreate(void **set)
{
	ENTER(nvmlEventSetCreate);
	*set = DEVICE(DEVICES);
	return 0;
}

/* The second device claims to support error events, and refuses the registration. */
int impl_nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
	(void)types;
	(void)set;
	ENTER_FIRST_ONLY(nvmlDeviceRegisterEvents, device);
	return 0;
}

/* Reports the errors of the file, each once. */
int impl_nvmlEventSetWait_v2(void *set, struct event *event, unsigned int ms)
{
	enum { LOOK_EVERY_MS = 20 };
	static unsigned int reported;

	(void)set;
	ENTER(nvmlEventSetWait_v2);
	for (unsigned int waited = 0;; waited += LOOK_EVERY_MS) {
		unsigned int number = 0, gpu = 0, xid = 0, found = 0;

		EACH_LINE(line)
		{
			unsigned int of, error;

			if (sscanf(line, "xid %u %u", &of, &error) == 2 && number++ == reported) {
				found = 1;
				gpu = of;
				xid = error;
			}
		}
		if (found) {
			reported++;
			*event = (struct event){DEVICE(gpu), XID_EVENT, xid, -1U, -1U};
			return 0;
		}
		if (waited >= ms)
			return TIMEOUT;
		pause_ms(LOOK_EVERY_MS);
	}
}

int impl_nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *pci)
{
	ENTER(nvmlDeviceGetPciInfo_v3);
	*pci = SECOND(device)
		   ? (struct pci_info){"0000:02:00.0", 0, 2, 0, 0x233010de, 0x16c110de, "00000000:02:00.0"}
		   : (struct pci_info){"0000:01:00.0", 0, 1, 0, 0x233010de, 0x16c110de, "00000000:01:00.0"};
	return 0;
}

const char *impl_nvmlErrorString(int result)
{
	return result ? "stand-in error" : "success";
}
