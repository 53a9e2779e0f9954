"""Part of check.py: functions of the stand-in kernel module, inside the ioctls that call them, inside CUDA calls."""

import collections


def count(calls, api=None):
    return dict(collections.Counter(c["name"] for c in calls if api in (None, c["api"])))


# kinds of probes on Linux functions, as gpuprobe prints them
PROBES = {"fentry": "fentry", "perf": "kprobe", "multi": "kprobe multi", "session": "kprobe session"}
# the minimum duration of functions of the stand-in kernel module, in microseconds
LEAST_US = {"nvidia_standin_work": 2000, "uvm_standin_fault": 3000, "nvidia_standin_recurse": 200}


def commands(said):
    """The ioctls of the program, by the names of the commands."""
    return {
        "NV_ESC_RM_ALLOC(NV01_MEMORY_LOCAL_USER)": said["allocations"],
        "NV_ESC_RM_CONTROL(NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION)": said["allocations"],
        "UVM_MAP_EXTERNAL_ALLOCATION": said["allocations"],
        "UVM_INITIALIZE": 1,
        "NV_ESC_RM_FREE": said["frees"],
        "NV_ESC_RM_CONTROL(0xdead)": 1,
        "0xc01046e0": said["recursions"],
        "0xc01046e1": said["failures"],
    }


def standins(said):
    """The number of calls of the functions of the kernel module."""
    allocations, failures = said["allocations"], said["failures"]
    return {
        "nvidia_standin_ioctl": 2 * allocations + said["frees"] + 1 + said["recursions"] + failures,
        "nvidia_standin_work": 2 * allocations + 1,
        "nvidia_standin_control": allocations + 1,
        "nvidia_standin_recurse": 3 * said["recursions"],
        "nvidia_standin_fail": failures,
        "uvm_standin_ioctl": allocations + 1,
        "uvm_standin_fault": allocations,
    }


HOOKS = "/driver/hooks.toml"
NOT_THERE = "the Linux kernel has no such function: its module is not loaded, or it is inlined"


def driver(check, kind):
    """Functions of the kernel module inside the ioctls that call them, inside CUDA calls."""
    # of so many functions, some exist only while the kernel boots
    calls = check.trace([
        f"{HOOKS}:25: hook no_such_hook: not probed: {NOT_THERE}",
        f"{HOOKS}:33: hook no:such_tracepoint: not probed: the Linux kernel has no such tracepoint: its module is not loaded, "
        "or this kernel has another name for it (/sys/kernel/tracing/available_events lists all tracepoints)",
        f"nvidia_standin_inlined: not probed: {NOT_THERE}",
    ], exactly=kind != "session")
    said = check.said("out")[-1]
    allocations = said["allocations"]
    asked = [c for c in calls if c["name"] == "ioctl"]
    functions = [c for c in calls if "_standin_" in c["name"]]
    check.equal("commands", count_of(c["cmd"] for c in asked), commands(said))
    check.equal("opened", count_of(c["dev"] for c in calls if c["name"] == "open"),
                {"nvidia0": 1, "nvidiactl": 1, "nvidia-uvm": 2})
    check.equal("calls of CUDA", count(calls, "driver"), {"cuMemAlloc_v2": allocations})
    check.equal("functions", count(functions, "kernel"), standins(said))
    check.equal("types", {(c["name"], c["type"]) for c in functions if c["type"] != "kernel"},
                {("uvm_standin_fault", "scheduler"), ("nvidia_standin_work", "scheduler")})
    nesting(check, calls, asked, functions, allocations)
    returned(check, asked, functions, said)
    hooked(check, calls, functions, said["pid"])
    if kind == "session":
        check.contains("standard error", check.text("err"), f" by {PROBES[kind]}, ")
    else:
        check.contains("standard error", check.text("err"), f"Linux kernel functions: 8 by {PROBES[kind]}, 2 not probed")


def hooked(check, calls, functions, pid):
    """The arguments that a hook file declares, with text in kernel memory and in the program's memory."""
    known = {c["event_id"]: c for c in calls}

    def arguments(name):
        return [c.get("args", {}) for c in functions if c["name"] == name]

    check.equal("arguments of work", {a.get("us") for a in arguments("nvidia_standin_work")}, {2000})
    check.equal("text in kernel memory", {a.get("why") for a in arguments("nvidia_standin_fail")}, {"busy"})
    check.equal("text in the program's memory", {a.get("argument") for a in arguments("nvidia_standin_ioctl")}, {"\x01"})
    for call in functions:
        if call["name"] == "nvidia_standin_recurse":
            check.equal("depth", call["args"]["depth"], call["ret"])
        if call["name"] == "nvidia_standin_ioctl":
            check.equal("request", call["args"]["request"], known[call["parent"]]["args"]["request"])
    execs = [c for c in calls if c["name"] == "sched:sched_process_exec"]
    check.equal("execs", [(c["phase"], c["args"]["old_pid"]) for c in execs], [("i", pid)])


def driver_daemon(check, tier):
    """The same functions in the metrics of a daemon."""
    check.equal("exit status", check.text("status").strip(), "0")
    said = check.said("ledger")[-1]
    wanted = standins(said)
    found = check.by("gpuprobe_calls_total", said["pid"], "function")
    check.equal("calls", {name: found[name] for name in found if "_standin_" in name}, wanted)
    errors = check.by("gpuprobe_errors_total", said["pid"], "function", error="EBUSY")
    check.equal("errors", errors, {name: said["failures"] for name in ["nvidia_standin_fail", "nvidia_standin_ioctl"]})
    skipped = check.by("gpuprobe_libraries_skipped_total", said["pid"], "reason")
    check.equal("not there", skipped.get("not_there"), 2)
    check.equal("lost", check.by("gpuprobe_events_lost_total", said["pid"], "cause"), {})
    check.contains("standard error", check.text("err"), "Linux kernel functions: 8 by fentry, 1 not probed")


def count_of(words):
    return dict(collections.Counter(words))


def nesting(check, calls, asked, functions, allocations):
    """Each call is inside its caller, and not longer."""
    known = {c["event_id"]: c for c in calls}

    def outer(call):
        return known.get(call.get("parent"), {})

    check.equal("callers of ioctls", count_of(outer(c).get("name") for c in asked),
                {"cuMemAlloc_v2": 3 * allocations, None: len(asked) - 3 * allocations})
    inside = {
        "nvidia_standin_ioctl": {"ioctl"},
        "uvm_standin_ioctl": {"ioctl"},
        "nvidia_standin_control": {"nvidia_standin_ioctl"},
        "nvidia_standin_work": {"nvidia_standin_ioctl", "nvidia_standin_control"},
        "nvidia_standin_recurse": {"nvidia_standin_ioctl", "nvidia_standin_recurse"},
        "nvidia_standin_fail": {"nvidia_standin_ioctl"},
        "uvm_standin_fault": {"uvm_standin_ioctl"},
    }
    for name, callers in inside.items():
        found = {outer(c).get("name") for c in functions if c["name"] == name}
        check.equal(f"callers of {name}", found, callers)
    for call in asked + functions:
        took, least = call["duration_us"], LEAST_US.get(call["name"], 0)
        if took < least:
            check.wrong.append(f"{call['name']}: {took} us, at least {least}")
        if outer(call) and took > outer(call)["duration_us"]:
            check.wrong.append(f"{call['name']}: {took} us in {outer(call)['duration_us']}")


def returned(check, asked, functions, said):
    """Results: numbers, errors of the Linux kernel, and the status of the NVIDIA kernel module."""
    failed = count_of((c.get("cmd", c["name"]), c["ret"], c["error"]) for c in asked + functions if "error" in c)
    check.equal("failed", failed, {
        ("NV_ESC_RM_CONTROL(0xdead)", 0, "NV_ERR_NOT_SUPPORTED"): 1,
        ("0xc01046e1", -16, "EBUSY"): said["failures"],
        ("nvidia_standin_fail", -16, "EBUSY"): said["failures"],
        ("nvidia_standin_ioctl", -16, "EBUSY"): said["failures"],
    })
    deep = count_of(c["ret"] for c in functions if c["name"] == "nvidia_standin_recurse")
    check.equal("recursion", deep, {depth: said["recursions"] for depth in (1, 2, 3)})
