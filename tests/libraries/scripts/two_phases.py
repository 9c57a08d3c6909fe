"""Pretraining with a masked autoencoder, then fine-tuning of its encoder with a new head, optimizer and loader."""

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader

encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
decoder, head = nn.Linear(32, 20), nn.Linear(32, 3)
losses, steps, tested = [], 0, 0
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for _ in range(2 * counted.SCALE):
    for (x,) in DataLoader(counted.Rows(torch.randn(80, 20)), 8, shuffle=True):
        mask = torch.rand_like(x) < 0.3
        loss = nn.functional.mse_loss(decoder(encoder(x * ~mask))[mask], x[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        steps += 1
model = nn.Sequential(encoder, head)
for parameter in encoder.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
rows = counted.Rows(torch.randn(60, 20), torch.randint(0, 3, (60,)))
for _ in range(2 * counted.SCALE):
    for x, y in DataLoader(rows, 6, shuffle=True, num_workers=2, persistent_workers=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        steps += 1
        if steps % 7 == 0:  # an evaluation in the middle of the epoch
            model.eval()
            with torch.no_grad():
                for x_test, y_test in DataLoader(rows, 30):
                    losses.append(nn.functional.cross_entropy(model(x_test), y_test).item())
                    tested += 1
            model.train()
counted.finish(model, decoder, train=steps, evaluation=tested, losses=losses)
