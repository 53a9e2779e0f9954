/*
 * What the stand-in driver reports to the stand-in CUPTI. CUPTI finds the table by cuGetExportTable, as the
 * real one finds its own.
 */
#ifndef STANDIN_GPU_OP_H
#define STANDIN_GPU_OP_H

#include <stddef.h>
#include <stdint.h>

enum gpu_op_kind { GPU_OP_KERNEL, GPU_OP_COPY, GPU_OP_PEER_COPY, GPU_OP_MEMSET };

struct gpu_op {
	enum gpu_op_kind kind;
	/* CUpti_ActivityMemcpyKind */
	int copy_kind;
	/* of a kernel; it is never freed */
	const char *name;
	unsigned int grid[3], block[3], shared_bytes;
	uint64_t bytes;
};

/* What one call submitted: one operation, or those of a graph. */
struct gpu_submission {
	const struct gpu_op *ops;
	unsigned int count;
	/* the number of the executable graph; 0 outside of graphs */
	uint32_t graph;
	uint32_t device, context, stream;
};

typedef void (*gpu_listener)(const struct gpu_submission *submission);

#define GPU_OP_TABLE_ID "standin-gpu-ops"

struct gpu_op_table {
	size_t bytes;
	void (*listen)(gpu_listener listener);
};

#endif
