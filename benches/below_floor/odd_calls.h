/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
#ifndef ODD_CALLS_H
#define ODD_CALLS_H

#ifdef __cplusplus
extern "C" {
#endif
#include "interposer.h"

/* Whether exceptions, longjmp and fibers pass through a wrapper of this function. */
int odd_calls_pass(const char *name, any_function wrapper);

#ifdef __cplusplus
}
#endif

#endif
