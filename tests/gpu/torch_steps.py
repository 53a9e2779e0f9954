"""Makes steps of a workload for some seconds: torch_steps.py decoder|training SECONDS

Prints lines of JSON: `ready` and the CUDA kernels of a step when it begins, then the time and its steps, every 20 steps.
"""

import json
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile
from torch_blocks import decoder


def training():
    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    host = torch.randn(4096, 4096).pin_memory()

    def step():
        loss = model(host.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def kernels_of(step):
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    on_gpu = [e for e in profiler.profiler.kineto_results.events() if str(e.device_type()).endswith("CUDA")]
    return sum(1 for e in on_gpu if not e.name().startswith(("Memcpy", "Memset", "Optimizer.", "ProfilerStep")))


def main():
    step = {"decoder": decoder, "training": training}[sys.argv[1]]()
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    print(json.dumps({"ready": True, "kernels": kernels_of(step)}), flush=True)
    begun, steps = time.time(), 0
    while time.time() - begun < float(sys.argv[2]):
        step()
        steps += 1
        if steps % 20 == 0:
            print(json.dumps({"unix": time.time(), "steps": steps}), flush=True)
    torch.cuda.synchronize()


main()
