"""Distillation: a frozen teacher runs without gradients before the student, on each batch of a loader."""

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader

teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
student = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
loader = DataLoader(counted.Rows(torch.randn(96, 16), torch.randint(0, 4, (96,))), 8, shuffle=True)
losses, steps = [], 0
for _ in range(2 * counted.SCALE):
    for x, y in loader:
        with torch.no_grad():
            wanted = teacher(x)
        logits = student(x)
        soft = nn.functional.kl_div(
            torch.log_softmax(logits / 2, 1), torch.softmax(wanted / 2, 1), reduction="batchmean"
        )
        loss = soft * 2 + nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        steps += 1
counted.finish(student, train=steps, losses=losses, forwards=2 * steps)
