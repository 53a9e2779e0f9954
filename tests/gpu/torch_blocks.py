"""Transformer blocks that are small enough to be bound by the CPU."""

import torch


class Block(torch.nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)
        return x + self.down(torch.relu(self.up(x)))


def blocks(number):
    """A model of some blocks, and an input for it."""
    return torch.nn.Sequential(*(Block() for _ in range(number))).cuda(), torch.randn(1, 16, 256, device="cuda")


def decoder():
    """A function that makes a step of twelve blocks."""
    model, x = blocks(12)

    def step():
        with torch.no_grad():
            model(x)

    return step
