/* A stand-in NVML with one device and fixed readings. Functions without code here return success. */
#include "faults.h"

#include <stddef.h>
#include <stdio.h>

#define ENTER(name)                                                                                          \
	do {                                                                                                 \
		int fault_ = faults_enter(#name);                                                            \
		if (fault_)                                                                                  \
			return fault_;                                                                       \
	} while (0)

#define DEVICE ((void *)0x5a0000001000ULL)

struct memory {
	unsigned long long total, free, used;
};

struct utilization {
	unsigned int gpu, memory;
};

struct pci_info {
	char legacy_bus_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

int standin_generic(const char *function)
{
	return faults_enter(function);
}

static int text(char *out, unsigned int length, const char *value)
{
	enum { INSUFFICIENT_SIZE = 7 };

	return (unsigned int)snprintf(out, length, "%s", value) < length ? 0 : INSUFFICIENT_SIZE;
}

#define READING(function, value)                                                                             \
	int impl_##function(void *device, unsigned int *out)                                                 \
	{                                                                                                    \
		(void)device;                                                                                \
		ENTER(function);                                                                             \
		*out = (value);                                                                              \
		return 0;                                                                                    \
	}

#define READING_OF(function, value)                                                                          \
	int impl_##function(void *device, int which, unsigned int *out)                                      \
	{                                                                                                    \
		(void)device;                                                                                \
		(void)which;                                                                                 \
		ENTER(function);                                                                             \
		*out = (value);                                                                              \
		return 0;                                                                                    \
	}

READING(nvmlDeviceGetIndex, 0)
READING(nvmlDeviceGetMinorNumber, 0)
READING(nvmlDeviceGetPowerUsage, 123456)
READING(nvmlDeviceGetEnforcedPowerLimit, 700000)
READING(nvmlDeviceGetFanSpeed, 30)
READING_OF(nvmlDeviceGetTemperature, 45)
READING_OF(nvmlDeviceGetClockInfo, 1500)
READING_OF(nvmlDeviceGetPcieThroughput, 2048)

int impl_nvmlDeviceGetCount_v2(unsigned int *count)
{
	ENTER(nvmlDeviceGetCount_v2);
	*count = 1;
	return 0;
}

int impl_nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	enum { INVALID_ARGUMENT = 2 };

	ENTER(nvmlDeviceGetHandleByIndex_v2);
	*device = DEVICE;
	return index ? INVALID_ARGUMENT : 0;
}

int impl_nvmlDeviceGetName(void *device, char *name, unsigned int length)
{
	(void)device;
	ENTER(nvmlDeviceGetName);
	return text(name, length, "Stand-in GPU 0");
}

int impl_nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length)
{
	(void)device;
	ENTER(nvmlDeviceGetUUID);
	return text(uuid, length, "GPU-11223344-5566-7788-99aa-bbccddeeff11");
}

int impl_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	ENTER(nvmlSystemGetDriverVersion);
	return text(version, length, "0.0.0-standin");
}

int impl_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	ENTER(nvmlSystemGetCudaDriverVersion_v2);
	*version = 13040;
	return 0;
}

int impl_nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	(void)device;
	ENTER(nvmlDeviceGetMemoryInfo);
	*memory = (struct memory){80ULL << 30, 79ULL << 30, 1ULL << 30};
	return 0;
}

int impl_nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates)
{
	(void)device;
	ENTER(nvmlDeviceGetUtilizationRates);
	*rates = (struct utilization){42, 17};
	return 0;
}

int impl_nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
	(void)device;
	ENTER(nvmlDeviceGetTotalEnergyConsumption);
	*millijoules = 987654321;
	return 0;
}

int impl_nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *infos)
{
	(void)device;
	(void)infos;
	ENTER(nvmlDeviceGetComputeRunningProcesses_v3);
	*count = 0;
	return 0;
}

int impl_nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *pci)
{
	(void)device;
	ENTER(nvmlDeviceGetPciInfo_v3);
	*pci = (struct pci_info){"0000:01:00.0", 0, 1, 0, 0x233010de, 0x16c110de, "00000000:01:00.0"};
	return 0;
}

int impl_nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
	(void)device;
	ENTER(nvmlDeviceGetMigMode);
	*current = *pending = 0;
	return 0;
}

const char *impl_nvmlErrorString(int result)
{
	return result ? "stand-in error" : "success";
}
