"""Runs out of memory: it may use 1% of the GPU. Prints PyTorch's account and the text of the exception."""

import json
import os

import torch

torch.cuda.set_per_process_memory_fraction(0.01)
kept = []


def fill():
    while True:
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))


try:
    fill()
except torch.cuda.OutOfMemoryError as error:
    account = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    print(json.dumps({"pid": os.getpid(), **account, "requested": 64 << 20, "text": str(error)}), flush=True)
