"""A decoder or a training loop, for comparing GPU times: torch_gpu_time.py decoder|training|graph [--profile FILE]

With --profile, torch.profiler observes the whole program, and what it saw is written to the file as JSON.
"""

import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile
from torch_blocks import blocks

STEPS = 100


def decoder():
    model, x = blocks(12)
    with torch.no_grad():
        for _ in range(STEPS):
            model(x)


def training():
    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    host = torch.randn(4096, 4096)
    for _ in range(STEPS):
        loss = model(host.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


def graph():
    model, x = blocks(4)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            model(x)
        for _ in range(STEPS):
            captured.replay()


def main():
    torch.manual_seed(0)
    program = {"decoder": decoder, "training": training, "graph": graph}[sys.argv[1]]
    if "--profile" not in sys.argv:
        program()
        torch.cuda.synchronize()
        return
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        program()
        torch.cuda.synchronize()
    events = [event for event in profiler.profiler.kineto_results.events() if str(event.device_type()).endswith("CUDA")]
    # ranges of the program that it shows as if they were executed
    events = [event for event in events if not event.name().startswith(("Optimizer.", "ProfilerStep"))]
    seen = [[event.name(), event.start_ns(), event.duration_ns()] for event in events]
    with open(sys.argv[sys.argv.index("--profile") + 1], "w") as file:
        json.dump(seen, file)


main()
