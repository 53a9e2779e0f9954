"""Allocates from known lines of a PyTorch program, and prints how many bytes each line has live.

    torch_lines.py                 prints the ledger as JSON and ends
    torch_lines.py --wait SECONDS  goes on for a while first, one step every 20 ms

PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set: each tensor is then one allocation of the CUDA driver.
"""
import json
import os
import sys
import time

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
import torch

SIZE = 1 << 20
kept = []


def line():
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def remember():
    kept.append(torch.empty(SIZE, dtype=torch.uint8, device="cuda")); return line()


class Cache:
    def grow(self, tensor):
        kept.append(tensor.clone()); return line()


def generate(tensor):
    while True:
        kept.append(tensor * 2); yield line()


tensor = torch.ones(SIZE, dtype=torch.uint8, device="cuda")
cache, generator, ledger = Cache(), generate(tensor), {}
end = time.monotonic() + (float(sys.argv[2]) if sys.argv[1:2] == ["--wait"] else 0)
steps = 0
while steps < 8 or time.monotonic() < end:
    for name, at in (("remember", remember()), ("Cache.grow", cache.grow(tensor)), ("generate", next(generator))):
        ledger[f"{name} (torch_lines.py:{at})"] = ledger.get(f"{name} (torch_lines.py:{at})", 0) + SIZE
    steps += 1
    if end:
        time.sleep(0.02)
torch.cuda.synchronize()
print(json.dumps({"lines": ledger, "steps": steps}))
