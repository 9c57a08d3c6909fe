"""A producer thread dies, and the loop waits for it; a watchdog ends the job after a while."""

import os
import queue
import threading
import time

import torch
from bench import Run
from torch import nn

run = Run(steps=100, dies=0.6, patience=14.0, width=400, batch=64)
batches: queue.Queue = queue.Queue(maxsize=4)


def produce(count):
    for number in range(count):
        if number == int(run.steps * run.dies) and not run.repaired:
            return  # as if it had crashed
        batches.put((torch.randn(run.batch, run.width), torch.randint(0, 10, (run.batch,))))


def fetch():
    return batches.get(timeout=run.patience)  # GUILTY


threading.Thread(target=produce, args=(run.steps,), daemon=True).start()
model = nn.Sequential(nn.Linear(run.width, 1200), nn.ReLU(), nn.Linear(1200, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with run.training():
    for _ in range(run.steps):  # LOOP
        started = time.perf_counter()
        try:
            x, y = fetch()
        except queue.Empty:
            print("no batch for", round(time.perf_counter() - started), "s in process", os.getpid())
            break
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
run.close()
