"""A PyTorch program that prints its operations between two marks, and the CUDA allocations of its allocator.

The marks are cudaProfilerStart and cudaProfilerStop, which a trace shows like any other call. With --profile
torch.profiler counts the same steps instead, for comparison. Prints one JSON object.
"""

import json
import sys

import torch

STEPS = 500
COPIES = 10
MATMULS = 20


def run_steps(x, a, b):
    for _ in range(STEPS):
        x.add_(1.0)
    for _ in range(COPIES):
        host = torch.ones(1024)
        device = host.to("cuda")
        device.cpu()
    for _ in range(MATMULS):
        torch.matmul(a, b)


def warm():
    x = torch.zeros(1 << 16, device="cuda")
    a = torch.randn(256, 256, device="cuda")
    b = torch.randn(256, 256, device="cuda")
    run_steps(x, a, b)
    torch.cuda.synchronize()
    return x, a, b


def profiled(x, a, b):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        run_steps(x, a, b)
        torch.cuda.synchronize()
    counts = {}
    for event in recorded.events():
        if event.name.startswith("cuda") or event.name.startswith("cu"):
            counts[event.name] = counts.get(event.name, 0) + 1
    kernels = sum(1 for e in recorded.events() if str(e.device_type).endswith("CUDA") and "Mem" not in e.name)
    print(json.dumps({"profiler": counts, "kernels": kernels}))


def main():
    x, a, b = warm()
    if "--profile" in sys.argv:
        profiled(x, a, b)
        return
    torch.cuda.profiler.start()
    run_steps(x, a, b)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    kept = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
    stats = torch.cuda.memory_stats()
    print(
        json.dumps(
            {
                "add": STEPS,
                "h2d": COPIES,
                "d2h": COPIES,
                "copied": 2 * COPIES * 1024 * 4,
                "matmul": MATMULS,
                "synchronize": 1,
                "device_allocs": stats["num_device_alloc"],
                "device_frees": stats["num_device_free"],
                "reserved": torch.cuda.memory_reserved(),
                "kept": len(kept),
            }
        )
    )


main()
