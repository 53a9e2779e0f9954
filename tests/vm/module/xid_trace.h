/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The tracepoint of newer releases of the NVIDIA kernel module for GPU errors, with its real name and
 * arguments.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nvidia

#if !defined(XID_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define XID_TRACE_H

#include <linux/pci.h>
#include <linux/tracepoint.h>
#include <linux/version.h>

/* since this kernel the source of a text is taken from its declaration */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define ASSIGN_TEXT(name, text) __assign_str(name)
#else
#define ASSIGN_TEXT(name, text) __assign_str(name, text)
#endif

/* clang-format off */
TRACE_EVENT(nvidia_dev_xid,
	TP_PROTO(const struct pci_dev *gpu, u32 number, const char *text),
	TP_ARGS(gpu, number, text),
	TP_STRUCT__entry(
		__string(dev, pci_name(gpu))
		__field(u32, error_code)
		__string(msg, text)
	),
	TP_fast_assign(
		ASSIGN_TEXT(dev, pci_name(gpu));
		ASSIGN_TEXT(msg, text);
		__entry->error_code = number;
	),
	TP_printk("%s: %u, %s", __get_str(dev), __entry->error_code, __get_str(msg))
);
/* clang-format on */

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE xid_trace
#include <trace/define_trace.h>
