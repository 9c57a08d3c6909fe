#!/usr/bin/env python
"""Route support tickets to teams: texts in SQLite, a bidirectional GRU.

python train.py --epochs 2 --batch-size 16
"""
import argparse
import json
import os
import random
import sqlite3
import sys
import time
import uuid

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TEAMS = ["billing", "network", "hardware", "accounts", "returns", "legal"]
WORDS = ["w%04d" % i for i in range(3000)]


def make_database(path, n, seed):
    rng = random.Random(seed)
    db = sqlite3.connect(path)
    db.execute("DROP TABLE IF EXISTS tickets")
    db.execute("CREATE TABLE tickets (ticket TEXT, opened REAL, payload TEXT)")
    keys = []
    for _ in range(n):
        team = rng.randrange(len(TEAMS))
        text = " ".join(rng.choices(WORDS[team * 100 :], k=rng.randint(30, 90)))
        key = str(uuid.UUID(int=rng.getrandbits(128)))
        db.execute("INSERT INTO tickets VALUES (?, ?, ?)", (key, rng.random(), json.dumps({"text": text, "team": team})))
        keys.append(key)
    if os.environ.get("REPAIRED") == "1":
        db.execute("CREATE INDEX by_ticket ON tickets (ticket)")
    db.commit()
    db.close()
    return keys


class TicketDataset(Dataset):
    def __init__(self, path, keys, max_len):
        self.path, self.keys, self.max_len = path, keys, max_len
        self.vocab = {w: i + 1 for i, w in enumerate(WORDS)}
        self.db = None

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, idx):
        if self.db is None:
            self.db = sqlite3.connect(self.path)
        (payload,) = self.db.execute("SELECT payload FROM tickets WHERE ticket = ?", (self.keys[idx],)).fetchone()
        ticket = json.loads(payload)
        ids = [self.vocab[w] for w in ticket["text"].split()][: self.max_len]
        return torch.tensor(ids + [0] * (self.max_len - len(ids))), ticket["team"]


class Router(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.emb = nn.Embedding(len(WORDS) + 1, 64, padding_idx=0)
        self.gru = nn.GRU(64, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(2 * hidden, len(TEAMS))

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        return self.fc(self.drop(h.max(dim=1).values))


def main(argv=None):
    parser = argparse.ArgumentParser(description="ticket routing")
    parser.add_argument("--db", default="tickets.sqlite")
    parser.add_argument("--tickets", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--max-len", type=int, default=72)
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args(argv)

    torch.manual_seed(1)
    keys = make_database(args.db, args.tickets, seed=1)
    loader = DataLoader(
        TicketDataset(args.db, keys, args.max_len), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    net = Router(args.hidden)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    step, tic = 0, time.time()
    while step < args.steps:
        for ids, team in loader:
            logits = net(ids)
            loss = F.cross_entropy(logits, team)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            step += 1
            if step % args.log_every == 0:
                print(f"[{step:5d}/{args.steps}] loss={loss.item():.4f}")
            if step == args.steps:
                break
    print(f"training took {time.time() - tic:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
