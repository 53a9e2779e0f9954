"""Trains a small model for some seconds, with kernels of PyTorch, cuBLAS and Triton in every step. Prints `ready`
when all of them have been launched once, and the number of steps at the end.

    torch_loop.py SECONDS
"""

import sys
import time

import torch
import triton
import triton.language as tl


@triton.jit
def add_one_triton(x, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


def main():
    seconds = float(sys.argv[1])
    device = torch.device("cuda")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    numbers = torch.zeros(4096, device=device)

    def step():
        loss = model(torch.randn(64, 256, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        add_one_triton[(4,)](numbers, 4096, block=1024)

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    steps, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        torch.cuda.synchronize()
        steps += 1
    print(f"steps {steps}", flush=True)


main()
