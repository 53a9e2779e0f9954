/* The instances of the stand-in NVML's partitioned GPUs, which are in its file (nvml.c), and GPM. */
#include "nvml.h"

#include <stdlib.h>

enum { MOST_INSTANCES = 7 };

/* the handle of the instance that this line of the file has */
#define INSTANCE(at) DEVICE(16 + (at))
#define WHOLE_GPU (-1U)

/* The instance at this place of the file; of any GPU or of this one. Returns its line, counted from one. */
static unsigned int instance_at(unsigned int at, const void *device, struct instance *instance)
{
	unsigned int lines = 0, seen = 0, found = 0;

	EACH_LINE(line)
	{
		struct instance has;

		if (sscanf(line, "mig %u %u %u %19s %llu", &has.gpu, &has.gpu_instance, &has.compute_instance,
			   has.profile, &has.bytes) != 5)
			continue;
		lines++;
		if ((!device || DEVICE(has.gpu) == device) && seen++ == at) {
			*instance = has;
			found = lines;
		}
	}
	return found;
}

int nvml_instance(void *device, struct instance *instance)
{
	for (unsigned int at = 0; at < DEVICES * MOST_INSTANCES; at++)
		if (INSTANCE(at) == device)
			return instance_at(at, NULL, instance) != 0;
	return 0;
}

/* Only the first device can be partitioned, and it is if the file has instances of it. */
int impl_nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
	struct instance first;

	ENTER_FIRST_ONLY(nvmlDeviceGetMigMode, device);
	*current = *pending = instance_at(0, device, &first) != 0;
	return 0;
}

READING_OF_FIRST(nvmlDeviceGetMaxMigDeviceCount, unsigned int, MOST_INSTANCES)

int impl_nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **instance)
{
	struct instance there;
	unsigned int line;

	ENTER_FIRST_ONLY(nvmlDeviceGetMigDeviceHandleByIndex, device);
	line = instance_at(index, device, &there);
	*instance = line ? INSTANCE(line - 1) : NULL;
	return line ? 0 : NOT_FOUND;
}

#define OF_INSTANCE(function, member)                                                                        \
	int impl_##function(void *device, unsigned int *number)                                              \
	{                                                                                                    \
		struct instance instance;                                                                    \
                                                                                                             \
		ENTER(function);                                                                             \
		if (!nvml_instance(device, &instance))                                                       \
			return NOT_SUPPORTED;                                                                \
		*number = instance.member;                                                                   \
		return 0;                                                                                    \
	}

OF_INSTANCE(nvmlDeviceGetGpuInstanceId, gpu_instance)
OF_INSTANCE(nvmlDeviceGetComputeInstanceId, compute_instance)

int impl_nvmlDeviceGetAttributes_v2(void *device, struct attributes *attributes)
{
	struct instance instance;

	ENTER(nvmlDeviceGetAttributes_v2);
	if (!nvml_instance(device, &instance))
		return NOT_SUPPORTED;
	*attributes = (struct attributes){
	    .multiprocessors = 16, .gpu_slices = 1, .compute_slices = 1, .memory_mib = 10240};
	return 0;
}

/* only the first device is new enough */
int impl_nvmlGpmQueryDeviceSupport(void *device, struct gpm_support *support)
{
	ENTER(nvmlGpmQueryDeviceSupport);
	support->is_supported = !SECOND(device);
	return 0;
}

int impl_nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
	ENTER(nvmlGpmSampleAlloc);
	*sample = calloc(1, sizeof(**sample));
	return *sample ? 0 : INSUFFICIENT_SIZE;
}

int impl_nvmlGpmSampleFree(struct gpm_sample *sample)
{
	ENTER(nvmlGpmSampleFree);
	free(sample);
	return 0;
}

int impl_nvmlGpmSampleGet(void *device, struct gpm_sample *sample)
{
	ENTER_FIRST_ONLY(nvmlGpmSampleGet, device);
	*sample = (struct gpm_sample){device, 1, WHOLE_GPU};
	return 0;
}

int impl_nvmlGpmMigSampleGet(void *device, unsigned int gpu_instance, struct gpm_sample *sample)
{
	ENTER_FIRST_ONLY(nvmlGpmMigSampleGet, device);
	*sample = (struct gpm_sample){device, 1, gpu_instance};
	return 0;
}

/* what the file has for a metric */
static int in_file(const struct gpm_sample *sample, unsigned int wanted, double *value)
{
	int found = 0;

	EACH_LINE(line)
	{
		unsigned int gpu, metric, instance = WHOLE_GPU;
		double has;

		if (sscanf(line, "gpm %u %u %lf", &gpu, &metric, &has) != 3 &&
		    sscanf(line, "gpm-mig %u %u %u %lf", &gpu, &instance, &metric, &has) != 4)
			continue;
		if (metric == wanted && DEVICE(gpu) == sample->device && instance == sample->gpu_instance) {
			found = 1;
			*value = has;
		}
	}
	return found;
}

/* Traffic of NVLinks, metrics from 60 on, is not supported, unless the file has it. */
int impl_nvmlGpmMetricsGet(struct gpm_metrics *metrics)
{
	enum { FIRST_OF_NVLINK = 60 };

	ENTER(nvmlGpmMetricsGet);
	if (!metrics->samples[0]->is_taken || !metrics->samples[1]->is_taken)
		return INVALID_ARGUMENT;
	for (struct gpm_metric *one = metrics->metrics; one < metrics->metrics + metrics->count; one++) {
		one->value = 0;
		one->result =
		    in_file(metrics->samples[1], one->metric, &one->value) || one->metric < FIRST_OF_NVLINK
			? 0
			: NOT_SUPPORTED;
	}
	return 0;
}
