"""Compares GPU times with those of torch.profiler, which observed another run of the same program:

    gpu_time_check.py compare TRACE PROFILE nodes|graphs      counts, times and busy share
    gpu_time_check.py late GPUPROBE AGENT SECONDS             attach to a running process, again and again
    gpu_time_check.py profiler GPUPROBE AGENT                 torch.profiler in an observed program
"""

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "shared"))
from checks import Checks

check = Checks()


def executions(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["type"] == "gpu"], lines


def busy(intervals):
    """The share of the time from the first start to the last end in which something was executed."""
    total, end, first = 0, None, min(start for start, _ in intervals)
    for start, stop in sorted(intervals):
        begin = start if end is None else max(start, end)
        total += max(0, stop - begin)
        end = stop if end is None else max(end, stop)
    return total / (end - first)


def compare(trace, profile, graphs):
    ours, lines = executions(trace)
    with open(profile) as file:
        theirs = json.load(file)
    kernels = [line for line in ours if line["op"] == "kernel"]
    is_kernel = lambda name: not name.startswith(("Memcpy", "Memset"))
    their_kernels = [event for event in theirs if is_kernel(event[0])]
    for state in (line for line in lines if line["type"] == "agent"):
        print(f"agent: {state}")
    if graphs == "graphs":
        launches = sum(line["op"] == "graph" for line in ours)
        check.that("executions of graphs", launches == 100, launches)
        return
    check.that("CUDA kernels", len(kernels) == len(their_kernels), f"{len(kernels)}, torch.profiler {len(their_kernels)}")
    others = (len(ours) - len(kernels), len(theirs) - len(their_kernels))
    check.that("copies and memsets", others[0] == others[1], others)
    us = sum(line["duration_us"] for line in kernels)
    their_us = sum(event[2] for event in their_kernels) / 1e3
    check.that("GPU time of CUDA kernels within 3%", abs(us / their_us - 1) < 0.03, f"{us:.0f} us, {their_us:.0f} us: {us / their_us:.4f}")
    # names are demangled by different programs, which differ in what is between the angle brackets
    plain = lambda name: name.split("<")[0].split("(")[0].removeprefix("void ").strip() or name
    by_name = collections.defaultdict(lambda: [0, 0.0, 0, 0.0])
    for line in kernels:
        row = by_name[plain(line["name"])]
        row[0] += 1
        row[1] += line["duration_us"]
    for name, _, duration in their_kernels:
        row = by_name[plain(name)]
        row[2] += 1
        row[3] += duration / 1e3
    worst = 0
    for name, (count, time_us, their_count, their_time) in by_name.items():
        if count != their_count:
            check.that(f"count of {name[:60]}", False, (count, their_count))
        elif their_time > 100:
            worst = max(worst, abs(time_us / their_time - 1))
    check.that("time of each CUDA kernel with more than 100 us within 3%", worst < 0.03, f"{worst:.4f}")
    matched = sum(line.get("launch") is not None for line in kernels)
    check.that("CUDA kernels with their launch, at least 99.9%", matched >= 0.999 * len(kernels), f"{matched} of {len(kernels)}")
    # causality, and the call that is named must be a launch
    calls = {line["event_id"]: line for line in lines if "event_id" in line}
    wrong = sum(1 for line in kernels if line.get("launch") in calls and "aunch" not in calls[line["launch"]]["name"])
    check.that("their launches are launches", wrong == 0, wrong)
    early = sum(line["queued_us"] < 0 for line in kernels if line.get("queued_us") is not None)
    check.that("nothing is executed before its launch", early == 0, early)


def share(trace, profile):
    ours, _ = executions(trace)
    with open(profile) as file:
        theirs = json.load(file)
    # the same part of both runs, after everything has been loaded
    steady = lambda intervals: sorted(intervals)[len(intervals) // 2 :]
    mine = busy(steady([(line["ts"], line["ts"] + line["duration_us"] / 1e6) for line in ours]))
    other = busy(steady([(start, start + duration) for _, start, duration in theirs]))
    print(f"busy share: {mine:.4f}, torch.profiler {other:.4f}")


def program(agent, source, *arguments):
    environment = {**os.environ, "CUDA_INJECTION64_PATH": agent}
    return subprocess.Popen([sys.executable, "-c", source, *arguments], env=environment, stdout=subprocess.PIPE, text=True)


REPLAYS = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).cuda()
x = torch.randn(8, 256, device="cuda")
with torch.no_grad():
    model(x); torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    print("ready", flush=True)
    end = time.time() + float(sys.argv[2])
    count = 0
    while time.time() < end:
        for _ in range(20):
            graph.replay(); model(x)
        torch.cuda.synchronize(); count += 20
    print(count, flush=True)
"""


def late(probe, agent, seconds):
    running = program(agent, REPLAYS, HERE, seconds)
    running.stdout.readline()
    rounds, counts = 0, []
    with tempfile.TemporaryDirectory() as folder:
        end = time.time() + float(seconds) - 8
        while time.time() < end:
            trace = f"{folder}/t.jsonl"
            command = [probe, "record", "-d", str(running.pid), "--gpu-time", "--duration", "300ms", "-q", "-o", trace]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            found, lines = executions(trace)
            counts.append(len(found))
            if rounds == 0:
                print(done.stderr[-3000:])
            for state in (line for line in lines if line["type"] == "agent" and line["name"] not in ("collecting", "stopped")):
                check.that("the agent collects", False, state)
            if running.poll() is not None:
                break
            rounds += 1
    rest = running.communicate(timeout=60)[0]
    check.that("the program ends as it would without", running.returncode == 0, (running.returncode, rest.strip()))
    check.that("executions in each recording", min(counts) > 0, (rounds, counts[:5], min(counts), max(counts)))


PROFILED = """
import time, torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).cuda()
x = torch.randn(8, 256, device="cuda")
def steps():
    with torch.no_grad():
        for _ in range(50): model(x)
        for _ in range(50): graph.replay()
        torch.cuda.synchronize()
with torch.no_grad():
    model(x); torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): model(x)
print("ready", flush=True)
begin = time.time()
while time.time() - begin < 3: steps()
for _ in range(4):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        steps()
    events = [e for e in profiler.profiler.kineto_results.events() if str(e.device_type()).endswith("CUDA")]
    print(len(events), flush=True)
    begin = time.time()
    while time.time() - begin < 2: steps()
"""


def profiler(probe, agent):
    alone = [int(line) for line in program(agent, PROFILED).communicate(timeout=120)[0].split()[1:]]
    with tempfile.TemporaryDirectory() as folder:
        # the profiler begins while gpuprobe collects from the start, and while it is attached to the running program
        command = [probe, "run", "--gpu-time", "-q", "-o", f"{folder}/run.jsonl", "--", sys.executable, "-c", PROFILED]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        under = [int(line) for line in done.stdout.split()[1:]]
        check.that("torch.profiler under run --gpu-time", under == alone, (under, alone))
        print("\n".join(line for line in done.stderr.splitlines() if "CUPTI" in line))
        running = program(agent, PROFILED)
        running.stdout.readline()
        command = [probe, "record", "-d", str(running.pid), "--gpu-time", "-q", "-o", f"{folder}/late.jsonl"]
        recorder = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        beside = [int(line) for line in running.communicate(timeout=120)[0].split()]
        said = recorder.communicate(timeout=60)[1]
        check.that("torch.profiler beside record --gpu-time", beside == alone, (beside, alone))
        print("\n".join(line for line in said.splitlines() if "CUPTI" in line))


what = sys.argv[1]
if what == "compare":
    compare(*sys.argv[2:5])
elif what == "share":
    share(*sys.argv[2:4])
elif what == "late":
    late(*sys.argv[2:5])
else:
    profiler(*sys.argv[2:4])
check.end()
