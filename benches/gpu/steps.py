"""Trains a small model, some steps at a time: one of the programs that benches/gpu/overhead.py measures.

Prints `ready RUNTIME DRIVER`, the paths of its CUDA libraries. It executes each line of stdin and answers with one
line: `part N` makes N steps and prints the microseconds per step in wall time and in CPU time of all threads;
`profile` starts torch.profiler, and `end` stops it.
"""

import os
import re
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile


def pin_threads():
    """Pins this thread to one CPU and all others to another, the same ones in all compared programs."""
    first, second = sorted(os.sched_getaffinity(0))[-2:]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {first if int(thread) == os.getpid() else second})


def main():
    device = torch.device("cuda")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256, device=device)

    def part(steps):
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        took = time.perf_counter() - begun, time.process_time() - cpu
        return [seconds / steps * 1e6 for seconds in took]

    part(200)
    pin_threads()
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[-1] for line in maps if "r-xp" in line]
    # the CUDA runtime and the CUDA driver, or copies of them
    names = (r"/(lib|twin\.)cudart\.so", r"/(lib|twin\.)cuda\.so")
    print("ready", *(next(path for path in mapped if re.search(name, path)) for name in names), flush=True)
    profiler = None
    for line in sys.stdin:
        what, *number = line.split()
        if what == "part":
            print(*part(int(number[0])), flush=True)
            continue
        if what == "profile":
            profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            profiler.start()
        elif profiler:
            profiler.stop()
            profiler = None
        print("done", flush=True)


main()
