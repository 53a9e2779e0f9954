"""A short PyTorch program to be recorded: some steps of training, or some batches of inference with a CUDA graph.

    torch_record.py train|infer
"""

import sys

import torch

STEPS = 20


def model():
    layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256), torch.nn.LayerNorm(256)]
    return torch.nn.Sequential(*layers).to("cuda")


def train():
    net, loss_of = model(), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(STEPS):
        batch = torch.randn(64, 256).to("cuda")
        loss = loss_of(net(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


@torch.inference_mode()
def infer():
    net, batch = model().eval(), torch.zeros(32, 256, device="cuda")
    pinned = torch.randn(32, 256).pin_memory()
    for _ in range(3):
        net(batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = net(batch)
    for _ in range(STEPS):
        batch.copy_(pinned, non_blocking=True)
        graph.replay()
        answer.cpu()


{"train": train, "infer": infer}[sys.argv[1]]()
torch.cuda.synchronize()
