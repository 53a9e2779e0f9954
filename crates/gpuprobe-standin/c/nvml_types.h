/* The structs and constants of the stand-in NVML, as the public header declares them. */
#ifndef STANDIN_NVML_TYPES_H
#define STANDIN_NVML_TYPES_H

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

#define XID_EVENT 8ULL

struct memory {
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct utilization {
	unsigned int gpu, memory;
};

struct pci_info {
	char legacy_bus_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

struct field_value {
	unsigned int field, scope;
	long long time, latency;
	int type, result;
	union {
		unsigned int number;
		unsigned long long large;
	} value;
};

struct process {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int gpu_instance, compute_instance;
};

struct process_utilization {
	unsigned int pid;
	unsigned long long time;
	unsigned int sm, memory, encoder, decoder;
};

struct event {
	void *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

/* one of the metrics that GPM computes from two samples */
struct gpm_metric {
	unsigned int metric;
	int result;
	double value;
	const char *texts[3];
};

struct gpm_metrics {
	unsigned int version, count;
	struct gpm_sample *samples[2];
	struct gpm_metric metrics[];
};

struct gpm_support {
	unsigned int version, is_supported;
};

struct gpm_sample {
	void *device;
	int is_taken;
	unsigned int gpu_instance;
};

struct attributes {
	unsigned int multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow;
	unsigned int gpu_slices, compute_slices;
	unsigned long long memory_mib;
};

#endif
