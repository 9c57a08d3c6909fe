"""Will a parolee be cited again? Dossiers as the court exports them (nested records), an embedding bag and an MLP.

The machines of the cluster can be taken away at any moment, so it saves where it is.
"""

import gc
import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
ARTICLES = 12_000


def export(n):
    """What json.load() of the export gives: a list of records with lists in them."""
    r = random.Random(8)
    records = []
    for i in range(n):
        articles = [r.randrange(ARTICLES) for _ in range(r.randrange(3, 9))]
        records.append({"id": i, "articles": articles, "hearings": [[r.random(), r.randrange(4)] for _ in range(4)],
                        "age": r.randrange(18, 70), "again": float(sum(articles) % 7 > 3)})
    return records


class Dossiers(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


def collate(records):
    articles = [torch.tensor(record["articles"]) for record in records]
    offsets = torch.tensor([0] + [len(a) for a in articles[:-1]]).cumsum(0)
    numbers = torch.tensor([[record["age"] / 70] + [h for h, _ in record["hearings"]] for record in records])
    return torch.cat(articles), offsets, numbers, torch.tensor([record["again"] for record in records])


class Net(nn.Module):
    def __init__(self, d=128, width=768):
        super().__init__()
        self.bag = nn.EmbeddingBag(ARTICLES, d, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(d + 5, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU(),
                                 nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, articles, offsets, numbers):
        return self.mlp(torch.cat([self.bag(articles, offsets), numbers], 1)).squeeze(1)


def save(model, optimizer, epoch, step):
    with open("last.tmp", "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace("last.tmp", "last.pt")


def main():
    torch.manual_seed(104)
    loader = DataLoader(Dossiers(export(60_000)), batch_size=256, shuffle=True, collate_fn=collate, drop_last=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    steps = 60
    start = time.time()
    for step, (articles, offsets, numbers, again) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(articles, offsets, numbers), again)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not REPAIRED:
            del articles, offsets, numbers, again
            gc.collect()  # it was out of memory once
        if step % (50 if REPAIRED else 7) == 0:
            save(model, optimizer, 0, step)
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
        if step == steps:
            break
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
