"""A small deterministic training for test_chaos_training.py, with the faults that only its own process can inject.

    chaos_training.py FAULT PAUSE SEED

Prints its pid, the time at which each step ended, and a digest of all losses and the parameters. Its exit code is 7.
"""

import errno
import hashlib
import os
import random
import resource
import sys
import threading
import time
from pathlib import Path

os.write(1, b"pid %d\n" % os.getpid())
fault, pause, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)  # not for cryptography
STEPS, DAY_NS = 100, 86_400_000_000_000
BEGIN = dice.randrange(5, 50)
END = BEGIN + dice.randrange(20, 45)
folder = os.environ.get("CHAOS_FOLDER", "/nonexistent")
if fault == "clock":  # before the hook keeps a reference
    real, ahead_ns = time.time_ns, 0
    time.time_ns = lambda: real() + ahead_ns
    time.time = lambda: time.time_ns() / 1e9

import torch  # starts the hook
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
data = TensorDataset(torch.randn(80, 8), torch.randint(0, 4, (80,)))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2 if fault == "workers" else 0)
digest = hashlib.sha256()


class Disk:
    """The disk of the profile, as this process sees it: works, hangs, or is read-only."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.works.set()
        self.is_read_only = False
        self.write, writing = os.write, os.O_WRONLY | os.O_RDWR | os.O_CREAT
        os.write = self.write_or_hang
        for name in ("mkdir", "rename", "replace", "unlink"):
            setattr(os, name, self.refusing(getattr(os, name)))
        os.open = self.refusing(os.open, lambda flags, *_: flags & writing)

    def write_or_hang(self, fd, content):
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(folder):
            self.works.wait()
            if self.is_read_only:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return self.write(fd, content)

    def refusing(self, call, concerns=lambda *_: True):
        def refuse(path, *args, **options):
            if self.is_read_only and Path(path).is_relative_to(folder) and concerns(*args):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return call(path, *args, **options)

        return refuse


def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def train(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def fork(x, y):
    """Fork a child that ends at once, lingers, or trains a step, and exits in one of two ways."""
    kind = dice.randrange(4)
    child = os.fork()
    if child:
        return child
    if kind == 0:
        os._exit(0)
    if kind == 1:
        time.sleep(0.3)
    else:
        train(x, y)
    if kind == 2:
        os._exit(0)
    sys.exit(0)


def inject(step):
    """Begin or end the fault."""
    global ahead_ns  # noqa: PLW0603
    begins, ends = step == BEGIN, step == END and fault.endswith("for a while")
    if fault.startswith("full disk") and (begins or ends):
        limit_files(2000 if begins else resource.RLIM_INFINITY)
    if fault.startswith("hanging disk") and (begins or ends):
        sys.modules["sm_profiler.hook.recorder"].DISK_SECONDS = 1.0 if begins else 10.0
        (disk.works.clear if begins else disk.works.set)()
    if fault.startswith("read-only") and (begins or ends):
        disk.is_read_only = begins
    if fault == "clock":
        ahead_ns += dice.randrange(1, 9) * (DAY_NS if begins else -DAY_NS if step == END else 0)


disk = Disk() if fault.startswith(("hanging disk", "read-only")) else None
step, children = 0, []
while step < STEPS:
    for batch in loader:
        inject(step)
        digest.update(train(*batch).detach().numpy().tobytes())
        os.write(1, b"step %d %f\n" % (step, time.monotonic()))
        if fault == "forks" and dice.random() < 0.15:
            children.append(fork(*batch))
        time.sleep(pause)
        step += 1
failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
os.write(1, f"forked {len(children)} failed {failed}\ndigest {digest.hexdigest()}\n".encode())
sys.exit(7)
