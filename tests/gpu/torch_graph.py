"""A training loop of PyTorch, eager and by replaying a CUDA graph of the whole step, that stops after each part.

    torch_graph.py              prints `ready`, `eager STEPS` and `graph STEPS` (the steps since the previous line), and
                                waits for a line on stdin after each
    torch_graph.py --profile    counts the kernels of the same steps by torch.profiler; prints one JSON object

The steps of each kind are between cudaProfilerStart and cudaProfilerStop, which a trace shows like any other call.
"""

import json
import sys
import tempfile

import torch

STEPS = 50


def build():
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    batch, target = torch.randn(64, 256, device=device), torch.randn(64, 16, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    return {"eager": step, "graph": graph.replay}


def steps_of(step):
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()


def profiled(step):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        steps_of(step)
    # the GPU events also contain ranges of the program itself; the exported trace distinguishes them
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        recorded.export_chrome_trace(file.name)
        events = json.load(open(file.name, encoding="utf-8"))["traceEvents"]
    return sum(1 for event in events if event.get("cat") == "kernel")


def say(text):
    print(text, flush=True)
    sys.stdin.readline()


def main():
    kinds = build()
    if "--profile" in sys.argv:
        print(json.dumps({"steps": STEPS} | {kind: profiled(step) for kind, step in kinds.items()}))
        return
    say("ready")
    for kind, step in kinds.items():
        torch.cuda.profiler.start()
        steps_of(step)
        torch.cuda.profiler.stop()
        say(f"{kind} {STEPS}")


main()
