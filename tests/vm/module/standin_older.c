// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The same driver in an older release, which tells of errors of GPUs by a function alone. */
#define WITHOUT_TRACEPOINT
#include "standin.c"
