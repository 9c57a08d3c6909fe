"""Reading the stopwatch's tables: rows after those that were read, before they are overwritten."""

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sm_profiler.hook.tensorflow.stopwatch import BLOCK, COLUMNS, FETCH, NOTHING, PATIENCE, ROWS, Stopwatch
from tests.support.frameworks import PYTHON

ROOT = Path(__file__).parents[2]


class Table:
    """The table as a graph fills it, and a stopwatch that reads it."""

    def __init__(self, monkeypatch):
        self.rows, self.count, self.reads = np.zeros((ROWS, COLUMNS)), 0, 0
        self.began = time.time()
        self.watch = Stopwatch(SimpleNamespace(raw_ops=None), pytest.fail)
        self.watch.used = True
        monkeypatch.setattr(self.watch, "_read", self._block)
        monkeypatch.setattr(self.watch, "_newest", lambda: self.count)

    def _block(self, number):
        self.reads += 1
        return np.roll(self.rows, -BLOCK * number, 0)[: 2 * BLOCK]

    def write(self, batches, *, kind=FETCH):
        for _ in range(batches):
            self.count += 1
            start = self.began + self.count
            self.rows[self.count % ROWS] = self.count, start + 0.25, start + 1, self.count + kind

    def arrived(self):
        """Return the milliseconds of the waits that have not been read."""
        return [round(end - start, -6) // 1e6 for start, end in self.watch.batches()]


def test_each_batch_is_read_once(monkeypatch):
    table = Table(monkeypatch)
    for batches in (0, 1, 1, 0, 3, BLOCK, 2, BLOCK - 1, 5 * BLOCK, ROWS - 1, 1000):
        table.write(batches)
        assert table.arrived() == [750] * batches


def test_a_few_batches_are_one_read(monkeypatch):
    table = Table(monkeypatch)
    table.write(BLOCK - 4)
    for _ in range(3):
        table.write(1)
        table.reads = 0
        assert len(table.arrived()) >= 1
        assert table.reads <= 2


def test_the_latest_of_too_many_batches_are_kept(monkeypatch):
    table = Table(monkeypatch)
    for batches in (3 * ROWS + 5, ROWS + 1):
        table.write(batches)
        assert len(table.arrived()) == ROWS
    table.write(1)
    assert len(table.arrived()) == 1


def test_a_fetch_without_a_batch_is_none(monkeypatch):
    table = Table(monkeypatch)
    table.write(2)
    table.write(1, kind=NOTHING)
    table.write(1)
    assert len(table.arrived()) == 3


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_row_that_is_being_written_is_read_later(monkeypatch, written):
    table = Table(monkeypatch)
    table.write(ROWS + 2)
    before = table.rows[3].copy()
    assert len(table.arrived()) == ROWS
    table.write(1)
    after = table.rows[3].copy()
    table.rows[3, written:] = before[written:]
    assert table.arrived() == []
    table.rows[3] = after
    assert table.arrived() == [750]


def test_a_row_that_is_never_written_hides_no_others(monkeypatch):
    table = Table(monkeypatch)
    for before in (3, BLOCK - 2, 2 * BLOCK - 1):
        table.write(before)
        table.count += 1
        table.write(PATIENCE - 1)
        assert len(table.arrived()) == before
        table.write(2)
        assert len(table.arrived()) == PATIENCE + 1


def test_waits_that_are_not_taken_are_returned_again(monkeypatch):
    table = Table(monkeypatch)
    table.write(4)
    first, *_, last = table.watch.batches(take=False)
    assert len(table.watch.batches(last.start_ns, take=False)) == 1
    assert len(table.watch.batches(end_ns=last.start_ns)) == 3
    assert table.watch.batches(first.start_ns) == [last]
    assert table.watch.batches() == []


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


EXPORTED = """
import sys
import tensorflow as tf

class Model(tf.Module):
    def __init__(self):
        self.weights = tf.Variable([[1.0], [2.0], [3.0]])

    @tf.function(jit_compile=True)
    def core(self, x):
        return tf.matmul(x, self.weights)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def infer(self, x):
        return self.core(x)

    @tf.function
    def train(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, self.weights))
        self.weights.assign_sub(0.0 * tape.gradient(loss, self.weights))

model = Model()
for rows in (2, 3, 4):
    model.train(tf.ones([rows, 3]))
    model.infer(tf.ones([rows, 3]))
tf.saved_model.save(model, sys.argv[1])
operators = model.infer.get_concrete_function().graph.get_operations()
print(len(operators) > 1, [one.name for one in operators if "sm_profiler" in one.name])
"""
SERVED = """
import sys
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
print(float(model.infer(tf.ones([1, 3]))[0, 0]))
"""


@pytest.mark.long
@pytest.mark.skipif(not PYTHON.exists(), reason="needs TensorFlow: make .envs/frameworks.done")
def test_an_exported_function_runs_without_the_hook(tmp_path):
    script, exported = tmp_path / "export.py", str(tmp_path / "model")
    script.write_text(EXPORTED)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    profile = {"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}}
    armed = {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(profile), "PYTHONPATH": str(ROOT)}
    commands = (([script, exported], environment | armed), (["-c", SERVED, exported], environment))
    export, serve = (
        subprocess.run(
            [PYTHON, *arguments], capture_output=True, text=True, env=variables, timeout=300, check=False, cwd=tmp_path
        )
        for arguments, variables in commands
    )
    assert export.stdout.split() == ["True", "[]"], export.stderr
    assert list(tmp_path.glob("profile/framework/pevents/*/*")), export.stderr
    assert serve.stdout.split() == ["6.0"], serve.stderr
