/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Failure points: instructions of the CUDA runtime that run only if a call fails. */
#ifndef GP_FAILURE_POINT_H
#define GP_FAILURE_POINT_H

/* The register that has the status at a failure point: bits of the attach cookie. */
enum gp_status_register {
	GP_STATUS_BX,
	GP_STATUS_BP,
	GP_STATUS_R12,
	GP_STATUS_R13,
	GP_STATUS_R14,
	GP_STATUS_R15,
	/* the position of these bits */
	GP_STATUS_SHIFT = 28,
};

#endif
