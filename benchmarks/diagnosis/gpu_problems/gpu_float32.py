"""Products in full single precision, which tensor cores do not compute."""

import torch
from bench import Run
from torch import nn

run = Run(lasts=12.0, steps=120, width=4096, batch=4096)


def main():
    torch.manual_seed(0)
    if run.repaired:
        torch.set_float32_matmul_precision("high")
    layers = [layer for _ in range(4) for layer in (nn.Linear(run.width, run.width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(run.width, 100)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(run.batch, run.width, device="cuda"), torch.randint(0, 100, (run.batch,), device="cuda")
    with run.training():
        for _ in range(run.steps):  # LOOP
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
