"""Compares a trace with the ledger of the program. Prints each difference, and exits 1 if there is any.

    check.py vector TRACE LEDGER
    check.py torch TRACE LEDGER PROFILE     PROFILE: the counts of torch.profiler for the same steps
    check.py memory TRACE LEDGER            the memory that PyTorch's allocator has reserved, and live bytes at that moment
    check.py leak TRACE LEDGER              a C++ program: live bytes, allocations and frees of each call site
    check.py call-sites TRACE LEDGER        PyTorch: live bytes by call site, those in its allocator and the rest
    check.py suspects REPORT LEDGER         `gpuprobe memory --json`: the call sites that leak are suspects, and no others
    check.py bandwidth TRACE LEDGER         large copies: bytes, host memory, and effective bandwidth within a tenth
    check.py graph TRACE PROFILE            kernels of training steps, eager and replayed, as torch.profiler counts them
    check.py driver TRACE LEDGER FTRACE     ioctls: how many have a name, the same number as in the kernel's own trace, and in a steady step
    check.py fault TRACE /dev/null          a program that writes to an unmapped address: the GPU's error, and the process
    check.py names LINES                    the share of launches whose kernel has a name, which must be 99%
    check.py bench FOLDER                   averages of bench, alone and traced, as a table
"""

import collections
import json
import pathlib
import re
import statistics
import sys


def read(trace):
    lines = [json.loads(line) for line in open(trace, encoding="utf-8")]
    assert lines[0]["type"] == "meta" and lines[-1]["type"] == "end", "the trace is incomplete"
    return [line for line in lines if "api" in line], lines[-1]


class Comparison:
    def __init__(self):
        self.wrong = 0

    def equal(self, what, found, expected):
        good = found == expected
        self.wrong += not good
        print(f"{'ok   ' if good else 'WRONG'} {what}: {found}" + ("" if good else f", expected {expected}"))


def launches(calls):
    """Outermost launches: a driver launch inside a runtime launch is the same one."""
    return sum(1 for c in calls if c["type"] == "launch" and c.get("ret") == 0 and "parent" not in c)


def vector(calls, end, ledger, compare):
    runtime = collections.Counter(c["name"] for c in calls if c["api"] == "runtime")
    for name, expected in ledger["calls"].items():
        compare.equal(name, runtime[name], expected)
    errors = collections.Counter((c["name"], str(c["ret"])) for c in calls if c["api"] == "runtime" and "error" in c)
    for name, codes in ledger["errors"].items():
        for code, expected in codes.items():
            compare.equal(f"{name} failed with {code}", errors[name, code], expected)
    compare.equal("launches", launches(calls), ledger["launches"])
    copied, allocated, freed = (collections.Counter() for _ in range(3))
    for c in calls:
        if c["type"] == "transfer" and "size" in c:
            copied[c.get("kind")] += c["size"]
        if c["type"] == "memory" and c["api"] == "runtime":
            allocated[c.get("kind")] += c.get("size", 0)
            freed[c.get("kind")] += c.get("freed", 0)
    for kind, expected in ledger["copied"].items():
        compare.equal(f"bytes copied {kind}", copied[kind], expected)
    for kind, expected in ledger["allocated"].items():
        compare.equal(f"bytes allocated, {kind}", allocated[kind], expected)
        live = ledger["live"].get(kind, 0)
        compare.equal(f"bytes live at exit, {kind}", allocated[kind] - freed[kind], live)
    inner = [c for c in calls if c["api"] == "driver" and "parent" in c]
    ids = {c["event_id"]: c for c in calls}
    compare.equal("driver calls whose parent is in the trace", sum(c["parent"] in ids for c in inner), len(inner))
    compare.equal("events lost", end["lost"], {})


def torch(calls, end, ledger, compare, profile):
    marks = {c["name"]: c["ts"] for c in calls if c["name"].startswith("cudaProfilerSt")}
    inside = [c for c in calls if marks["cudaProfilerStart"] < c["ts"] < marks["cudaProfilerStop"]]
    runtime = collections.Counter(c["name"] for c in inside if c["api"] == "runtime")
    compare.equal("cudaLaunchKernel of PyTorch's own kernels", runtime["cudaLaunchKernel"], ledger["add"])
    past = launches(inside) - runtime["cudaLaunchKernel"]
    compare.equal("launches by cuBLAS, past libcudart.so", past, profile["profiler"]["cudaLaunchKernelExC"])
    compare.equal("kernels launched, as torch.profiler counts them", launches(inside), profile["kernels"])
    kinds = collections.Counter(c.get("kind") for c in inside if c["name"] == "cudaMemcpyAsync")
    compare.equal("copies to the device", kinds["H2D"], ledger["h2d"])
    compare.equal("copies from the device", kinds["D2H"], ledger["d2h"])
    copied = sum(c.get("size", 0) for c in inside if c["type"] == "transfer")
    compare.equal("bytes copied", copied, ledger["copied"])
    compare.equal("cudaDeviceSynchronize", runtime["cudaDeviceSynchronize"], ledger["synchronize"])
    mallocs = [c for c in calls if c["name"] == "cudaMalloc" and c["ret"] == 0]
    frees = [c for c in calls if c["name"] == "cudaFree" and c["ret"] == 0 and c.get("freed")]
    compare.equal("cudaMalloc", len(mallocs), ledger["device_allocs"])
    reserved = sum(c["size"] for c in mallocs) - sum(c["freed"] for c in frees)
    compare.equal("bytes reserved by the allocator", reserved, ledger["reserved"])
    compare.equal("events lost", end["lost"], {})


def said(file):
    """The last JSON object that a program printed."""
    return json.loads([line for line in open(file, encoding="utf-8") if line.startswith("{")][-1])


def memory(calls, _end, ledger, compare):
    """Live bytes when the program printed its reserved memory, by kind and by allocating function."""
    mark = next(c["ts"] for c in calls if c["name"] == "cudaProfilerStart")
    live, by_call = collections.Counter(), collections.Counter()
    for c in calls:
        if c["ts"] < mark and c["type"] == "memory" and "kind" in c:
            change = c.get("size", 0) - c.get("freed", 0) - c.get("replaced", 0)
            live[c["kind"]] += change
            by_call[c["name"]] += change
    print("live bytes by kind:", dict(live), "by call:", dict(by_call))
    reserved = live["vmm"] or live["device"]
    compare.equal("live bytes of the allocator", reserved, ledger["reserved"])
    gpus = {c.get("gpu") for c in calls if c.get("size") and c["type"] == "memory"}
    print("GPUs:", gpus)


CUDA_LIBRARIES = ("libcuda.so", "libcudart", "libnvidia-")


def module(frame):
    """The file of a frame without a source line."""
    found = re.search(r"\(([^()]+)\)$", frame) or re.match(r"([^ ()]+)\+0x", frame)
    return found.group(1) if found else ""


def call_site(stack):
    """The innermost function that is not CUDA's own."""
    return next((frame for frame in stack if not module(frame).startswith(CUDA_LIBRARIES)), "?")


def by_call_site(calls, until=float("inf"), kinds=("device", "managed", "pool", "vmm", "array")):
    """Live bytes, allocations and frees by call site; the first allocation of a site has its stack."""
    stacks, sums = {}, collections.defaultdict(collections.Counter)
    for c in calls:
        if c["ts"] >= until or c.get("kind") not in kinds or not ("size" in c or "freed" in c):
            continue
        site = c.get("site")
        if "stack" in c:
            stacks.setdefault(site, c["stack"])
        sums[site].update(
            live_bytes=c.get("size", 0) - c.get("freed", 0),
            allocations=int("size" in c),
            frees=c.get("freed_allocations", int("freed" in c)),
        )
    call_sites = collections.defaultdict(collections.Counter)
    for site, sum_of in sums.items():
        call_sites[call_site(stacks.get(site, []))].update(sum_of)
    return call_sites


def leak(calls, end, ledger, compare):
    call_sites = by_call_site(calls)
    for expected in ledger["call_sites"]:
        function = expected["function"]
        found = [sums for name, sums in call_sites.items() if name.startswith(function + "(")]
        compare.equal(f"call sites named {function}", len(found), 1)
        for field in ("live_bytes", "allocations", "frees"):
            compare.equal(f"{field} of {function}", sum(f[field] for f in found), expected[field])
    compare.equal("events lost", end["lost"], {})


def torch_call_sites(calls, _end, ledger, compare):
    mark = next(c["ts"] for c in calls if c["name"] == "cudaProfilerStart")
    call_sites = by_call_site(calls, mark)
    for name, sums in sorted(call_sites.items(), key=lambda item: -item[1]["live_bytes"]):
        print(f"{sums['live_bytes']:14} bytes, {sums['allocations']} allocations, {sums['frees']} frees: {name}")
    in_allocator = [name for name in call_sites if module(name).startswith("libc10_cuda")]
    reserved = sum(call_sites[name]["live_bytes"] for name in in_allocator)
    compare.equal("live bytes of call sites in PyTorch's allocator", reserved, ledger["reserved"])
    rest = {name: sums["live_bytes"] for name, sums in call_sites.items() if name not in in_allocator}
    compare.equal("the program's own allocation is a call site", list(rest.values()).count(ledger["own"]), 1)
    compare.equal("live bytes at an unknown call site", rest.get("?", 0), 0)


def suspects(report, ledger):
    reported = [p for process in said(report)["processes"] if process["pid"] == ledger["pid"] for p in process["call_sites"]]
    for p in reported:
        print(f"{p['verdict']:14} {p['call_site']}: {p['reason']}")
    compare = Comparison()
    suspected = [p["function"].split("(")[0] for p in reported if p["verdict"] == "leak_suspect"]
    compare.equal("suspects, by growth", suspected, [p["function"] for p in ledger["call_sites"] if p["leaks"]])
    return 1 if compare.wrong else 0


def bandwidth(calls, end, ledger, compare):
    for kind, seconds in ledger["seconds"].items():
        copies = [c for c in calls if c["name"] == "cudaMemcpy" and c.get("kind") == kind]
        compare.equal(f"bytes copied {kind}", sum(c["size"] for c in copies), ledger["bytes"])
        compare.equal(f"host memory of {kind}", {c.get("host") for c in copies}, {ledger["memory"]})
        own = ledger["bytes"] / seconds / 1e9
        seen = ledger["bytes"] / sum(c["duration_us"] for c in copies) / 1e3
        print(f"{kind} {ledger['memory']}: {seen:.3f} GB/s, the program's own {own:.3f} GB/s ({seen / own:.3f})")
        compare.equal(f"effective bandwidth {kind} within a tenth", abs(seen / own - 1) < 0.1, True)
    compare.equal("events lost", end["lost"], {})


def normal(name):
    """A demangled name without what two demanglers write differently: spaces, types of numbers, parameters of lambdas,
    `const`, and the `void` that a function inside a name returns."""
    name = re.sub(r"\bvoid\b|\bconst\b|\s", "", name)
    name = re.sub(r"\((unsigned)?(int|long|bool|char|short)\)(?=[\d-])", "", name)
    name = re.sub(r"\b(\d+)(ul|l|u|ll|ull)\b", r"\1", name)
    return re.sub(r"\{lambda(\([^{}]*?\))?#(\d+)\}", r"{lambda#\2}", name)


def normalized(kernels):
    counts = collections.Counter()
    for name, count in kernels.items():
        counts[normal(name)] += count
    return counts


def kernels_of(calls, contents):
    """How often each kernel ran, by launches and by launches of graphs."""
    counts = collections.Counter()
    for call in calls:
        if "GraphLaunch" in call["name"]:
            for kernel in contents[call["pid"], call["graph"]]:
                counts[kernel.get("kernel", "unknown")] += kernel["count"]
        else:
            counts[call.get("kernel", "unknown")] += 1
    return counts


def graph(calls, end, profile, compare):
    """Between each pair of marks: launches that ran, and the kernels of graphs that were launched."""
    contents = {(c["pid"], c["graph"]): c["graph_kernels"] for c in calls if "graph_kernels" in c}
    starts = [c["ts"] for c in calls if c["name"] == "cudaProfilerStart"]
    stops = [c["ts"] for c in calls if c["name"] == "cudaProfilerStop"]
    for kind, start, stop in zip(("eager", "graph", "decoder"), starts, stops):
        inside = [c for c in calls if start < c["ts"] < stop and c["type"] == "launch" and c.get("ret") == 0]
        ran = [c for c in inside if "parent" not in c and not c.get("captured")]
        graphs = [c for c in ran if "GraphLaunch" in c["name"]]
        kernels = len(ran) - len(graphs) + sum(c["kernels"] for c in graphs)
        print(f"{kind}: {len(ran) - len(graphs)} launched, {len(graphs)} graphs")
        expected = normalized(profile[kind]["kernels"])
        compare.equal(f"kernels of {profile[kind]['steps']} steps, {kind}", kernels, sum(expected.values()))
        by_name = normalized(kernels_of(ran, contents))
        compare.equal(f"{len(expected)} kernels of {kind} by name, those that differ", by_name - expected, expected - by_name)
    compare.equal("pairs of marks", (len(starts), len(stops)), (3, 3))
    compare.equal("events lost", end["lost"], {})


def ioctls_of_ftrace(file):
    """Requests of ioctls on NVIDIA's devices in the Linux kernel's own trace: by their type, and UVM's small numbers."""
    found = collections.Counter()
    for line in open(file, encoding="utf-8"):
        ioctl = re.search(r"NR 16 \((\w+), (\w+), ", line)
        request = int(ioctl[2], 16) if ioctl else 0x5400
        if request >> 8 & 0xFF == 0x46 or request < 0x1000 or request >> 28 == 3:
            found[request] += 1
    return found


def driver(calls, end, ledger, compare, ftrace):
    ioctls = [c for c in calls if c["name"] == "ioctl" and c["api"] == "kernel"]
    unnamed = collections.Counter(c["cmd"] for c in ioctls if "0x" in c["cmd"])
    share = 100 * (1 - sum(unnamed.values()) / max(len(ioctls), 1))
    print(f"ioctls: {len(ioctls)}, {share:.1f}% have a name; without: {dict(unnamed.most_common(5))}")
    compare.equal("at least 95% have a name", share >= 95, True)
    seen = collections.Counter(int(c["args"]["request"], 16) for c in ioctls)
    compare.equal("ioctls by the kernel's own trace", sum(seen.values()), sum(ftrace.values()))
    compare.equal("requests that differ", {r for r in seen | ftrace if seen[r] != ftrace[r]}, set())
    begun = [c["ts"] for c in calls if c["name"] == "cudaDeviceSynchronize"]
    steady = [c for c in ioctls if begun and begun[0] < c["ts"] < begun[-1]]
    print(f"ioctls in {ledger['steps']} steady steps: {len(steady)}")
    compare.equal("events lost", end["lost"], {})


def fault(trace):
    """The first error of a GPU in the trace: a page fault (31) or an exception (13), by the program that was run."""
    lines = [json.loads(line) for line in open(trace, encoding="utf-8")]
    errors = [line for line in lines if "xid" in line]
    pids = {line["pid"] for line in lines if line.get("api")}
    compare = Comparison()
    compare.equal("an error of the GPU", bool(errors), True)
    for error in errors[:1]:
        print(json.dumps(error))
        compare.equal("which is a fault", error["xid"] in (13, 31), True)
        users = {process["pid"]: process["evidence"] for process in error.get("processes", [])}
        compare.equal("of the program", pids <= set(users), True)
    return compare.wrong


def names(lines):
    """How many launches have a kernel's name, by the library that was called."""
    named, all_launches, kernels = collections.Counter(), collections.Counter(), collections.Counter()
    for line in open(lines, encoding="utf-8"):
        call = json.loads(line)
        if call["type"] == "launch" and "Graph" not in call["name"]:
            all_launches[call["name"]] += 1
            named[call["name"]] += "kernel" in call
            kernels[call.get("kernel", "?")] += 1
    for name, count in sorted(all_launches.items()):
        print(f"{name}: {named[name]} of {count} launches have a name")
    for kernel, count in kernels.most_common():
        print(f"{count:8} {kernel[:100]}")
    total = sum(all_launches.values())
    print(f"named: {100 * sum(named.values()) / max(total, 1):.2f}% of {total}")
    expected = ["at::native", "gemm", "add_one_triton"]
    missing = [part for part in expected if not any(part in kernel for kernel in kernels)]
    if missing:
        print(f"WRONG no kernel is called like {missing}")
    return 0 if total > 1000 and sum(named.values()) >= 0.99 * total and not missing else 1


def bench(folder):
    """Medians of the averages of five runs each, with the ratio to the program alone."""
    sets, rows = ["alone", "classic", "default", "all"], {}
    for name in sets:
        for file in sorted(pathlib.Path(folder).glob(f"bench.{name}.*")):
            for operation in said(file)["operations"]:
                rows.setdefault(operation["name"], {}).setdefault(name, []).append(operation["average_us"])
    print(f"{'operation':24}" + "".join(f"{name:>20}" for name in sets))
    for operation, times in rows.items():
        medians = {name: statistics.median(times[name]) for name in sets}
        cells = [f"{medians[name]:.2f} us ({medians[name] / medians['alone']:.2f})" for name in sets]
        print(f"{operation:24}" + "".join(f"{cell:>20}" for cell in cells))
    return 0 if rows else 1


def main():
    program, trace, *ledgers = sys.argv[1:]
    if program == "names":
        sys.exit(names(trace))
    if program == "bench":
        sys.exit(bench(trace))
    if program == "fault":
        sys.exit(fault(trace))
    if program == "suspects":
        sys.exit(suspects(trace, said(ledgers[0])))
    calls, end = read(trace)
    compare = Comparison()
    if program == "driver":
        driver(calls, end, said(ledgers[0]), compare, ioctls_of_ftrace(ledgers[1]))
        sys.exit(1 if compare.wrong else 0)
    ledger, *more = map(said, ledgers)
    checks = {"vector": vector, "torch": torch, "memory": memory, "leak": leak, "call-sites": torch_call_sites}
    checks |= {"bandwidth": bandwidth, "graph": graph}
    checks[program](calls, end, ledger, compare, *more)
    sys.exit(1 if compare.wrong else 0)


main()
