"""Choices by hand that the headers do not decide: the name of a number that has several, and names that are defined in
other headers."""

# Classes with several names: the name for allocations. The others are older spellings.
CLASSES = {
    0x02: "NV01_CONTEXT_DMA",
    0x30: "NV01_NULL",
    0x3E: "NV01_MEMORY_SYSTEM",
    0x3F: "NV01_MEMORY_LOCAL_PRIVILEGED",
    0x40: "NV01_MEMORY_LOCAL_USER",
    0x70: "NV01_MEMORY_VIRTUAL",
}

# Error names that take precedence over another name of the same number in the same release.
XIDS = {
    13: "ROBUST_CHANNEL_GR_EXCEPTION",
    63: "INFOROM_PAGE_RETIREMENT_EVENT",
    64: "INFOROM_PAGE_RETIREMENT_FAILURE",
}

# Commands whose number is used by a newer command, while the headers still have the old name.
REPLACED_CONTROLS = {"NV2080_CTRL_CMD_FB_COMPBITCOPY_GET_COMPBITS": "NV2080_CTRL_CMD_FB_STATS_GET"}

# Control commands of class 0 share their numbers with argument values. Names with these prefixes are such values, except
# for the commands that also have the prefix of their group.
CLASS_0_VALUES = ("NV0000_CTRL_CMD_SYSTEM_GPS_", "NV0000_CTRL_CMD_SYSTEM_PFM_REQ_HNDLR_")
CLASS_0_COMMANDS = (
    "CONTROL",
    "BATCH_CONTROL",
    "CTRL",
    "CALL_ACPI",
    "GET_PERF_SENSORS",
    "GET_EXTENDED_PERF_SENSORS",
    "GET_FRM_DATA",
    "SET_FRM_DATA",
)
FIRST_CLASS_0_COMMAND = 0x101

# Headers of classes that are named by purpose and not by number.
CLASS_WORDS = {
    0x00DA: "NV_SEMAPHORE_SURFACE",
    0x90CD: "NV_EVENT_BUFFER",
    0xCB33: "NV_CONF_COMPUTE",
    0xCBCA: "NV_COUNTER_COLLECTION_UNIT",
}

# From nvos.h, nv-ioctl-numa.h, ctrl906f.h, ctrlc06f.h and ctrlc36f.h (which lost its command after 550), with a range
# of releases where not all have the name. They take precedence over the tables: an allocation of 0x41 creates a client.
MORE_ESCAPES = {0xD7: ("NV_ESC_NUMA_INFO", ""), 0xD8: ("NV_ESC_SET_NUMA_STATUS", "")}
MORE_CLASSES = {
    0x00: ("NV01_ROOT", ""),
    0x41: ("NV01_ROOT_CLIENT", ""),
    0x78: ("NV01_EVENT_KERNEL_CALLBACK", ""),
    0x79: ("NV01_EVENT_OS_EVENT", ""),
    0x7E: ("NV01_EVENT_KERNEL_CALLBACK_EX", ""),
}
MORE_CONTROLS = {
    0x906F0101: ("NV906F_CTRL_GET_CLASS_ENGINEID", ""),
    0xC06F0101: ("NVC06F_CTRL_GET_CLASS_ENGINEID", ""),
    0xC36F0101: ("NVC36F_CTRL_GET_CLASS_ENGINEID", "535-550"),
}

# Errors that are missing from the header of the open modules and are in NVIDIA's catalogue of XIDs.
MORE_XIDS = {
    8: "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT",
    11: "ROBUST_CHANNEL_GR_ERROR_MISSING_HW",
    25: "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY",
    37: "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD",
    38: "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT",
    46: "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR",
    54: "SILENT_RUNNING_PWR_REDUCED_CLOCKING",
    66: "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION",
    67: "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION",
    106: "SMBPBI_TEST_MESSAGE",
    107: "SMBPBI_TEST_MESSAGE_SILENT",
    109: "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR",
}
