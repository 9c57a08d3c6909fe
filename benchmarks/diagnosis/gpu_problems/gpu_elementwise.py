"""Long chains of elementwise operators on large tensors, which read and write memory each time."""

import torch
from bench import Run
from torch import nn

run = Run(lasts=12.0, steps=120, size=4096, depth=12)


class Curve(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.randn(size) * 0.1) for _ in range(3))

    def forward(self, x):
        return x + torch.tanh(x * self.a + self.b) * torch.sigmoid(x * self.c)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(Curve(run.size) for _ in range(run.depth))).cuda()
    call = torch.compile(model) if run.repaired else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2 * run.size, run.size, device="cuda")
    with run.training():
        for _ in range(run.steps):  # LOOP
            call(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
