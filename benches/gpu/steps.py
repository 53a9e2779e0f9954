"""Trains a small model, as many steps as it is told: the program that benches/gpu/overhead.py measures.

Says `ready RUNTIME DRIVER`, the paths of its CUDA libraries, and then for every line it reads, `steps N` or `profiled N`,
how many microseconds a step took by the clock and of CPU time of all its threads: medians over parts of ten steps each. The
second is under torch.profiler.
"""

import os
import statistics
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile


PART = 10
# enough for its threads; it is not to be moved about meanwhile
CPUS = 4


def main():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-CPUS:])
    device = torch.device("cuda")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256, device=device)

    def part():
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(PART):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - begun, time.process_time() - cpu

    def train(steps):
        parts = [part() for _ in range(steps // PART)]
        return [statistics.median(times) / PART * 1e6 for times in zip(*parts)]

    train(200)
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[-1] for line in maps if ".so" in line]
    libraries = [next(path for path in mapped if name in path) for name in ("libcudart.so", "libcuda.so")]
    print("ready", *libraries, flush=True)
    for line in sys.stdin:
        what, steps = line.split()
        if what == "profiled":
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
                train(20)
                took = train(int(steps))
        else:
            train(20)
            took = train(int(steps))
        print(*took, flush=True)


main()
