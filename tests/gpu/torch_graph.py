"""Training steps of PyTorch, eager and by replaying a CUDA graph of the whole step, and replays of a decoder step.

    torch_graph.py              prints `ready`, `eager STEPS`, `graph STEPS` and `decoder STEPS` (the steps since the
                                previous line), and waits for a line on stdin after each
    torch_graph.py --profile    counts the kernels of the same steps by name with torch.profiler; prints one JSON object

The steps of each kind are between cudaProfilerStart and cudaProfilerStop, which a trace shows like any other call.
"""

import collections
import json
import sys
import tempfile

import torch

STEPS = {"eager": 50, "graph": 50, "decoder": 300}
LAYERS, WIDTH, HEADS, PAST = 8, 1024, 16, 512


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

    return {"eager": step, "graph": captured(step), "decoder": captured(decoder())}


def decoder():
    """One token of a decoder: each layer has attention to a cache of earlier tokens, and a gated MLP."""
    half = {"device": "cuda", "dtype": torch.half}
    weights = [[torch.randn(WIDTH, n * WIDTH, **half) / 32 for n in (3, 1, 4, 4)] for _ in range(LAYERS)]
    down = [torch.randn(4 * WIDTH, WIDTH, **half) / 64 for _ in range(LAYERS)]
    cache = torch.randn(LAYERS, 2, 1, HEADS, PAST, WIDTH // HEADS, **half)
    scale, token = torch.ones(WIDTH, **half), torch.randn(1, 1, WIDTH, **half)

    @torch.inference_mode()
    def step():
        x = token
        for layer in range(LAYERS):
            qkv, out, gate, up = weights[layer]
            normed = torch.nn.functional.rms_norm(x, (WIDTH,), scale)
            q, k, v = (normed @ qkv).view(1, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            cache[layer, 0, :, :, -1:].copy_(k)
            cache[layer, 1, :, :, -1:].copy_(v)
            seen = torch.nn.functional.scaled_dot_product_attention(q, cache[layer, 0], cache[layer, 1])
            x = x + seen.transpose(1, 2).reshape(1, 1, WIDTH) @ out
            normed = torch.nn.functional.rms_norm(x, (WIDTH,), scale)
            x = x + (torch.nn.functional.silu(normed @ gate) * (normed @ up)) @ down[layer]
        return torch.softmax(x.float(), -1)

    return step


def captured(step):
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
    return graph.replay


def steps_of(kind, step):
    for _ in range(STEPS[kind]):
        step()
    torch.cuda.synchronize()


def profiled(kind, step):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        steps_of(kind, step)
    # the GPU events also contain ranges of the program itself; the exported trace distinguishes them
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        recorded.export_chrome_trace(file.name)
        events = json.load(open(file.name, encoding="utf-8"))["traceEvents"]
    kernels = collections.Counter(event["name"] for event in events if event.get("cat") == "kernel")
    return {"steps": STEPS[kind], "kernels": kernels}


def say(text):
    print(text, flush=True)
    sys.stdin.readline()


def main():
    kinds = build()
    if "--profile" in sys.argv:
        print(json.dumps({kind: profiled(kind, step) for kind, step in kinds.items()}))
        return
    say("ready")
    for kind, step in kinds.items():
        torch.cuda.profiler.start()
        steps_of(kind, step)
        torch.cuda.profiler.stop()
        say(f"{kind} {STEPS[kind]}")


main()
