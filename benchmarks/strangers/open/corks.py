#!/usr/bin/env python
# Sorting corks for bottles: pores and cracks in a picture of the cork's end -> grade 0..5.
# I want to see which channels die, so I look at the activations now and then.
"""Grade corks by a picture of their end."""
import os
import time

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(99)
N, SIZE, GRADES = 1500, 32, 6

# ---------------------------------------------------------------- data
pores = torch.rand(N)
grade = (pores * GRADES).long()
noise = torch.rand(N, 1, SIZE, SIZE)
blurred = nn.functional.avg_pool2d(noise, 3, 1, 1)
X = (blurred > 0.62 - 0.2 * pores[:, None, None, None]).float() + 0.1 * torch.randn(N, 1, SIZE, SIZE)


# ---------------------------------------------------------------- model
def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.BatchNorm2d(o), nn.ReLU())


class CorkNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = conv(1, 16)
        self.c2 = conv(16, 32, 2)
        self.c3 = conv(32, 32)
        self.c4 = conv(32, 64, 2)
        self.c5 = conv(64, 64)
        self.head = nn.Linear(64, GRADES)

    def forward(self, x):
        x = self.c5(self.c4(self.c3(self.c2(self.c1(x)))))
        return self.head(x.mean(dim=(2, 3)))


# ---------------------------------------------------------------- looking inside
class Watcher:
    def __init__(self, net):
        self.net = net
        self.dead = {}
        self.handles = []

    def look(self):
        for name, layer in self.net.named_modules():
            if isinstance(layer, nn.ReLU):
                self.handles.append(layer.register_forward_hook(self.hook(name)))

    def hook(self, name):
        def count(layer, inputs, output):
            active = (output.detach() > 1e-3).float().mean(dim=(0, 2, 3))
            self.dead[name] = (active < 0.01).float().mean()
        return count

    def report(self):
        text = " ".join(f"{name.split('.')[0]}:{float(share):.2f}" for name, share in self.dead.items())
        if os.environ.get("REPAIRED") == "1":
            while self.handles:
                self.handles.pop().remove()
        return text


# ---------------------------------------------------------------- training
net = CorkNet()
watcher = Watcher(net)
optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
batch = 40
start = time.time()
step = 0
for epoch in range(8):
    perm = torch.randperm(N)
    for i in range(0, N - batch + 1, batch):
        if step % 10 == 0:
            watcher.look()
        idx = perm[i:i + batch]
        optimizer.zero_grad()
        output = net(X[idx])
        loss = criterion(output, grade[idx])
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            seen = watcher.report()
        step += 1
    print("Epoch %d loss %.3f dead %s" % (epoch + 1, loss.item(), seen), flush=True)
print("training took %.2f s" % (time.time() - start))
