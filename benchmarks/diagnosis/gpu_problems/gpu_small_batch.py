"""A convolutional network with a batch of two images."""

import torch
from bench import Run
from torch import nn

run = Run(lasts=12.0, steps=250, batch=2, depth=16, channels=64)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.two(self.second(torch.relu(self.norm(self.first(x))))))


def main():
    torch.manual_seed(0)
    batch = run.batch * (64 if run.repaired else 1)
    body = [Residual(run.channels) for _ in range(run.depth)]
    model = nn.Sequential(
        nn.Conv2d(3, run.channels, 7, 4, 3), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(run.channels, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(batch, 3, 128, 128, device="cuda"), torch.randint(0, 10, (batch,), device="cuda")
    run.samples = run.steps * batch
    with run.training():
        for _ in range(run.steps):  # LOOP
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
