"""Reads a value that a long CUDA kernel is in front of: torch_item.py SECONDS. Prints its pid before it waits."""

import json
import os
import sys

import torch


def train(step):
    return step * 2.0


def report(loss):
    return loss.item()


loss = train(torch.ones((), device="cuda"))
torch.cuda.synchronize()
# the clock of an H200 has at most 2 GHz
torch.cuda._sleep(int(float(sys.argv[1]) * 2e9))
print(json.dumps({"pid": os.getpid()}), flush=True)
report(loss)
