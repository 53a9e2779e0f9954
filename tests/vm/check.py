"""Compares the results of a kernel with the ledgers of the programs. Every number must be equal.

    check.py RESULTS TIERS CHECKS      TIERS: those that must work there, best first, separated by commas, or `none`
                                       CHECKS: as in tests/vm/kernels

Prints the differences, then the counts. Exits 1 if there is a difference.
"""

import collections
import fnmatch
import json
import pathlib
import re
import sys

from arguments import arguments
from driver_calls import count, driver, driver_daemon
from errors import SOURCES, errors

# what gpuprobe needs for a tier, as doctor prints it
NEEDS = {"session": "uprobe sessions", "multi": "uprobe multi links"}
SPACES = ["device", "managed", "pinned", "pool"]
# the CUDA kernels of the ledger, by grid and block
KERNELS = {
    ((64, 1, 1), (256, 1, 1)): "ledger_scale",
    ((32, 4, 1), (128, 2, 1)): "ledger_reduce",
    ((16, 8, 2), (32, 4, 2)): "ledger_add",
}
# the calls of gpuprobe-standin's demo: 55 steps, 45 batches
DEMO = {
    "cudaLaunchKernel": 320,
    "cuLaunchKernel": 320,
    "cudaMemcpy": 110,
    "cuMemcpyHtoD_v2": 55,
    "cuMemcpyDtoH_v2": 55,
    "cudaMemcpyAsync": 45,
    "cuMemcpyHtoDAsync_v2": 45,
    "cudaStreamSynchronize": 100,
    "cuStreamSynchronize": 100,
    "cudaMalloc": 6,
    "cuMemAlloc_v2": 6,
    "cudaFree": 4,
    "cuMemFree_v2": 4,
    "cudaMallocHost": 1,
    "cuMemHostAlloc": 1,
    "cudaFreeHost": 1,
    "cuMemFreeHost": 1,
}


class Results:
    """One check: a folder with the output that the guest stored."""

    def __init__(self, folder):
        self.folder = folder
        self.wrong = []

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def said(self, name):
        """The JSON objects that a program printed."""
        return [json.loads(line) for line in self.text(name).splitlines() if line.startswith("{")]

    def equal(self, what, found, expected):
        if found != expected:
            self.wrong.append(f"{what}: {found}, expected {expected}")

    def by(self, name, pid, label, **others):
        """A metric of one process by a label, without zeros."""
        found = {}
        for metric, labels, value in re.findall(r'^(\w+)\{(.*?)\} (\d+)$', self.text("metrics"), re.MULTILINE):
            labels = {"pid": str(pid), **dict(re.findall(r'(\w+)="(.*?)"', labels))}
            fits = all(labels.get(key) == str(wanted) for key, wanted in {"pid": pid, **others}.items())
            if metric == name and fits and int(value):
                found[labels[label]] = int(value)
        return found

    def contains(self, what, text, part):
        if part not in text:
            self.wrong.append(f"{what}: no {part!r} in {text!r}")

    def trace(self, skipped=(), exactly=True, lost=None):
        """Returns the calls. Checks the end line: skipped functions (exactly or at least these) and losses."""
        self.equal("exit status", self.text("status").strip(), "0")
        lines = self.said("trace.jsonl")
        self.equal("first line", lines[0]["type"], "meta")
        self.equal("lost", lines[-1].get("lost"), lost or {})
        found = lines[-1].get("skipped", [])
        self.equal("not probed", found if exactly else [f for f in found if f in skipped], list(skipped))
        return [line for line in lines if "api" in line]


def summed(calls, field):
    """The sums of a field by kind, over calls that have it."""
    sums = collections.Counter()
    for call in calls:
        sums[call.get("kind")] += call.get(field, 0)
    return {kind: total for kind, total in sums.items() if total}


def nested(check, calls):
    """Every CUDA driver call is inside a runtime call on the same thread."""
    outer = {c["event_id"]: c for c in calls if c["api"] == "runtime"}
    for call in calls:
        parent = outer.get(call.get("parent"))
        if call["api"] == "driver" and (not parent or parent["tid"] != call["tid"]):
            check.wrong.append(f"{call['name']}: no parent on its thread, event {call['event_id']}")


def ledger(check, tier):
    calls = check.trace()
    said = check.said("out")[-1]
    patterns = check.text("events").split()

    def traced(name):
        return any(fnmatch.fnmatchcase(name, p) for p in patterns)

    made = {**said["calls"], **said["driver_calls"]}
    # of the other first instructions, some functions of each kind are enough where a probe takes long to remove
    whole = tier == TIERS[0] and (patterns == ["*"] or check.folder.name == f"ledger-{tier}")
    check.equal("calls made", said["total_calls"], 1000)
    check.equal("functions not probed", [n for n in made if whole and not traced(n)], [])
    check.equal("calls", count(calls), {n: c for n, c in made.items() if traced(n)})
    errors = collections.Counter(
        (c["name"], str(c["ret"]))
        for c in calls
        if c["api"] == "runtime" and c.get("ret") and c["name"] != "cudaGetLastError"
    )
    failed = {(n, code): k for n, codes in said["errors"].items() for code, k in codes.items() if traced(n)}
    check.equal("errors", dict(errors), failed)
    for name, word in [("cudaMemcpy", "sync_bytes"), ("cudaMemcpyAsync", "async_bytes")]:
        if traced(name):
            copied = {kind: c[word] for kind, c in said["copies"].items() if c[word]}
            # The ledger's cudaMemcpyDefault copies go to the GPU. Only the CUDA driver's call shows that; if it is not
            # probed, the copy has no kind.
            left_to_driver = copied.pop("Default", 0)
            if tier != "perf" or traced(name.replace("cuda", "cu")):
                copied["H2D"] = copied.get("H2D", 0) + left_to_driver
            elif left_to_driver:
                copied[None] = left_to_driver
            check.equal(f"bytes of {name}", summed((c for c in calls if c["name"] == name), "size"), copied)
    for api, name in [("runtime", "cudaLaunchKernel"), ("driver", "cuLaunchKernel")]:
        launches = (c for c in calls if c["name"] == name)
        shapes = collections.Counter(KERNELS.get((tuple(c["grid"]), tuple(c["block"]))) for c in launches)
        check.equal(f"launches by shape, {api}", dict(shapes), {k: n for k, n in said["launches"].items() if n})
    if whole:
        memory = [c for c in calls if c["type"] == "memory"]
        for field, word in [("size", "allocated_bytes"), ("freed", "freed_bytes")]:
            check.equal(word, summed(memory, field), {kind: said["memory"][kind][word] for kind in SPACES})
    nested(check, calls)
    contains_tier(check, tier)


def verified(check, tier):
    """The figures of a recording equal those of the BPF tables."""
    check.equal("exit status", check.text("status").strip(), "0")
    compared = check.text("err").partition("\nverified (")[2]
    figures = [int(line.split()[-3]) for line in compared.splitlines() if line.endswith(" figures  equal")]
    check.equal("quantities compared", len(figures) >= 30 and sum(figures) >= 200, True)
    check.equal("differences", [line for line in compared.splitlines() if line.endswith(" differ")], [])
    contains_tier(check, tier)


def contains_tier(check, tier):
    check.contains("standard error", check.text("err"), f"attaching by {tier}\n")


def small(check, tier):
    """Programs that print a line for each process, or for each program that a process executed."""
    calls = check.trace()
    said = collections.Counter()
    live = 0
    for line in check.said("out"):
        for name, times in line["calls"].items():
            said[line["pid"], name] += times
        live += line["live_bytes"]
    for api, names in {"runtime": ["cudaMalloc", "cudaFree"], "driver": ["cuMemAlloc_v2", "cuMemFree_v2"]}.items():
        found = collections.Counter((c["pid"], c["name"]) for c in calls if c["api"] == api)
        renamed = {(pid, names[name == "cudaFree"]): times for (pid, name), times in said.items()}
        check.equal(f"{api} calls", dict(found), renamed)
    live_bytes = sum(c.get("size", 0) - c.get("freed", 0) for c in calls)
    check.equal("bytes never freed", live_bytes, live)
    nested(check, calls)
    contains_tier(check, tier)


def stacks(check, tier):
    """Calls on several stacks of a thread: the program survives, and each call is observed or counted as lost."""
    check.equal("exit status", check.text("status").strip(), "0")
    *calls, end = check.said("trace.jsonl")
    # where a return probe could kill the program, calls are counted at their entry, and their returns as lost
    entered = sum(call.get("unobserved", False) for call in calls)
    check.equal("calls and losses", end["calls"] + sum(end["lost"].values()) - entered, check.said("out")[-1]["made"])
    contains_tier(check, tier)


def callers(check, tier):
    """The functions that launch and wait, by the stacks of their call sites."""
    calls = check.trace()
    frames = {c["site"]: c["stack"][0] for c in calls if "stack" in c}
    for kind, word in [("launch", "launches"), ("sync", "waits")]:
        sites = [c["site"] for c in calls if c["type"] == kind and "site" in c]
        found = collections.Counter(re.split("[ +]", frames[site])[0] for site in sites)
        check.equal(word, dict(found), check.said("out")[0][word])
    contains_tier(check, tier)


def made(check):
    """The runtime calls of every process of a program, with their inner CUDA driver calls."""
    inner = {"cudaMalloc": "cuMemAlloc_v2", "cudaFree": "cuMemFree_v2"}
    calls = collections.Counter()
    for line in check.said("out"):
        for name, times in line["calls"].items():
            calls[line["pid"], name] += times
            calls[line["pid"], inner[name]] += times
    return dict(calls)


def phases(check, tier):
    """Two records per call: its begin, and its end with a stack."""
    calls = check.trace()
    for phase in "BE":
        found = collections.Counter((c["pid"], c["name"]) for c in calls if c["phase"] == phase)
        check.equal(f"calls in phase {phase}", dict(found), made(check))
    check.equal("returned without a stack", [c for c in calls if c["phase"] == "E" and not c.get("stack")], [])
    check.equal("failed", [c for c in calls if "error" in c], [])
    contains_tier(check, tier)


def entries(check, tier):
    """One record per call: its begin."""
    calls = check.trace()
    check.equal("calls", dict(collections.Counter((c["pid"], c["name"]) for c in calls)), made(check))
    check.equal("phases", {c["phase"] for c in calls}, {"B"})
    check.equal("results", [c for c in calls if "ret" in c], [])
    contains_tier(check, tier)


def daemon(check, tier):
    check.equal("exit status", check.text("status").strip(), "0")
    said = check.said("ledger")[0]

    def by(name, label):
        return check.by(name, said["pid"], label)

    for metric, word in [("gpuprobe_memory_live_bytes", "live_bytes"), ("gpuprobe_memory_live_allocations", "live")]:
        check.equal(metric, by(metric, "kind"), {kind: said["memory"][kind][word] for kind in SPACES})
    memory = {n: c for n, c in said["driver_calls"].items() if re.match("cuMem(Host)?(Alloc|Free)", n)}
    check.equal("calls", by("gpuprobe_calls_total", "function"), memory)
    check.equal("lost", by("gpuprobe_events_lost_total", "cause"), {})
    contains_tier(check, tier)


def demo(check, tier):
    calls = check.trace()
    found = count(calls)
    events = check.folder / "events"
    wanted = check.text("events").split() if events.exists() else DEMO
    check.equal("calls", {name: found.get(name, 0) for name in wanted}, {name: DEMO[name] for name in wanted})
    failed = {name: 1 for name in ["cudaMalloc", "cuMemAlloc_v2"] if name in wanted}
    check.equal("errors", count(c for c in calls if "error" in c), failed)
    live_bytes = sum(c.get("size", 0) - c.get("freed", 0) for c in calls if c["type"] == "memory")
    check.equal("bytes never freed", live_bytes, 8000000)
    nested(check, [c for c in calls if c["name"] in DEMO])
    contains_tier(check, tier)


def hung(check, tier):
    """Threads that sleep and spin in calls: their functions, and those that called them."""
    check.equal("exit status", check.text("status").strip(), "0")
    said = check.said("ledger")[-1]
    found = {}
    for group in check.said("out")[0]["processes"][0]["groups"]:
        functions = [frame["function"] for frame in group["stack"]]
        caller = functions[functions.index(group["function"]) + 1]
        found[tuple(group["tids"])] = (group["verdict"], group["function"], group["state"], caller)
    check.equal("threads", found, {
        (said["device_tid"],): ("stuck", "cudaDeviceSynchronize", "S", "main"),
        (said["stream_tid"],): ("stuck", "cudaStreamSynchronize", "R", "wait_for_stream"),
    })


def older_doctor(check, tier):
    check.contains("doctor", check.text("out"), "GPU errors (XIDs) by the NVIDIA kernel module's function nv_report_error (fentry)")


def listed(check, tier):
    check.equal("exit status", check.text("status").strip(), "0")
    names = ["ioctl", "nvidia_standin_work", "uvm_standin_fault"]
    check.equal("listed", [n for n in names if not re.search(rf"\b{n}\b", check.text("out"))], [])
    check.contains("how", check.text("out"), "fentry")


def doctor(check, tier):
    check.equal("exit status", check.text("status").strip(), "0")
    better = [word for word in NEEDS if word not in TIERS]
    why = "".join(f"{'':15}not {word}: the kernel has no {NEEDS[word]}\n" for word in better)
    check.contains("doctor", check.text("out"), f"attach by      {tier}\n{why}\n")


def doctor_of_module(check, tier):
    doctor(check, tier)
    check.contains("doctor", check.text("out"), "GPU errors (XIDs) by the NVIDIA kernel module's tracepoint nvidia:nvidia_dev_xid\n")


def doctor_of_old(check, tier):
    """The Linux kernel is too old: doctor says so, what it lacks, and that nothing can be attached."""
    check.equal("exit status", check.text("status").strip(), "1")
    said = check.text("out")
    release = re.search(r"^kernel +(\S+)", said).group(1)
    check.contains("doctor", said, "attach by      nothing: see below\n")
    check.contains("doctor", said, f"BAD     Linux kernel: {release} is too old: gpuprobe needs 5.17 or newer\n")


def refused_old(check, tier):
    check.equal("exit status", check.text("status").strip(), "1")
    check.contains("standard error", check.text("err"), "gpuprobe needs 5.17 or newer")
    check.equal("the command did not run", check.text("out"), "")


def refused(check, tier):
    check.equal("exit status", check.text("status").strip(), "1")
    check.contains("standard error", check.text("err"), f"cannot attach by `{tier}`: it has no {NEEDS[tier]}")


CALLS = {"ledger": ledger, "verified": verified, "constructor": small, "late_dlopen": small, "forker": small,
         "daemon": daemon, "phases": phases, "entries": entries, "stacks": stacks, "callers": callers,
         "args": arguments, "driver_args": arguments}
# how the functions of the libraries begin, where it is not as in the others
PROLOGUES = ["EndbrPush", "CmpJe", "Mov", "SubThenPush", "Nop", "LoopBack"]
RESULTS, TIERS, CHECKS = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]


def wanted():
    """Every check that must have results: a name, the function that compares it, the tier."""
    if TIERS == ["none"]:
        yield "doctor", doctor_of_old, None
        yield "refused", refused_old, None
        return
    yield "doctor", doctor, TIERS[0]
    if CHECKS == "module":
        yield from wanted_of_module()
    yield "hung", hung, TIERS[0]
    for tier in NEEDS:
        if tier not in TIERS:
            yield f"refused-{tier}", refused, tier
    for tier in TIERS:
        for name, compare in CALLS.items():
            # on a lower tier only attaching differs
            if tier == TIERS[0] or name == "ledger":
                yield f"{name}-{tier}", compare, tier
    for prologue in PROLOGUES if CHECKS == "starts" else []:
        yield f"ledger-{prologue}", ledger, TIERS[0]
    yield "demo", demo, TIERS[0]


def wanted_of_module():
    yield "doctor-older", older_doctor, TIERS[0]
    yield "doctor-module", doctor_of_module, TIERS[0]
    yield "listed", listed, TIERS[0]
    for source in SOURCES:
        yield f"errors-{source}", errors, source
    for kind in ["fentry", "perf", *(["multi", "session"] if "multi" in TIERS else [])]:
        yield f"driver-{kind}", driver, kind
    yield "driver-daemon", driver_daemon, TIERS[0]


def main():
    failed = passed = 0
    for name, compare, tier in wanted():
        check = Results(RESULTS / name)
        try:
            compare(check, tier)
        except (OSError, LookupError, ValueError) as error:
            check.wrong.append(f"the results are incomplete: {error!r}")
        print(f"{'FAILED' if check.wrong else 'ok    '} {name}")
        for line in check.wrong:
            print(f"       {line}")
        failed += bool(check.wrong)
        passed += not check.wrong
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
