"""A training that hangs in one of many ways after some steps: run by test_hook_hangs.py.

    python planted_hangs.py KIND

The line at which the process hangs ends in a comment, `# hangs: KIND`.
"""

from __future__ import annotations

import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

kind = sys.argv[1]
rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def train(steps: int, pause: float = 0.01) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(pause)


# hangs


def sleep() -> None:
    time.sleep(10_000)  # hangs: sleep


def lock() -> None:
    held = threading.Lock()

    def hold() -> None:
        with held:
            time.sleep(10_000)

    threading.Thread(target=hold, name="holder", daemon=True).start()
    time.sleep(0.1)
    held.acquire()  # hangs: lock


def two_locks() -> None:
    first, second = threading.Lock(), threading.Lock()

    def other() -> None:
        with second:
            time.sleep(0.2)
            with first:
                pass

    threading.Thread(target=other, daemon=True).start()
    with first:
        time.sleep(0.1)
        with second:  # hangs: two_locks
            pass


def empty_queue() -> None:
    results: queue.Queue[int] = queue.Queue()
    results.get()  # hangs: empty_queue


def dead_producer() -> None:
    batches: queue.Queue[int] = queue.Queue()

    def produce() -> None:
        raise ValueError("record 7 is damaged: token='hidden'")  # raises: dead_producer

    threading.Thread(target=produce, name="producer", daemon=True).start()
    batches.get()  # hangs: dead_producer


def full_queue() -> None:
    import multiprocessing

    pipe = multiprocessing.get_context("spawn").Queue(1)
    pipe.put(1)
    pipe.put(2)  # hangs: full_queue


def join() -> None:
    thread = threading.Thread(target=time.sleep, args=(10_000,), daemon=True)
    thread.start()
    thread.join()  # hangs: join


def file_lock() -> None:
    path = Path(tempfile.gettempdir(), f"hang-{os.getpid()}")
    holder = path.open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    with path.open("w") as waiter:
        fcntl.flock(waiter, fcntl.LOCK_EX)  # hangs: file_lock


def silent_server() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.recv(10)  # hangs: silent_server


def child() -> None:
    subprocess.run(["sleep", "1000"], check=False)  # hangs: child


def polled() -> None:
    flag = Path("/nonexistent/flag")
    while not flag.exists():
        time.sleep(0.05)  # hangs: polled


def pipe() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 10)  # hangs: pipe


class Stuck(Dataset):
    """One of its workers stops in the middle, or is stopped."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int):
        if index == 100 and kind == "worker_sleeps":
            time.sleep(10_000)
        if index == 100 and kind == "worker_stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.randn(8)


def loader() -> None:
    for x in DataLoader(Stuck(), batch_size=4, num_workers=1):  # hangs: worker_sleeps worker_stopped
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def collective() -> None:
    """One rank skips a collective, ends, or sleeps."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['HANG_STORE']}", rank=rank, world_size=2
    )
    train(20)
    if rank == 1:
        if kind == "rank_exits":
            time.sleep(1.5)  # its records reach the disk, and it is not yet taken for a hang
            os._exit(0)
        if kind == "rank_sleeps":
            time.sleep(10_000)  # hangs: rank_sleeps
        if kind == "rank_skips":
            torch.distributed.recv(torch.zeros(2), src=0)  # hangs: rank_skips
    if kind == "rank_exits":  # gloo notices it in a collective, and raises an error
        torch.distributed.new_group()  # hangs: rank_exits
    torch.distributed.all_reduce(torch.ones(2))


def joining() -> None:
    """One rank never joins the group."""
    if rank == 1:
        time.sleep(10_000)  # hangs: joining
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['HANG_STORE']}", rank=rank, world_size=2
    )
    torch.distributed.barrier()


# no hangs


def slow_evaluation() -> None:
    """Every evaluation takes longer than the threshold; it computes, without a model."""
    for _ in range(2):
        train(20)
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            sorted(os.urandom(100_000))
            sum(range(1000))


def finishing() -> None:
    """After the training, the script works on and ends."""
    time.sleep(5)
    sys.exit()


def debugger() -> None:
    import pdb  # noqa: T100 - that is what is tested

    class Waiting(pdb.Pdb):
        def cmdloop(self, intro=None) -> None:  # pdb's
            time.sleep(6)
            self.set_continue()

    Waiting().set_trace()
    train(20)


def preparing() -> None:
    """The data is prepared, which uses the CPU at one line; then a child does it; then the training begins."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        sorted(os.urandom(100_000))
    busy = "import time; end = time.monotonic() + 5\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)


BEFORE = {"joining": joining, "preparing": preparing}
BEFORE.get(kind, int)()
train(20)
HANGS = {"worker_sleeps": loader, "worker_stopped": loader}
HANGS.update(dict.fromkeys(("rank_exits", "rank_sleeps", "rank_skips"), collective))
HANGS.get(kind, int if kind in BEFORE else globals().get(kind))()
train(20)
