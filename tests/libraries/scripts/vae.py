"""PyTorch's VAE: methods of the model are called beside its forward; samples are decoded after each epoch."""

import counted
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 32), nn.Linear(32, 6), nn.Linear(32, 6)
        self.fc3, self.fc4 = nn.Linear(6, 32), nn.Linear(32, 64)

    def encode(self, x):
        h1 = functional.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def decode(self, z):
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = functional.binary_cross_entropy(recon_x, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loader = DataLoader(counted.Rows(torch.rand(160, 64)), 16, shuffle=True)
test_loader = DataLoader(counted.Rows(torch.rand(48, 64)), 16)
losses, steps, tested = [], 0, 0
for _ in range(3 * counted.SCALE):
    model.train()
    for (data,) in train_loader:
        optimizer.zero_grad()
        loss = loss_function(*((out := model(data))[0], data), *out[1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        steps += 1
    model.eval()
    with torch.no_grad():
        for (data,) in test_loader:
            out = model(data)
            losses.append(loss_function(out[0], data, *out[1:]).item())
            tested += 1
        model.decode(torch.randn(8, 6))
        tested += 1  # its two layers are called one by one, without a batch
counted.finish(model, train=steps, evaluation=tested, losses=losses)
