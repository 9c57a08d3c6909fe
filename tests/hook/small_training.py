"""A small training for test_hook_promises.py: prints a digest of its parameters, and may crash, fork or wait as its argument requests."""

import hashlib
import os
import resource
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

what = sys.argv[1] if len(sys.argv) > 1 else ""
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
run = model
if what == "ddp":
    torch.distributed.init_process_group("gloo")
    run = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(80, 8), torch.randint(0, 4, (80,))), batch_size=8)
if what == "full disk":  # not before: making an optimizer imports modules of torch that write files
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def epoch(pause: float = 0.0) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(run(x), y).backward()
        optimizer.step()
        time.sleep(pause)


epoch()
if what == "long":
    for _ in range(300):
        epoch(0.001)
if what == "wait":
    os.write(1, b"ready\n")
    for _ in range(1000):
        epoch(0.05)
if what == "kill":
    epoch(0.15)  # longer than a flush interval
    os.kill(os.getpid(), signal.SIGKILL)
if what == "raise":
    raise SystemExit(3)
if what == "fork":
    child = os.fork()
    if child == 0:
        epoch()
        sys.exit(0)
    os.waitpid(child, 0)
    epoch()
if what == "ddp":
    torch.distributed.destroy_process_group()
sys.stdout.write(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest() + "\n")
