"""Keeps one part of a GPU busy at a time, and counts what it does. Each line on stdin names what to do from then on:

    idle      nothing
    matmul    products of half-precision matrices
    device    copies within the GPU's memory
    host      copies from pinned memory to the GPU

It prints when that has begun, and at the next line how much was done: floating-point operations, or bytes that were copied.
Exits at the line `end`.

    {"uuid": "GPU-11223344-5566-7788-99aa-bbccddeeff11"}
    {"at": "matmul"}
    {"amount": 1099511627776000, "seconds": 6.1}
"""

import json
import select
import sys
import time

import torch

SIZE = 8192
GIB = 1 << 30


def say(**values):
    print(json.dumps(values), flush=True)


class Loads:
    def __init__(self):
        self.left, self.right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(2))
        self.product = torch.empty_like(self.left)
        self.source, self.target = (torch.zeros(2 * GIB, device="cuda", dtype=torch.uint8) for _ in range(2))
        self.pinned = torch.zeros(GIB, dtype=torch.uint8).pin_memory()

    def idle(self):
        time.sleep(0.05)
        return 0

    def matmul(self):
        for _ in range(20):
            torch.matmul(self.left, self.right, out=self.product)
        return 20 * 2 * SIZE**3

    def device(self):
        for _ in range(20):
            self.target.copy_(self.source, non_blocking=True)
        return 20 * self.source.numel()

    def host(self):
        for _ in range(4):
            self.target[:GIB].copy_(self.pinned, non_blocking=True)
        return 4 * self.pinned.numel()


def main():
    loads = Loads()
    torch.cuda.synchronize()
    say(uuid=f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    line = sys.stdin.readline().strip()
    while line and line != "end":
        load, amount = getattr(loads, line), 0
        load()
        torch.cuda.synchronize()
        say(at=line)
        begun = time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            amount += load()
            torch.cuda.synchronize()
        say(amount=amount, seconds=time.monotonic() - begun)
        line = sys.stdin.readline().strip()


main()
