"""A small training loop: start-up, then steady steps. Prints when the first steady step began and the last ended, on the
monotonic clock."""

import json
import sys
import time

import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(64, 256, device="cuda")


def step():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


for _ in range(20):
    step()
torch.cuda.synchronize()
begun = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
for _ in range(steps):
    step()
    torch.cuda.synchronize()
ended = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
print(json.dumps({"steps": steps, "begun_ns": begun, "ended_ns": ended}))
