"""A loader per epoch, persistent workers, an IterableDataset with sharded workers, a GradScaler on the CPU, LBFGS at the end."""

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for number in range(worker.id, 48, worker.num_workers):
            generator = torch.Generator().manual_seed(number)
            yield torch.randn(8, generator=generator), torch.randint(0, 2, (1,), generator=generator)[0]


model, losses, steps = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2)), [], 0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
rows = counted.Rows(torch.randn(48, 8), torch.randint(0, 2, (48,)))
persistent = DataLoader(rows, 8, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3)
for _ in range(2 * counted.SCALE):
    for loader in (DataLoader(rows, 8, shuffle=True), persistent, DataLoader(Shards(), 8, num_workers=2)):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            steps += 1
final = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
for x, y in DataLoader(rows, 24):

    def closure(x=x, y=y):
        final.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    losses.append(final.step(closure).item())
    steps += 1
counted.finish(model, train=steps, losses=losses)
