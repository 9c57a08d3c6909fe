"""PyTorch's super resolution: workers in both loaders, a test after each epoch, and the model saved as a whole."""

import io

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, 1, 2), nn.Conv2d(16, factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(factor)
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(torch.relu(self.conv1(x))))


def pairs(count):
    large = torch.rand(count, 1, 32, 32)
    return counted.Rows(nn.functional.avg_pool2d(large, 2), large)


model, criterion = Net(2), nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
training = DataLoader(pairs(64), num_workers=2, batch_size=8, shuffle=True)
testing = DataLoader(pairs(16), num_workers=1, batch_size=8)
losses, steps, tested = [], 0, 0
for _ in range(2 * counted.SCALE):
    for small, large in training:
        optimizer.zero_grad()
        loss = criterion(model(small), large)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        steps += 1
    with torch.no_grad():
        for small, large in testing:
            losses.append(10 * torch.log10(1 / criterion(model(small), large)).item())
            tested += 1
    torch.save(model, io.BytesIO())
counted.finish(model, train=steps, evaluation=tested, losses=losses, forwards=steps + tested)
