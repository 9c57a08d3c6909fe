"""Many small layers and a small batch on the GPU; the repaired twin records the step as a CUDA graph."""

import torch
from bench import Run
from torch import nn

run = Run(lasts=12.0, steps=1500, width=64, depth=40, batch=16)


def main():
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(run.depth)
        for layer in (nn.Linear(run.width, run.width), nn.LayerNorm(run.width), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Linear(run.width, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(run.batch, run.width, device="cuda"), torch.randint(0, 10, (run.batch,), device="cuda")

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    if run.repaired:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    with run.training():
        for _ in range(run.steps):  # LOOP
            x.copy_(torch.randn(run.batch, run.width, device="cuda"))
            if run.repaired:
                graph.replay()
                run.stepped()
            else:
                step()
        torch.cuda.synchronize()
    run.close()


main()
