"""accelerate: a loop of one's own with accumulation, clipping, a schedule, evaluation and gathered metrics."""

import counted
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
train_rows = counted.Rows(torch.randn(200, 20), torch.randint(0, 5, (200,)))
test_rows = counted.Rows(torch.randn(50, 20), torch.randint(0, 5, (50,)))
model, optimizer, scheduler, train_loader, test_loader = accelerator.prepare(
    model, optimizer, scheduler, DataLoader(train_rows, 10, shuffle=True), DataLoader(test_rows, 10)
)
losses, steps, evaluated = [], 0, 0
for _ in range(2 * counted.SCALE):
    model.train()
    for x, y in train_loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss)
        steps += 1
    model.eval()
    for x, y in test_loader:
        with torch.no_grad():
            predicted = model(x).argmax(-1)
        accelerator.gather_for_metrics((predicted, y))
        evaluated += 1
counted.finish(accelerator.unwrap_model(model), train=steps, evaluation=evaluated, losses=losses)
