"""The steps of all processes of a window are found together, and are those of each process by itself."""

import random
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns
from sm_profiler.metrics.step_fold import StepFold, column

START = 1_700_000_040_000_000
TRAIN = (f"{event_names.STEP}:ModeKeys.TRAIN",) * 2
PHASES = [
    TRAIN,
    (f"{event_names.STEP}:ModeKeys.EVAL",) * 2,
    *((phase, "x") for phase in (
        event_names.DATALOADER_WAIT, event_names.DATALOADER_ITER, event_names.FORWARD, "Backward", event_names.OPTIMIZER,
        event_names.COMPILED_STEP, event_names.RESULTS, event_names.QUEUED, event_names.GARBAGE_COLLECTION,
        event_names.PROFILING, event_names.OVERHEAD, event_names.DEVICE_FORWARD, event_names.DEVICE_BACKWARD, "mine", "yours",
    )),
    ("x", "ncclAllReduce"),
    ("x", "another"),
]  # fmt: skip
ARGS = {"mine": '{"declared": true}', "yours": '{"declared": true}', event_names.PROFILING: '{"kind": "stall"}'}


def columns_of(rows):
    """Return events: (start, duration, (phase, name), step, process, worker)."""
    count, empty = len(rows), EventColumns.empty()
    start, duration, texts, steps, processes, workers = zip(*rows, strict=True) if rows else [()] * 6
    known = {
        "start_us": start, "duration_us": duration, "step": steps, "worker_id": workers, "pid": [7] * count,
        "node": processes, "phase": [one for one, _ in texts], "name": [one for _, one in texts],
        "args": [ARGS.get(one, "{}") for one, _ in texts],
    }  # fmt: skip

    def made(field):
        old = getattr(empty, field.name)
        if isinstance(old, Category):
            return Category.of(known.get(field.name, [""] * count))
        return np.asarray(known.get(field.name, [-1] * count), old.dtype)

    return EventColumns(*map(made, attrs.fields(EventColumns)))


def windows_of(seed, odd=()):
    """Return three windows of a few processes with all kinds of events, and some odd ones in the second window."""
    draw = random.Random(seed)  # rows, not a secret
    processes = [f"algo-{node}-{rank}" for node in (1, 2) for rank in range(draw.randint(1, 3))]
    found = []
    for window in range(3):
        rows = list(odd) if window == 1 else []
        for process in processes:
            at = START + window * 60_000_000 + draw.randint(0, 1000)
            for step in range(window * 100, window * 100 + draw.randint(0, 12)):
                length = draw.randint(100, 5000)
                rows.append((at, length + draw.random(), PHASES[draw.choice((0, 0, 0, 1))], step, process, -1))
                for _ in range(draw.randint(0, 6)):
                    span = at + draw.randint(-1500, length), draw.randint(0, 1500) + draw.random()
                    texts, worker = draw.choice(PHASES[2:]), draw.choice((-1, -1, -1, 2))
                    rows.append((*span, texts, step - draw.randint(0, 3), process, worker))
                at += length + draw.randint(0, 3000)
        draw.shuffle(rows)
        found.append(SimpleNamespace(start_us=START + window * 60_000_000, new_events=columns_of(rows)))
    return found


def folded(windows, among=None):
    fold = StepFold()
    for window in windows:
        events = window.new_events
        rows = events[events.node.mask(among)] if among else events
        fold.update(SimpleNamespace(start_us=window.start_us, new_events=rows))
    return fold


def numbers(fold):
    """Return all that the fold found, bit by bit."""
    found = fold.result()
    steps = {
        node: [np.asarray(getattr(rows, field.name)).tobytes() for field in attrs.fields(type(rows))]
        for node, rows in found.steps.items()
    }
    return steps, found.loop, found.overhead_us, found.pids, found.declared_us, found.collected_us


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=25, deadline=None)
def test_each_process_has_the_digits_it_has_alone(seed, by_node):
    windows = windows_of(seed)
    merged, *others = [
        folded(windows, lambda process, number=number: (process[5] if by_node else process[-1]) == str(number))
        for number in (2, 0, 1)
    ]
    for other in others:
        merged.merge(other)
    assert numbers(merged) == numbers(folded(windows))


@pytest.mark.parametrize("at", [5.0, 1e14, 1e17])
def test_time_of_long_ago_takes_no_digits_from_the_others(at):
    odd = (at, 1.0, PHASES[4], 3, "algo-9-0", -1)
    found, usual = (numbers(folded(windows_of(4, rows))) for rows in ([odd], []))
    assert found[0] == usual[0]


def test_times_of_a_step():
    texts = {phase: (phase, "x") for phase, _ in PHASES}
    rows = [(START + 1000, 500, TRAIN, 0, "algo-1-0", -1), (START + 2000, 500, TRAIN, 1, "algo-1-0", -1)]
    rows += [(START + 2010, 100, texts[event_names.FORWARD], 1, "algo-1-0", -1)]
    rows += [(START + 1600, 300, texts[event_names.DATALOADER_WAIT], 1, "algo-1-0", -1)]
    rows += [(START + 1700, 40, texts[event_names.GARBAGE_COLLECTION], 1, "algo-1-0", -1)]
    rows += [(START + 2200, 70, texts[event_names.PROFILING], 1, "algo-1-0", -1)]
    rows += [(one[0] + 7, *one[1:4], "algo-2-0", -1) for one in rows]
    found = folded([SimpleNamespace(start_us=START, new_events=columns_of(rows))]).result()
    for rows in found.steps.values():
        parts = {key: rows.parts[:, column(key)].tolist() for key in ("forward", "wait", "gc", "own", "own in step")}
        assert parts == {"forward": [0, 100], "wait": [0, 300], "gc": [0, 40], "own": [0, 70], "own in step": [0, 70]}
        assert rows.gc_in_wait.tolist() == [0, 40]
    assert [one[0] for one in found.loop.values()] == [START + 1000, START + 1007]
    assert found.collected_us == {node: {"wait": 40.0} for node in ("algo-1-0", "algo-2-0")}
