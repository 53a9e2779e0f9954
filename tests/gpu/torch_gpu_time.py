"""A decoder or a training loop, for comparing GPU times: torch_gpu_time.py decoder|training|graph [--profile FILE]

With --profile, torch.profiler observes the whole program, and what it saw is written to the file as JSON.
"""

import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

STEPS = 100


class Block(torch.nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)
        return x + self.down(torch.relu(self.up(x)))


def decoder():
    model = torch.nn.Sequential(*(Block() for _ in range(12))).cuda()
    x = torch.randn(1, 16, 256, device="cuda")
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
    model = torch.nn.Sequential(*(Block() for _ in range(4))).cuda()
    x = torch.randn(1, 16, 256, device="cuda")
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
