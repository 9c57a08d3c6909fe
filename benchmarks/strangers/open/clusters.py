"""DeepCluster on textures: k-means on the features gives the labels to train on."""

import os
import time

import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import nn

REASSIGN = {"1": 150}.get(os.environ.get("REPAIRED"), 15)
K = 40


def textures(n):
    angle = torch.rand(n, 1, 1) * 3.14
    scale = 0.3 + torch.rand(n, 1, 1)
    yy, xx = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    pattern = torch.sin(scale * (xx * angle.cos() + yy * angle.sin()))
    return (pattern + 0.4 * torch.randn(n, 32, 32)).unsqueeze(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 5, 2, 2, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
            nn.Conv2d(48, 96, 3, 1, 1, bias=False), nn.BatchNorm2d(96), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.top = nn.Linear(384, K)

    def forward(self, x):
        return self.top(self.features(x))


def assign(net, images):
    net.eval()
    with torch.no_grad():
        features = torch.cat([net.features(part) for part in images.split(250)]).numpy()
    net.train()
    features = PCA(32, whiten=True, random_state=0).fit_transform(features)
    return torch.from_numpy(KMeans(K, n_init=4, random_state=0).fit_predict(features)).long()


def main():
    torch.manual_seed(4)
    images = textures(1500)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5)
    start = time.monotonic()
    for step in range(300):
        if step % REASSIGN == 0:
            pseudo = assign(net, images)
            nn.init.normal_(net.top.weight, std=0.01)
            nn.init.zeros_(net.top.bias)
        rows = torch.randint(0, len(images), (64,))
        batch = images[rows]
        if step % 2:
            batch = batch.flip(3)
        loss = nn.functional.cross_entropy(net(batch), pseudo[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}, loss {loss.item():.3f}, {pseudo.bincount(minlength=K).max().item()} in the largest")
    print(f"training took {time.monotonic() - start:.2f} s")


main()
