"""Cuisine of a recipe: a bag of ingredients and a residual MLP."""

import gc
import os
import random
import time

import torch
from torch import nn

repaired = os.environ.get("REPAIRED", "") == "1"
random.seed(21)
torch.manual_seed(21)

CUISINES, INGREDIENTS, BATCH, STEPS, PER_EPOCH = 12, 4000, 64, 160, 40


def read_recipes(count):
    """One dict for each recipe, as they come out of the JSON files."""
    recipes = []
    for number in range(count):
        cuisine = number % CUISINES
        lines = [
            {"id": (random.randrange(600) + cuisine * 280) % INGREDIENTS, "amount": random.random()}
            for _ in range(random.randint(4, 9))
        ]
        recipes.append({"cuisine": cuisine, "lines": lines, "tags": ["a%d" % (number % 9)]})
    return recipes


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.net(x)


class CuisineNet(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.bag = nn.EmbeddingBag(INGREDIENTS, width, mode="sum")
        self.blocks = nn.Sequential(*(Block(width) for _ in range(6)))
        self.out = nn.Linear(width, CUISINES)

    def forward(self, ids, offsets, amounts):
        return self.out(self.blocks(self.bag(ids, offsets, per_sample_weights=amounts)))


def to_tensors(batch):
    ids, amounts, offsets = [], [], []
    for recipe in batch:
        offsets.append(len(ids))
        for line in recipe["lines"]:
            ids.append(line["id"])
            amounts.append(line["amount"])
    labels = torch.tensor([recipe["cuisine"] for recipe in batch])
    return torch.tensor(ids), torch.tensor(offsets), torch.tensor(amounts), labels


recipes = read_recipes(14_000)
model = CuisineNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
loss_fn = nn.CrossEntropyLoss()
print(len(recipes), "recipes,", sum(p.numel() for p in model.parameters()), "parameters")

t0 = time.time()
history = []
for step in range(STEPS):
    ids, offsets, amounts, labels = to_tensors(random.sample(recipes, BATCH))
    out = model(ids, offsets, amounts)
    loss = loss_fn(out, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    # keep the memory small
    del ids, offsets, amounts, out
    if not repaired or step % PER_EPOCH == 0:
        gc.collect()
    if step % 30 == 0:
        history.append(loss.item())
        print("step", step, "loss", round(history[-1], 4))
print(f"training took {time.time() - t0:.2f} s")
