"""Allocates and frees tensors through PyTorch's caching allocator, and prints the GPU memory that the allocator has reserved.

    torch_memory.py       with PYTORCH_ALLOC_CONF=expandable_segments:True it uses cuMemCreate
"""

import json

import torch


def main():
    device = torch.device("cuda")
    kept = [torch.zeros(size, device=device) for size in (1000, 1_000_000, 30_000_000)]
    for size in range(1, 60):
        torch.ones(size * 100_000, device=device).sum().item()
    torch.cuda.empty_cache()
    grown = [torch.zeros(5_000_000, device=device) for _ in range(20)]
    torch.cuda.synchronize()
    said = {"reserved": torch.cuda.memory_reserved(), "kept": len(kept) + len(grown)}
    torch.cuda.cudart().cudaProfilerStart()
    print(json.dumps(said), flush=True)


main()
