"""Cars on 128 roundabouts of a town, one hour ahead: gated convolutions over time, a learned graph between places."""
import math
import time

import torch
from torch import nn

cfg = {
    "data": {"places": 128, "window": 16, "days": 20},
    "model": {"width": 32, "layers": 3, "embedding": 12},
    "train": {"batch": 32, "steps": 70, "lr": 1e-3, "clip": 5.0},
}


def town(places, days, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(days * 96) / 96 * 2 * math.pi
    phase, size = torch.rand(places, generator=g), 0.5 + torch.rand(places, generator=g)
    rush = torch.exp(torch.sin(t[:, None] + phase)) + torch.exp(torch.sin(2 * t[:, None] - 2 * phase))
    roads = torch.softmax(3 * torch.randn(places, places, generator=g), 1)
    noise = torch.randn(len(t), places, generator=g)
    for k in range(1, len(noise)):
        noise[k] = 0.7 * noise[k - 1] @ roads + 0.3 * noise[k]
    cars = size * rush + 0.5 * noise
    return (cars - cars.mean(0)) / cars.std(0)


class Layer(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.gated = nn.Conv2d(width, 2 * width, (1, 3), dilation=(1, dilation), padding=(0, dilation))
        self.mix = nn.Conv2d(3 * width, width, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x, graph):
        h = nn.functional.glu(self.gated(x), 1)
        near = torch.einsum("uv,bcvt->bcut", graph, h)
        far = torch.einsum("uv,bcvt->bcut", graph, near)
        return self.norm(x + self.mix(torch.cat([h, near, far], 1)))


class GraphWave(nn.Module):
    def __init__(self, places, window, width, layers, embedding):
        super().__init__()
        self.source = nn.Parameter(torch.randn(places, embedding))
        self.target = nn.Parameter(torch.randn(places, embedding))
        self.first = nn.Conv2d(1, width, 1)
        self.layers = nn.ModuleList(Layer(width, 2**k) for k in range(layers))
        self.last = nn.Conv2d(width, 4, (1, window))

    def forward(self, x):
        graph = torch.softmax(torch.relu(self.source @ self.target.T), 1)
        h = self.first(x)
        for layer in self.layers:
            h = layer(h, graph)
        return self.last(torch.relu(h)).squeeze(-1)


def train(data, model, train):
    cars = town(data["places"], data["days"])
    net = GraphWave(data["places"], data["window"], **model)
    print(f"{sum(p.numel() for p in net.parameters())} weights")
    optimizer = torch.optim.Adam(net.parameters(), lr=train["lr"])
    past = cars.unfold(0, data["window"] + 4, 1)
    begin = time.time()
    for step in range(1, train["steps"] + 1):
        part = past[torch.randint(len(past), (train["batch"],))]
        x, y = part[:, None, :, : data["window"]], part[..., data["window"] :].transpose(1, 2)
        loss = nn.functional.l1_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), train["clip"])
        optimizer.step()
        if step % 25 == 0:
            print(f"{step}: {loss.item():.3f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


torch.manual_seed(4)
train(**cfg)
