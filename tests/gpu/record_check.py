#!/usr/bin/env python3
"""Compares recordings of a running PyTorch program, with and without a return probe on every launch.

    record_check.py GPUPROBE

The program makes a known number of steps (benches/gpu/steps.py) while each recording runs, and each step launches the same
CUDA kernels. Both recordings, and those of each layer, must have as many launches of each kernel, each launch of the CUDA
driver that the CUDA runtime makes must be inside one of the runtime, and calls of a thread must not overlap. Prints
`N passed, N failed` as the last line; exits 1 if any failed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

here = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(here, "../shared"))
from checks import Checks  # noqa: E402

STEPS = 100
WORKLOADS = ("decoder", "training")
WAYS = {
    "every return": ["--all-launch-returns"],
    "default": [],
    "driver": ["--layer", "driver"],
    "runtime": ["--layer", "runtime"],
}


class Program:
    def __init__(self, workload):
        self.process = subprocess.Popen(
            [sys.executable, f"{here}/../../benches/gpu/steps.py", workload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.process.stdout.readline()

    def make(self, steps):
        self.process.stdin.write(f"part {steps}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def record(probe, program, options, trace):
    """The calls of STEPS steps, in the order of the trace."""
    command = [probe, "record", "-d", str(program.process.pid), "-o", trace, *options]
    recorder = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in recorder.stderr:
        if "gpuprobe: recording" in line:
            break
    program.make(STEPS)
    recorder.send_signal(signal.SIGINT)
    said = recorder.stderr.read()
    assert recorder.wait() == 0 and "0 lost" in said, said
    with open(trace) as lines:
        events = [json.loads(line) for line in lines]
    return [event for event in events if "api" in event]


def end_ns(call):
    return round(call["ts"] * 1e9 + call["duration_us"] * 1e3)


def overlapping(calls):
    """Outermost calls that begin before the previous one of their thread has ended."""
    threads = defaultdict(list)
    for call in calls:
        if "parent" not in call and "duration_us" in call:
            threads[call["tid"]].append(call)
    found = 0
    for of_thread in threads.values():
        of_thread.sort(key=lambda call: call["ts"])
        found += sum(end_ns(a) > round(b["ts"] * 1e9) + 1 for a, b in zip(of_thread, of_thread[1:]))
    return found


def kernels(calls):
    """Launches by kernel: each once, whichever layers were recorded."""
    return Counter(call.get("kernel") for call in calls if call["type"] == "launch" and not call.get("nested"))


def main():
    check = Checks()
    for workload in WORKLOADS:
        program, expected = Program(workload), None
        for way, options in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                calls = record(sys.argv[1], program, options, f"{folder}/t.jsonl")
            launches = [call for call in calls if call["type"] == "launch"]
            name = f"{workload}, {way}"
            seen = kernels(calls)
            expected = expected or seen
            per_step = sum(seen.values()) / STEPS
            # libraries such as cuBLAS launch through the CUDA driver
            right = seen.items() <= expected.items() if way == "runtime" else seen == expected
            check.that(f"{name}: the same launches of each kernel", right, f"{per_step} a step, {len(seen)} kernels")
            by_id = {call["event_id"]: call for call in calls}
            of_runtime = [call for call in launches if call["api"] == "runtime"]
            inner = [call for call in launches if call.get("nested")]
            nested = all(by_id[call["parent"]]["api"] == "runtime" for call in inner)
            pairs = len(inner) == len(of_runtime) if way in ("every return", "default") else not inner
            check.that(f"{name}: inner launches are inside launches of the runtime", nested and pairs, len(inner))
            unprobed = sum(not call.get("return_probed", True) for call in launches) / len(launches)
            right = unprobed == 0 if way == "every return" else unprobed > 0.75 or way == "runtime"
            check.that(f"{name}: share of launches without a return probe", right, f"{unprobed:.3f}")
            check.that(f"{name}: calls that overlap", overlapping(calls) == 0, overlapping(calls))
            check.that(f"{name}: failures", not any("error" in call for call in launches), 0)
        program.end()
    check.end()


main()
