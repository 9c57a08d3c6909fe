"""Nothing wrong: a small convolutional network, trained by a class."""

import torch
import torch.nn.functional as F
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=150, channels=24, batch=24)


class Pictures(Dataset):
    def __init__(self, count):
        self.pixels = torch.randint(0, 256, (256, 3, 24, 24), dtype=torch.uint8)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.pixels[index % 256].float().div_(255), index % 5


class Net(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels * 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels * 2)
        self.head = nn.Linear(channels * 2 * 36, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.second(x))), 2)
        return self.head(x.flatten(1))


class Trainer:
    def __init__(self, net, loader):
        self.net, self.loader = net, loader
        self.opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def fit(self):
        self.net.train()
        model = self.net
        for pixels, kinds in self.loader:  # LOOP
            self.opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(pixels), kinds)
            loss.backward()
            self.opt.step()


trainer = Trainer(Net(run.channels), DataLoader(Pictures(run.steps * run.batch), run.batch))
with run.training():
    trainer.fit()
run.close()
