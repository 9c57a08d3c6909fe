"""Out of memory, caught: the batch is halved and the step tried again, with each half of the batch."""

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader

LIMIT = 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 3)

    def forward(self, x):
        if len(x) > limit:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return self.body(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size, losses, steps, forwards = 32, [], 0, 0
for epoch in range(3 * counted.SCALE):
    limit = LIMIT if epoch else 12
    loader = DataLoader(counted.Rows(torch.randn(64, 12), torch.randint(0, 3, (64,))), size, shuffle=True)
    for x, y in loader:
        pieces = [(x, y)]
        while pieces:
            xs, ys = pieces.pop(0)
            try:
                optimizer.zero_grad()
                forwards += 1
                loss = nn.functional.cross_entropy(model(xs), ys)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                half = len(xs) // 2
                size = min(size, half)
                pieces = [(xs[:half], ys[:half]), (xs[half:], ys[half:]), *pieces]
        steps += 1  # a batch of the loader is a step, however often it was tried
counted.finish(model, train=steps, losses=losses, forwards=forwards)
