"""Counts of objects by type in a growing process."""

import contextlib
import sys
import threading
from collections import Counter

import torch

from sm_profiler.formats.event_names import OBJECTS
from sm_profiler.hook import objects
from sm_profiler.hook.objects import Objects

history = []


class Sample:
    """An object that a script collects."""

    def __init__(self):
        self.values = [1]


def test_names_what_grows(monkeypatch):
    monkeypatch.setattr(objects, "MAX_BLOCKS", 1 << 60)  # other tests leave millions of objects in this process
    records, resident = [], [100_000_000]
    collector = Objects(records.append, resident=lambda: resident[0])
    weight = torch.ones(250_000, requires_grad=True)
    history.extend(Sample() for _ in range(100))
    for _ in range(objects.WARM_UP):
        collector.beat()
    resident[0] += 60_000_000
    collector.beat()
    assert records == []  # the first count is what later ones are compared with
    history.extend([Sample() for _ in range(400)] + [weight * 2 for _ in range(60)])
    collector.beat()
    assert records == []
    resident[0] += 60_000_000
    collector.beat()
    ((phase, _, start, end, _, args),) = records
    history.clear()
    assert phase == OBJECTS
    assert end > start
    assert args["container"] == f"list history in {__name__}: 100 → 560 elements of Tensor"
    assert 400 <= args["types"][f"{__name__}.Sample"] <= 410
    assert 60_000_000 <= args["tensor_bytes"] <= 61_000_000
    assert args["tensors_in_graphs"] == 60


def test_counts_rarely_and_not_in_huge_processes(monkeypatch):
    counts, resident = [], [100_000_000]
    monkeypatch.setattr(objects, "census", lambda before: counts.append(before) or (objects.Census({}, 0, 0, {}), None))
    collector = Objects(lambda _: None, resident=lambda: resident[0])
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: objects.MAX_BLOCKS + 1)
    for _ in range(5):
        collector.beat()
        resident[0] += 60_000_000
    assert counts == []
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 1000)
    collector.forked()
    for _ in range(20):
        collector.beat()
        resident[0] += 200_000_000
    assert len(counts) == objects.MAX_COUNTS


def test_counting_does_not_disturb_tuples_that_another_thread_builds():
    interval, stopped, built = sys.getswitchinterval(), threading.Event(), 0

    def count():
        while not stopped.is_set():
            Counter(map(type, objects._all()))

    counting = threading.Thread(target=count)
    sys.setswitchinterval(1e-5)
    try:
        counting.start()
        for _ in range(4_000):
            with contextlib.suppress(SystemError):
                tuple(number for number in range(500))
                built += 1
    finally:
        stopped.set()
        counting.join()
        sys.setswitchinterval(interval)
    assert built == 4_000
