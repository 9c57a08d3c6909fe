"""Click prediction on two processes. Start it by: torchrun --nproc-per-node 2 train.py"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class CrossNet(nn.Module):
    def __init__(self, fields=24, dim=16):
        super().__init__()
        self.embeddings = nn.Embedding(fields * 200, dim)
        self.register_buffer("offsets", torch.arange(fields) * 200)
        width = fields * dim
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(width, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 1))

    def forward(self, ids):
        x0 = x = self.embeddings(ids + self.offsets).flatten(1)
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.deep(x).squeeze(1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(17)
    ids = torch.randint(0, 200, (76800, 24))
    clicks = (ids[:, 0] > ids[:, 1]).float()
    data = TensorDataset(ids, clicks)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=256, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(CrossNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    start = time.time()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            if i % 50 == 0 and dist.get_rank() == 0:
                print(f"[{epoch}:{i}/{len(loader)}] {loss.item():.4f}", flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "clicks.pt")
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
