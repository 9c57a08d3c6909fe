"""Distill a large image network into a small one, with a moving average of the student."""

import argparse
import copy
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


def make(width):
    return nn.Sequential(
        conv(3, width, 2), conv(width, 2 * width, 2), conv(2 * width, 4 * width, 2), conv(4 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 20),
    )


def train(teacher, student, average, loader, optimizer, temperature):
    student.train()
    bar = tqdm(loader, mininterval=5)
    for i, (x, y) in enumerate(bar):
        with torch.no_grad():
            wanted = F.log_softmax(teacher(x) / temperature, dim=1)
        scores = student(x)
        soft = F.kl_div(F.log_softmax(scores / temperature, dim=1), wanted, log_target=True, reduction="batchmean")
        loss = 0.7 * temperature**2 * soft + 0.3 * F.cross_entropy(scores, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(student.parameters()), 0.01)
        if i % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--epochs", type=int, default=4)
    cli.add_argument("--temperature", type=float, default=4.0)
    opt = cli.parse_args()
    torch.manual_seed(0)
    teacher, student = make(24).eval(), make(16)
    average = copy.deepcopy(student)
    images, labels = torch.rand(4000, 3, 64, 64), torch.randint(0, 20, (4000,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(student.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    began = time.time()
    for _ in range(opt.epochs):
        train(teacher, student, average, loader, optimizer, opt.temperature)
    torch.save(average.state_dict(), "student.pt")
    print(f"training took {time.time() - began:.2f} s")


if __name__ == "__main__":
    main()
