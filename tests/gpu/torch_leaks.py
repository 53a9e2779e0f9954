"""A training loop with four leaks, each on a line of its own. Prints its pid and the lines that leak, and trains for some seconds.

    torch_leaks.py SECONDS
"""

import inspect
import json
import os
import sys
import time

import torch
from torch import nn

LEAKS = []


def leaks(marked):
    """Marks a function whose line with the comment `leaks` leaks."""
    lines, first = inspect.getsourcelines(marked)
    at = first + next(number for number, line in enumerate(lines) if line.rstrip().endswith("# leaks"))
    LEAKS.append(f"{marked.__qualname__} (torch_leaks.py:{at})")
    return marked


model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
# without gradients, so that its output keeps nothing else
observed = nn.Sequential(nn.Linear(1024, 512), nn.ReLU()).cuda().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, cached, activations, STATE = [], [], [], {}
observed.register_forward_hook(lambda module, inputs, output: activations.append(output))


@leaks
def validate():
    losses.append(model(torch.randn(64, 1024, device="cuda")).square().mean())  # leaks


@leaks
def remember(batch):
    cached.append(batch.clone())  # leaks


@leaks
def observe(batch):
    observed(batch)  # leaks


@leaks
def count(step):
    STATE[step] = torch.zeros(64 << 10, device="cuda")  # leaks


def train(batch, target):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), target)
    loss.backward()
    optimizer.step()


print(json.dumps({"pid": os.getpid(), "leaks": LEAKS}), flush=True)
end, step = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    batch, target = torch.randn(64, 1024, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    train(batch, target)
    validate()
    remember(batch)
    observe(batch)
    count(step)
    step += 1
    time.sleep(0.05)
