"""A small network learns from a large one which frequencies waves consist of."""

import time

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)


def network(width, depth):
    layers = [nn.Conv1d(1, width, 9, stride=2, padding=4), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 12))


def waves(n):
    t = torch.linspace(0, 1, 512)
    tones = torch.randint(0, 12, (n,))
    return torch.sin(2 * torch.pi * (tones[:, None] + 3) * t + torch.rand(n, 1) * 6)[:, None] + 0.3 * torch.randn(n, 1, 512)


class Distiller:
    def __init__(self, teacher, student, temperature=3.0):
        self.teacher, self.student, self.temperature = teacher.eval(), student, temperature
        self.optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)

    def step(self, batch):
        with torch.no_grad():
            soft = F.softmax(self.teacher(batch) / self.temperature, dim=1)
        guess = F.log_softmax(self.student(batch) / self.temperature, dim=1)
        loss = F.kl_div(guess, soft, reduction="batchmean") * self.temperature**2
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main():
    distiller, losses = Distiller(network(96, 5), network(48, 3)), []
    start = time.time()
    for number in range(260):
        losses.append(distiller.step(waves(32)))
        if number % 50 == 49:
            print(f"{number + 1}: {torch.stack(losses[-50:]).mean():.4f}")
    print(f"training took {time.time() - start:.2f} s")


main()
