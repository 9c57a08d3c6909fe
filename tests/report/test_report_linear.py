"""Rules and folds do work in proportion to the rows, however many nodes these come from; counted, not timed."""

import sys
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from sm_profiler.folding import MINUTE_US, EvaluationWindow
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.event_names import SAVE
from sm_profiler.report.build import MetricFolds
from sm_profiler.rules import RULES

START_US = 1_700_000_040_000_000
METRICS = (
    ("cpu", "cpu0", "CPUUtilization", 99.0),
    ("cpu", "cpu1", "CPUUtilization", 99.0),
    ("gpu", "gpu0", "GPUUtilization", 5.0),
    ("gpu", "gpu1", "GPUUtilization", 7.0),
    ("gpu", "gpu0", "GPUMemoryUtilization", 30.0),
    ("memory", "MemoryUsedPercent", "MemoryUsedPercent", 50.0),
    ("cpu", "cpu0", "I/OWaitPercentage", 80.0),
    ("network", "eth0", "Algorithm", 1e6),
)
EVENTS = (("Step:ModeKeys.TRAIN", "Step"), ("Forward", "Forward"), ("iteration", "DataLoaderIter"), ("save", SAVE))


class Work:
    """Elements that numpy has seen and calls that Python has made."""

    total = 0


class Counting(np.ndarray):
    """An array whose elements are counted each time they are used; so are those of arrays made from it."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        Work.total += sum(each.size for each in inputs if isinstance(each, np.ndarray))
        plain = [np.asarray(each) if isinstance(each, Counting) else each for each in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(each) if isinstance(each, Counting) else each for each in out)
        return counted(getattr(ufunc, method)(*plain, **options))

    def __array_function__(self, function, types, args, options):
        Work.total += sum(each.size for each in args if isinstance(each, np.ndarray))
        return counted(super().__array_function__(function, types, args, options))

    def __getitem__(self, rows):
        Work.total += rows.size if isinstance(rows, np.ndarray) else 1
        return super().__getitem__(rows)


def counted(found):
    """Return a result whose arrays are counted, too."""
    return found.view(Counting) if type(found) is np.ndarray and found.ndim else found


def counting(table):
    """Return the table with counting arrays."""
    columns = {}
    for field in attrs.fields(type(table)):
        column = getattr(table, field.name)
        is_text = isinstance(column, Category)
        columns[field.name] = Category(counted(column.codes), column.values) if is_text else counted(column)
    return type(table)(**columns)


def window_of(nodes, minute, ticks):
    """Return a minute in which each node has `ticks` samples of every metric, and as many steps of its process."""
    start_us = START_US + minute * MINUTE_US
    rows = [(tick, node, *metric) for tick in range(ticks) for node in nodes for metric in METRICS]
    system = SystemColumns(
        np.asarray([start_us / 1e6 + tick for tick, *_ in rows]),
        np.asarray([row[5] for row in rows]),
        Category.of(f"algo-{row[1]}" for row in rows),
        Category.of(row[2] for row in rows),
        Category.of(row[3] for row in rows),
        Category.of(row[4] for row in rows),
    )
    events = [(tick, node, *event) for tick in range(ticks) for node in nodes for event in EVENTS]
    size, small = len(events), np.int32
    table = EventColumns(
        np.asarray([start_us + tick * 1e6 for tick, *_ in events]),
        np.full(size, 9e5),
        Category.of(event[2] for event in events),
        Category.of(event[3] for event in events),
        Category.of(f"algo-{event[1]}-{event[1]}" for event in events),
        Category.of("pythontimeline" for _ in events),
        np.asarray([tick for tick, *_ in events]),
        np.asarray([node for _, node, *_ in events]),
        np.ones(size, np.int64),
        np.full(size, -1, small),
        np.full(size, 2, small),
        np.full(size, 0, np.int8),
        Category.of("" for _ in events),
    )
    return EvaluationWindow(start_us, start_us + MINUTE_US, counting(system), counting(table))


def side_by_side(nodes):
    """Return one minute of all nodes."""
    return [window_of(range(1, nodes + 1), 0, 3)]


def one_after_another(nodes):
    """Return a minute for each node."""
    return [window_of([node], node, 3) for node in range(1, nodes + 1)]


def work_of(update: Callable[[EvaluationWindow], object], windows) -> int:
    """Return the work of a fold."""

    def count(_frame, event, _argument):
        Work.total += event in ("call", "c_call")

    Work.total = 0
    sys.setprofile(count)
    try:
        for window in windows:
            update(window)
    finally:
        sys.setprofile(None)
    return Work.total


FOLDS = [*RULES, *(type(fold) for fold in MetricFolds().all())]


@pytest.mark.first(12)
@pytest.mark.parametrize("shape", [side_by_side, one_after_another], ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.__name__)
def test_four_times_the_nodes_are_four_times_the_work(fold, shape):
    few, many = shape(40), shape(160)
    work_of(fold().update, few)  # imports and caches
    ratio = work_of(fold().update, many) / work_of(fold().update, few)
    assert ratio < 5, f"{ratio:.1f} times the work for 4 times the rows"
