"""A training for test_hook_forks.py: forks in many ways, while its window is open or once it is over."""

import atexit
import ctypes
import itertools
import multiprocessing
import os
import resource
import select
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 12
PATIENCE = 20  # seconds
ROUNDS = 3
OPERATORS = 20_000  # in each


steps = []  # of the window at which to fork


def train() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(8 * STEPS, 8), torch.randint(0, 4, (8 * STEPS,)))
    for number, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number in steps:
            fork_in_all_ways()


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def wait_for(child: int) -> int:
    """Return the exit code of a child; one that hangs is killed."""
    for _ in range(PATIENCE * 50):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1000


def forked(body) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        steps.clear()
        body()
        sys.exit(3)
    say("exit code", wait_for(child))


def prints() -> None:
    ctypes.CDLL(None).printf(b"from C\n")
    sys.stdout.write("from Python\n")  # flushed as Python exits
    atexit.register(os.write, 1, b"at exit\n")


def fails() -> None:
    raise LookupError("in the child")


def daemon() -> None:
    """Fork twice; the first child leaves at once, the second ends later by itself."""
    read, write = os.pipe()

    def body() -> None:
        os.setsid()
        if os.fork() == 0:
            os.close(read)
            os.write(write, b"daemon ")
            sys.exit(0)  # the pipe closes when the process has ended

    forked(body)
    os.close(write)
    words = b""
    while select.select([read], [], [], PATIENCE)[0]:
        part = os.read(read, 100)
        words += part or b"ended"
        if not part:
            break
    say(words.decode())


def in_a_process(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=child_of_multiprocessing)
    process.start()
    process.join(PATIENCE)
    say("exit code", process.exitcode)
    if process.exitcode is None:
        process.kill()


def child_of_multiprocessing() -> None:
    say("child trains", len(list(DataLoader(torch.arange(4)))))


def with_preexec() -> None:
    done = subprocess.run(["/bin/sh", "-c", "exit 5"], preexec_fn=os.getpid, check=False, timeout=PATIENCE)
    say("exit code", done.returncode)
    try:
        subprocess.run(["/nonexistent"], preexec_fn=os.getpid, check=False, timeout=PATIENCE)
    except FileNotFoundError:
        say("not found")


def with_workers() -> None:
    loader = DataLoader(torch.arange(8), num_workers=1, timeout=PATIENCE)
    say("batches", len(list(loader)))


def grows() -> None:
    """Print whether operators make the child grow, as they do while it is profiled."""
    x = torch.ones(1)
    sizes = [resident_kb()]
    for _ in range(ROUNDS):
        for _ in range(OPERATORS):
            x + 1
        sizes.append(resident_kb())
    # A child also grows by the pages it touches for the first time, but not in every round.
    least = min(after - before for before, after in itertools.pairwise(sizes))
    say("grows" if least > OPERATORS * 0.3 else "stays")  # a recorded operator takes 1 kB


def resident_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fork_in_all_ways() -> None:
    for way in (
        lambda: forked(prints),
        lambda: forked(fails),
        lambda: forked(train),
        lambda: forked(grows),
        daemon,
        lambda: in_a_process("fork"),
        lambda: in_a_process("spawn"),
        lambda: in_a_process("forkserver"),
        with_preexec,
        with_workers,
    ):
        way()
        sys.stdout.flush()


if __name__ == "__main__":
    steps += map(int, sys.argv[1:])
    torch.set_num_threads(1)
    train()
    if not steps:
        fork_in_all_ways()
    say("done")
