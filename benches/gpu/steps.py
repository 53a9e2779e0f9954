"""Makes steps of a workload, some at a time: one of the programs that benches/gpu/overhead.py measures.

    steps.py training|decoder|graph

training: a small model and its optimizer. decoder: twelve transformer blocks, called one by one, which are bound by the
CPU. graph: replays of a CUDA graph with four such blocks.

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

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/gpu"))
from torch_blocks import blocks, decoder  # noqa: E402


def pin_threads():
    """Pins this thread to one CPU and all others to another, the same ones in all compared programs."""
    first, second = sorted(os.sched_getaffinity(0))[-2:]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {first if int(thread) == os.getpid() else second})


def training():
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256, device="cuda")

    def step():
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def graph():
    model, x = blocks(4)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            model(x)
    return captured.replay


def main():
    step = {"training": training, "decoder": decoder, "graph": graph}[sys.argv[1]]()

    def part(steps):
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
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
