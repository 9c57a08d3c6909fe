"""Will the mortgage be paid back? A table of applications, embeddings for what is no number, a wide and deep net."""

import argparse
import os
import tempfile
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CATEGORIES = {"region": 40, "purpose": 9, "job": 60, "house": 6, "channel": 5}
NUMBERS = ["income", "amount", "years", "age", "rate", "value", "debts", "children"]
REPAIRED = os.environ.get("REPAIRED") == "1"


def applications(rows, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({name: rng.integers(0, size, rows) for name, size in CATEGORIES.items()})
    for name in NUMBERS:
        table[name] = rng.lognormal(size=rows).astype(np.float32)
    risk = table["amount"] / table["income"] + table["debts"] - table["value"] + 0.1 * (table["job"] % 7)
    table["paid"] = (risk + rng.normal(size=rows) < 1.0).astype(np.float32)
    return table


class Applications(Dataset):
    def __init__(self, table):
        self.table = table
        self.mean, self.std = table[NUMBERS].mean(), table[NUMBERS].std()

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        row = self.table.iloc[i]
        numbers = (row[NUMBERS] - self.mean) / self.std
        kinds = row[list(CATEGORIES)].to_numpy(np.int64)
        return torch.from_numpy(kinds), torch.tensor(numbers.to_numpy(np.float32)), np.float32(row["paid"])


class InMemory(Applications):
    def __init__(self, table):
        super().__init__(table)
        self.kinds = torch.from_numpy(table[list(CATEGORIES)].to_numpy(np.int64))
        self.numbers = torch.from_numpy(((table[NUMBERS] - self.mean) / self.std).to_numpy(np.float32))
        self.paid = torch.from_numpy(table["paid"].to_numpy(np.float32))

    def __getitems__(self, rows):
        return self.kinds[rows], self.numbers[rows], self.paid[rows]


class History:
    """All that happened, as a table, so that one can look at it any time."""

    def __init__(self, path):
        self.path, self.rows, self.table = path, [], pd.DataFrame()

    def add(self, **values):
        if REPAIRED:
            self.rows.append(values)
        else:
            self.table = pd.concat([self.table, pd.DataFrame([values])], ignore_index=True)
            self.table.to_csv(self.path, index=False)

    def close(self):
        if self.rows:
            pd.DataFrame(self.rows).to_csv(self.path, index=False)


class WideAndDeep(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 16) for size in CATEGORIES.values())
        size = 16 * len(CATEGORIES) + len(NUMBERS)
        self.deep = nn.Sequential(
            nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())  # fmt: skip
        self.last = nn.Linear(size + width, 1)

    def forward(self, kinds, numbers):
        x = torch.cat([*(table(k) for table, k in zip(self.tables, kinds.unbind(1))), numbers], 1)
        return self.last(torch.cat([x, self.deep(x)], 1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = (InMemory if REPAIRED else Applications)(applications(args.rows, 5))
    loader = DataLoader(data, args.batch, shuffle=True, collate_fn=(lambda batch: batch) if REPAIRED else None)
    model = WideAndDeep(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        history = History(f"{folder}/history.csv")
        begin = time.time()
        for epoch in range(args.epochs):
            for step, (kinds, numbers, paid) in enumerate(loader):
                logits = model(kinds, numbers)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, paid)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right = ((logits > 0) == (paid > 0)).float().mean()
                norms = torch._foreach_norm([p.grad for p in model.parameters()])
                norms = {name: norm.item() for (name, _), norm in zip(model.named_parameters(), norms)}
                history.add(epoch=epoch, step=step, loss=loss.item(), right=right.item(), **norms)
        history.close()
        print(f"training took {time.time() - begin:.2f} s, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
