"""Allocates and frees tensors in several threads, pauses 20 times, and prints PyTorch's own account of each pause. It goes on
after a line on stdin.

    {"pid": 1, "allocated": 1024, "reserved": 2097152}
"""

import json
import os
import random
import sys
import threading

import torch

PAUSES, THREADS, STEPS = 20, 4, 500
kept = [[] for _ in range(THREADS)]


def grow(mine, size):
    mine.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def copy(mine):
    mine.append(random.choice(mine).clone())


def work(mine, seed):
    chance = random.Random(seed)
    for _ in range(STEPS):
        if not mine or chance.random() < 0.4:
            grow(mine, chance.randrange(1, 1 << 20))
        elif chance.random() < 0.5:
            copy(mine)
        else:
            mine.pop(chance.randrange(len(mine)))


torch.cuda.init()
for pause in range(PAUSES):
    threads = [threading.Thread(target=work, args=(mine, 100 * pause + at)) for at, mine in enumerate(kept)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if pause % 5 == 4:
        torch.cuda.empty_cache()
    account = {"pid": os.getpid(), "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    print(json.dumps(account), flush=True)
    sys.stdin.readline()
