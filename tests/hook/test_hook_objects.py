"""Counts of objects by type in a growing process."""

import contextlib
import gc
import itertools
import sys
import threading
import time

import numpy as np
import pytest
import torch

from sm_profiler.formats.event_names import OBJECTS
from sm_profiler.hook import memory
from sm_profiler.hook.memory import Objects

history = []


class Sample:
    """An object that a script collects."""

    def __init__(self):
        self.values = [1]


class Transition:
    """An object with an array."""

    def __init__(self, state):
        self.state = state


def hours():
    """Yield nanoseconds, an hour after the other."""
    return itertools.count(0, 3600 * 10**9)


def test_names_what_grows(monkeypatch):
    monkeypatch.setattr(memory, "MAX_BLOCKS", 1 << 60)  # other tests leave millions of objects in this process
    records, resident = [], [100_000_000]
    collector = Objects(records.append, resident=lambda: resident[0], clock=hours().__next__)
    weight = torch.ones(250_000, requires_grad=True)
    history.extend(Sample() for _ in range(100))
    for _ in range(memory.WARM_UP):
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
    text = f"list history in {__name__}: 100 → 560 elements of Tensor; the new ones hold about "
    assert args["container"].startswith(text)
    assert 40_000_000 <= args["new_elements_bytes"] <= 100_000_000  # 60 tensors of 1 MB, and 400 small objects
    assert args["container_bytes"] >= 560 * 8
    assert 400 <= args["types"][f"{__name__}.Sample"] <= 410
    assert 60_000_000 <= args["tensor_bytes"] <= 61_000_000
    assert args["tensors_in_graphs"] == 60


@pytest.mark.parametrize(
    ("elements", "least", "most"),
    [
        ([bytes(1000) for _ in range(500)], 500_000, 550_000),
        ([{"state": np.zeros(1000)} for _ in range(500)], 4_000_000, 4_500_000),
        ([Transition(np.zeros(1000)) for _ in range(500)], 4_000_000, 4_500_000),
        ([bytes(1_000_000)] * 500, 1_000_000, 1_001_000),  # a single object
        (list(range(10_000, 10_500)), 10_000, 20_000),
    ],
)
def test_estimates_what_new_elements_hold(elements, least, most):
    """A container that grew was named without its bytes."""
    assert least <= memory.held_by_newest([None] * 100 + elements, 500) <= most
    assert least <= memory.held_by_newest(dict(enumerate(elements)), 500) <= most


def test_counts_rarely_and_not_in_huge_processes(monkeypatch):
    counts, resident = [], [100_000_000]
    monkeypatch.setattr(memory, "census", lambda *_: counts.append(1) or (memory.Census({}, 0, 0, {}), None))
    collector = Objects(lambda _: None, resident=lambda: resident[0], clock=hours().__next__)
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: memory.MAX_BLOCKS + 1)
    for _ in range(5):
        collector.beat()
        resident[0] += 60_000_000
    assert counts == []
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 1000)
    collector.forked()
    for _ in range(20):
        collector.beat()
        resident[0] += 200_000_000
    assert len(counts) == memory.MAX_COUNTS


def test_counts_take_a_hundredth_of_the_time_so_far(monkeypatch):
    """Three counts of a second of CPU time each lasted 24 s on a busy machine, of a training of a minute."""
    now, spent, counts, resident = [0], [0.0], [], [100_000_000]

    def census(*_):
        counts.append(now[0])
        spent[0] += 0.25
        return memory.Census({}, 0, 0, {}), None

    monkeypatch.setattr(memory, "census", census)
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 1_000_000)
    collector = Objects(lambda _: None, lambda: resident[0], lambda: now[0] * 10**9, cpu=lambda: spent[0])
    for second in range(100):
        now[0] = second
        collector.beat()
        resident[0] += 60_000_000
    assert counts == [10, 50, 75]  # for the first, 100 ns a block are expected


def test_a_count_looks_at_all_objects_once_and_pauses_elsewhere(monkeypatch):
    holds, pauses, kept = [], [], [[number] for number in range(3 * memory.SLICE)]

    @contextlib.contextmanager
    def hold():
        holds.append(len(pauses))
        yield

    monkeypatch.setattr(memory, "sleep", pauses.append)
    memory.census({}, hold)
    assert holds == [0]
    assert len(pauses) >= len(kept) / memory.SLICE * 2  # to select, and to count


def test_the_owners_of_many_dicts_are_found_in_one_walk():
    owners, walks = [Sample() for _ in range(20)], []

    @contextlib.contextmanager
    def hold():
        walks.append(1)
        yield

    names = [vars(owner) for owner in owners]
    found = memory._owners(names, hold)
    assert [found[id(each)] for each in names] == owners
    assert len(walks) == 1


@pytest.fixture
def few_objects():
    """Set aside the millions of objects of pytest and of other tests, each of which every look would visit."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.first(1)
@pytest.mark.parametrize("look", ["select", "refer"])
def test_counting_does_not_disturb_tuples_that_another_thread_builds(look):
    interval, stopped, built, held = sys.getswitchinterval(), threading.Event(), 0, []
    looks = {
        "select": lambda: memory.look({list, dict}),
        "refer": lambda: memory.referrers(held),
    }

    def keep_looking():
        while not stopped.is_set():
            looks[look]()

    def on_collection(_phase, _info):
        return sum(range(100))  # Python code, in which another thread may take over

    looking = threading.Thread(target=keep_looking)
    gc.callbacks.append(on_collection)
    sys.setswitchinterval(1e-5)
    try:
        looking.start()
        for _ in range(2_000):
            with contextlib.suppress(SystemError):
                tuple(held for number in range(500))
                built += 1
    finally:
        stopped.set()
        looking.join()
        sys.setswitchinterval(interval)
        gc.callbacks.remove(on_collection)
    assert built == 2_000


def test_a_look_leaves_the_collector_as_it_was():
    assert gc.isenabled()
    memory.look({list})
    assert gc.isenabled()
    gc.disable()
    try:
        memory.look({list})
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("few_objects")
def test_the_collector_is_not_switched_under_another_thread():
    stopped, interval, seen = threading.Event(), sys.getswitchinterval(), set()

    def keep_looking():
        while not stopped.is_set():
            memory.look({list})
            memory.referrers(seen)

    looking = threading.Thread(target=keep_looking)
    sys.setswitchinterval(1e-5)
    try:
        looking.start()
        for _ in range(100):
            seen.add(("on", gc.isenabled()))
            gc.disable()
            sum(range(10_000))
            time.sleep(0.0001)
            seen.add(("off", gc.isenabled()))
            gc.enable()
            time.sleep(0.0001)
    finally:
        stopped.set()
        looking.join()
        sys.setswitchinterval(interval)
        gc.enable()
        gc.collect()  # lists of all lists hold themselves
    assert seen == {("on", True), ("off", False)}


def test_names_types_without_a_module():
    """Types that C code creates may have none: those of Triton's compiler, on a real GPU."""
    strange = type("Meta", (type,), {"__module__": property(lambda cls: cls.missing)})("Node", (), {})
    with pytest.raises(AttributeError):
        strange.__module__  # noqa: B018 - the point
    assert memory._name(strange) == "Node"
    assert memory._held(strange(), 2) == (False, memory.POINTER)


def test_counts_although_a_tensor_is_not_defined(monkeypatch):
    """Such tensors, which torch.compile keeps, raise at `is_leaf`."""

    class Undefined:
        nbytes = 8

        @property
        def is_leaf(self):
            raise RuntimeError("cannot call get_autograd_meta() on undefined tensor")

    monkeypatch.setattr(memory, "TENSORS", (f"{__name__}.Undefined",))
    monkeypatch.setitem(globals(), "Undefined", Undefined)
    undefined = Undefined()
    kept = torch.ones(3)
    found, _ = memory.census({})
    assert found.types[Undefined] == 1
    assert (found.tensors_in_graphs, found.tensor_bytes) == (0, undefined.nbytes)
    assert kept.sum() == 3
