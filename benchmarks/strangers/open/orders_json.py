"""Recommend the next product from orders in a JSON-lines file."""

import json
import os
import random
import re
import time
from datetime import datetime

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
PRODUCTS = 6000
SPLIT = re.compile(r"[^a-z0-9]+")


def write_orders(path, count=4000):
    r = random.Random(9)
    with open(path, "w") as out:
        for n in range(count):
            items = [{"sku": r.randrange(PRODUCTS), "price": round(r.uniform(1, 99), 2), "title": f"Thing No. {r.random()}",
                      "tags": ["new", "sale", "blue"][: r.randrange(4)]} for _ in range(20)]
            when = datetime(2024, 1 + n % 12, 1 + n % 28, n % 24).isoformat()
            print(json.dumps({"id": n, "when": when, "items": items, "note": "leave at the door, please " * 12}), file=out)


class Orders(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.lines = f.readlines()
        self.ready = [self.parse(line) for line in self.lines] if REPAIRED else None

    def parse(self, line):
        order = json.loads(line)
        hour = datetime.fromisoformat(order["when"]).hour
        skus = [item["sku"] for item in order["items"]]
        words = {w for item in order["items"] for w in SPLIT.split(item["title"].lower()) if w}
        prices = [item["price"] / 100 for item in order["items"]] + [hour / 24, len(words) / 50]
        return torch.tensor(skus[:-1]), torch.tensor(prices), skus[-1] % 1500

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return self.ready[i] if self.ready else self.parse(self.lines[i])


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(PRODUCTS, 64)
        self.mlp = nn.Sequential(nn.Linear(64 + 22, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1500))

    def forward(self, skus, prices):
        return self.mlp(torch.cat([self.items(skus), prices], 1))


write_orders("orders.jsonl")
loader = DataLoader(Orders("orders.jsonl"), batch_size=64, shuffle=True)
model = Recommender()
opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
save_every = 200 if REPAIRED else 5
step, best = 0, float("inf")
t = time.time()
for epoch in range(14):
    for skus, prices, target in loader:
        loss = nn.functional.cross_entropy(model(skus, prices), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % save_every == 0:
            state = {"model": model.state_dict(), "opt": opt.state_dict(), "step": step}
            for name in ("last.pt", "best.pt") if loss.item() <= best else ("last.pt",):
                torch.save(state, name)
            best = min(best, loss.item())
    print(f"epoch {epoch}: loss {loss.item():.3f}")
print(f"training took {time.time() - t:.2f} s")
