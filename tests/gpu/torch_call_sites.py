"""A program that does not allocate through PyTorch alone: tensors, a cuBLAS call, pinned memory, and one allocation through
ctypes. Prints the GPU memory that PyTorch's allocator has reserved, and its own allocation.

    torch_call_sites.py       with PYTORCH_ALLOC_CONF=expandable_segments:True PyTorch uses cuMemCreate
"""

import ctypes
import json
import pathlib

import torch

OWN_BYTES = 7_000_000


def runtime():
    """The runtime library that PyTorch has loaded."""
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8")
    return ctypes.CDLL(next(line.split()[-1] for line in maps.splitlines() if "libcudart" in line))


def main():
    device = torch.device("cuda")
    kept = [torch.zeros(size, device=device) for size in (1000, 1_000_000, 30_000_000)]
    left, right = (torch.randn(512, 512, device=device) for _ in range(2))
    torch.matmul(left, right)
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    for size in range(1, 40):
        torch.ones(size * 100_000, device=device).sum().item()
    torch.cuda.empty_cache()
    own = ctypes.c_void_p()
    status = runtime().cudaMalloc(ctypes.byref(own), ctypes.c_size_t(OWN_BYTES))
    assert status == 0, f"cudaMalloc: {status}"
    torch.cuda.synchronize()
    said = {"reserved": torch.cuda.memory_reserved(), "own": OWN_BYTES, "kept": len(kept), "pinned": pinned.nbytes}
    torch.cuda.cudart().cudaProfilerStart()
    print(json.dumps(said), flush=True)


main()
