"""Reading the stopwatch's tables: rows after those that were read, before they are overwritten."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from framework_helpers import PYTHON

from sm_profiler.hook.tensorflow.stopwatch import COLUMNS, FETCH, LONG, NOTHING, SHORT, Stopwatch

ROOT = Path(__file__).parents[2]


class Tables:
    """The tables as a graph fills them, and a stopwatch that reads them."""

    def __init__(self, monkeypatch):
        self.short, self.long = np.zeros((SHORT, COLUMNS)), np.zeros((LONG, COLUMNS))
        self.count, self.read = 0, []
        self.watch = Stopwatch(SimpleNamespace(raw_ops=None), pytest.fail)
        self.watch.used, self.watch._handles = True, ("short", "long", "count")
        monkeypatch.setattr(self.watch, "_read", self._table)

    def _table(self, name):
        self.read.append(name)
        return getattr(self, name).copy()

    def write(self, batches, *, kind=FETCH):
        for _ in range(batches):
            row = kind, self.count, self.count + 0.25, self.count + 1
            self.short[self.count % SHORT] = self.long[self.count % LONG] = row
            self.count += 1

    def arrived(self):
        """Return the seconds in which batches were requested, from that of the first batch on."""
        return [round(end - start, -6) // 1e6 for _, start, end in self.watch.rows()]


def test_each_batch_is_read_once(monkeypatch):
    tables = Tables(monkeypatch)
    for batches in (0, 1, 1, 0, 3, SHORT, 2, SHORT - 1):
        tables.write(batches)
        assert tables.arrived() == [250] * batches
    assert set(tables.read) == {"short"}


def test_more_than_the_short_table_holds_come_from_the_long_one(monkeypatch):
    tables = Tables(monkeypatch)
    tables.write(5)
    assert len(tables.arrived()) == 5
    for batches in (SHORT + 1, 1000, LONG):
        tables.write(batches)
        assert len(tables.arrived()) == batches


def test_the_latest_of_too_many_batches_are_kept(monkeypatch):
    tables = Tables(monkeypatch)
    tables.write(3 * LONG + 5)
    assert len(tables.arrived()) == LONG
    tables.write(1)
    assert len(tables.arrived()) == 1


def test_a_fetch_without_a_batch_is_none(monkeypatch):
    tables = Tables(monkeypatch)
    tables.write(2)
    tables.write(1, kind=NOTHING)
    tables.write(1)
    assert len(tables.arrived()) == 3


GRAPHS = """
import tensorflow as tf
from sm_profiler.hook.tensorflow.stopwatch import Stopwatch

def failed(error):
    raise error

watch = Stopwatch(tf, failed)
data = tf.data.Dataset.from_tensors(1.0).repeat()
kind = type(iter(data))
kind.__next__ = watch.wrap_fetch(kind.__next__)

@tf.function
def one(batches):
    return next(batches)

@tf.function
def looped(batches, count):
    total = next(batches)
    for _ in tf.range(count):
        total += next(batches)
    return total

@tf.function
def unrolled(batches):
    return sum(next(batches) for _ in range(80))

batches, found = iter(data), []
for call in (one, lambda it: looped(it, 5), lambda it: looped(it, 200), unrolled, one):
    call(batches)
    found.append(len(watch.batches()))
print(*found)
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="needs TensorFlow: make .envs/frameworks.done")
def test_each_batch_in_a_graph_is_counted(tmp_path):
    script = tmp_path / "graphs.py"  # autograph reads the source of functions
    script.write_text(GRAPHS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([PYTHON, script], capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.stdout.split() == ["1", "6", "201", "80", "1"], done.stderr
