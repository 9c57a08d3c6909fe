"""Loops whose steps run on other threads than the loop, each waiting for the other: all steps are seen, with their waits."""

import asyncio
import queue
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.support.hook import PHASES
from tests.support.profiles import events

COUNT = 30


class Work:
    """A model and its step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.batches = DataLoader(TensorDataset(torch.randn(COUNT, 4)), 1)

    def step(self, x) -> None:
        self.optimizer.zero_grad()
        self.model(x).sum().backward()
        self.optimizer.step()


def on_thread(action, *args) -> None:
    thread = threading.Thread(target=action, args=args)
    thread.start()
    thread.join()


def plain(work: Work) -> None:
    for (x,) in work.batches:
        work.step(x)


def thread_for_each_step(work: Work) -> None:
    for (x,) in work.batches:
        on_thread(work.step, x)


def pool(work: Work, threads: int = 1) -> None:
    with ThreadPoolExecutor(threads) as one:
        for (x,) in work.batches:
            one.submit(work.step, x).result()


def pool_of_two(work: Work) -> None:
    pool(work, 2)


def coroutine(work: Work) -> None:
    async def train() -> None:
        for (x,) in work.batches:
            await asyncio.to_thread(work.step, x)

    asyncio.run(train())


def thread_without_loader(work: Work) -> None:
    for (x,) in list(work.batches):
        on_thread(work.step, x)


def epochs_on_threads(work: Work) -> None:
    for _ in range(2):
        on_thread(plain, work)


def filled_by_a_thread(work: Work) -> None:
    waiting = queue.Queue(2)

    def fill() -> None:
        for (x,) in work.batches:
            waiting.put(x)
        waiting.put(None)

    filler = threading.Thread(target=fill)
    filler.start()
    while (x := waiting.get()) is not None:
        work.step(x)
    filler.join()


# loop → steps, and waits for batches that are the loop's own
LOOPS = {
    plain: (COUNT, COUNT), thread_for_each_step: (COUNT, COUNT), pool: (COUNT, COUNT), pool_of_two: (COUNT, COUNT),
    coroutine: (COUNT, COUNT), epochs_on_threads: (2 * COUNT, 2 * COUNT - 1), filled_by_a_thread: (COUNT, 0),
}  # fmt: skip


def parameters(loop) -> list[torch.Tensor]:
    work = Work()
    loop(work)
    return [one.detach().clone() for one in work.model.parameters()]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_steps_and_waits_are_seen_and_results_stay(loop, session, tmp_path, monkeypatch):
    monkeypatch.setattr("sm_profiler.hook.overhead.TIME_SHARE", 1e3)  # phases of all steps
    session.quiet = True
    expected = parameters(loop)
    session.quiet = False
    found = parameters(loop)
    session.close()
    assert all(map(torch.equal, expected, found))
    seen = Counter(event["phase"] for event in events(tmp_path))
    steps, waits = LOOPS[loop]
    assert (seen[PHASES["train"]], seen[PHASES["wait"]], seen[PHASES["optimizer"]]) == (steps, waits, steps)
    # the first forward, and of `epochs_on_threads` the first wait, came before it was known that this thread trains
    assert seen[PHASES["forward"]] == seen[PHASES["backward"]] >= steps - 1


def test_without_a_loader(session, tmp_path):
    parameters(thread_without_loader)
    session.close()
    seen = Counter(event["phase"] for event in events(tmp_path))
    assert seen[PHASES["optimizer"]] == COUNT
    assert seen[PHASES["train"]] >= COUNT - 1


def test_a_thread_that_evaluates_meanwhile_does_not_take_over(session, tmp_path):
    """Even after threads took turns: two steps in a row on one thread show that they do so no longer."""
    work, other = Work(), torch.nn.Linear(4, 1)
    thread_for_each_step(work)
    ended, evaluated = threading.Event(), threading.Event()

    def evaluate() -> None:
        while not ended.is_set():
            other(torch.ones(1, 4))
            evaluated.set()

    for (x,) in work.batches:
        work.step(x)
    helper = threading.Thread(target=evaluate)
    helper.start()
    evaluated.wait()
    try:
        for (x,) in work.batches:
            work.step(x)
    finally:
        ended.set()
        helper.join()
    session.close()
    assert Counter(event["phase"] for event in events(tmp_path))[PHASES["train"]] == 3 * COUNT
