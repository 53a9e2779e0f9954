"""Has 1 GiB of live GPU memory. Each line on stdin starts or stops matrix multiplications, and it prints which. Exits at the
end of its input.

    {"pid": 1, "reserved": 1073741824}
"""

import json
import os
import sys
import threading

import torch

GIB = 1 << 30

live = torch.empty(GIB, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print(json.dumps({"pid": os.getpid(), "reserved": torch.cuda.memory_reserved()}), flush=True)

works = threading.Event()
ends = threading.Event()


def multiply():
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    while not ends.is_set():
        if works.wait(0.1):
            for _ in range(10):
                matrix @ matrix
            torch.cuda.synchronize()


worker = None
for _ in sys.stdin:
    if works.is_set():
        works.clear()
        print(json.dumps({"at": "rest", "reserved": torch.cuda.memory_reserved()}), flush=True)
        continue
    works.set()
    if worker is None:
        worker = threading.Thread(target=multiply)
        worker.start()
    print(json.dumps({"at": "work"}), flush=True)
ends.set()
works.clear()
if worker is not None:
    worker.join()
