"""PyTorch's MNIST example: a small CNN, Adadelta, a step schedule, and a test epoch after each training epoch."""

import counted
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 16, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16 * 12 * 12, 10)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(self.dropout(functional.max_pool2d(x, 2)), 1)
        return functional.log_softmax(self.fc(x), dim=1)


train_loader = DataLoader(counted.Rows(torch.randn(160, 1, 28, 28), torch.randint(0, 10, (160,))), 16, shuffle=True)
test_loader = DataLoader(counted.Rows(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))), 32)
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
losses, steps, tested = [], 0, 0
for _ in range(3 * counted.SCALE):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        steps += 1
        if batch_idx % 4 == 0:
            losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        for data, target in test_loader:
            losses.append(functional.nll_loss(model(data), target, reduction="sum").item())
            tested += 1
    scheduler.step()
counted.finish(model, train=steps, evaluation=tested, losses=losses, forwards=steps + tested)
