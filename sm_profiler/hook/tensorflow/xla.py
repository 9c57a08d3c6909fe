"""Compilations by XLA without a trace: a graph whose shapes vary is compiled for each shape that a call has first."""

from __future__ import annotations

import time
from time import perf_counter_ns
from typing import Any, NamedTuple

COMPILER = "XLA"
NODES = "_sm_profiler_nodes"  # of a function: operators of its latest graph; -1 if XLA compiles them
INSIDE = "_sm_profiler_xla"  # of a function whose graph calls one that XLA compiles
SHAPES = "_sm_profiler_shapes"  # of a function: the shapes of its calls
SLOWER = 3  # times as long as its quickest run takes a call at least in which XLA compiles
MAX_SHAPES = 10_000  # of a function
MAX_TENSORS = 64  # whose shapes are compared
MAX_DEPTH = 4

Shape = tuple[int, ...]

# What a row of the table is: its number, from 1 on, the number of the call in a graph, its time, and all lengths.
ROWS = 64
NUMBER, CALL, BEGAN, LENGTHS = range(4)
MAX_LENGTHS = 16  # of the tensors of a call together
CPU = "/device:CPU:0"
NAME = "sm_profiler_shapes"


class _Call(NamedTuple):
    """A call in a graph.

    Attributes:
        name: of the function.
        ranks: dimensions of each tensor whose shapes vary.
        known: shapes with which it ran, in the order in which they came first.
    """

    name: str
    ranks: list[int]
    known: dict[tuple[Shape, ...], None]


class InGraphs:
    """Notes the shapes with which graphs call functions that XLA compiles: such a call runs no Python code.

    Keras's `fit` fetches a batch and calls the compiled step in one graph.  While that graph is traced, operators are
    added to it that write down the shapes which are not known yet.  Nothing is added if all are known, or if the shapes
    are those of arguments: the function might be exported, and its operators would miss their table in another process.
    """

    def __init__(self, tensorflow: Any, stopwatch: Any) -> None:
        self._tf = tensorflow
        self._raw: Any = tensorflow.raw_ops
        self._stopwatch = stopwatch
        self._handles: tuple[Any, Any] | None = None  # of the table and the count of its rows
        self._calls: list[_Call] = []
        self._seen = 0

    def traced(self, name: str, args: Any, kwargs: Any) -> None:
        """Add operators to the graph that is being traced, before a call of a function that XLA compiles."""
        tf, raw = self._tf, self._raw
        tensors: list[Any] = []
        ranks: list[int] = []
        for one in tf.nest.flatten((args, kwargs), expand_composites=True):
            rank = one.shape.rank if tf.is_tensor(one) and not one.shape.is_fully_defined() else None
            if rank is not None and sum(ranks) + rank <= MAX_LENGTHS:
                tensors.append(one)
                ranks.append(rank)
        if not tensors or not self._stopwatch.fetches():
            return
        self._create()
        call = tf.constant([float(len(self._calls))], tf.float64)
        lengths = tf.concat([tf.shape(one) for one in tensors], 0)  # where the tensors are; no data is copied
        with tf.device(CPU):
            table, count = self._variables()
            before = raw.ResourceCountUpTo(resource=count, limit=2**62, T=tf.int64)
            row = [tf.reshape(tf.cast(before + 1, tf.float64), [1]), call, tf.reshape(tf.timestamp(), [1])]
            rest = tf.zeros([MAX_LENGTHS - sum(ranks)], tf.float64)
            row += [tf.cast(lengths, tf.float64), rest]
            raw.ResourceScatterUpdate(resource=table, indices=before % ROWS, updates=tf.concat(row, 0))
        self._calls.append(_Call(name, ranks, {}))

    def another(self, start_ns: int) -> tuple[str, str] | None:
        """Return the function that ran with new shapes since a time, and how they differ; None if there is none."""
        if self._handles is None:
            return None
        table = self._raw.ReadVariableOp(resource=self._handles[0], dtype=self._tf.float64).numpy()
        began = (start_ns + time.time_ns() - perf_counter_ns()) / 1e9
        found = None
        for row in sorted(table.tolist()):
            if row[NUMBER] <= self._seen:
                continue
            self._seen = int(row[NUMBER])
            call = self._calls[int(row[CALL])]
            reason = _new(call.known, tuple(_split(row[LENGTHS:], call.ranks)))
            if reason and row[BEGAN] >= began:
                found = call.name, reason
        return found

    def _variables(self) -> tuple[Any, Any]:
        """Return the variables by their names: a handle from outside would become an input of the function."""
        make, tf = self._raw.VarHandleOp, self._tf
        table, count = f"{NAME}_table", f"{NAME}_count"
        shape = [ROWS, LENGTHS + MAX_LENGTHS]
        return (
            make(dtype=tf.float64, shape=shape, shared_name=table, name=table),
            make(dtype=tf.int64, shape=[], shared_name=count, name=count),
        )

    def _create(self) -> None:
        if self._handles is not None:
            return
        tf = self._tf
        with tf.init_scope(), tf.device(CPU):
            table, count = self._variables()
            self._raw.AssignVariableOp(resource=table, value=tf.zeros([ROWS, LENGTHS + MAX_LENGTHS], tf.float64))
            self._raw.AssignVariableOp(resource=count, value=tf.zeros([], tf.int64))
            self._handles = table, count


def _split(lengths: list[float], ranks: list[int]) -> list[Shape]:
    """Return the shapes in a row."""
    found, at = [], 0
    for rank in ranks:
        found.append(tuple(int(one) for one in lengths[at : at + rank]))
        at += rank
    return found


def another(function: Any, args: Any, kwargs: Any) -> str:
    """Return the first difference between a call's shapes and those of the call before; empty unless they are new.

    Args:
        function: a `tf.function` that XLA compiles.
        args: of the call.
        kwargs: of the call.
    """
    now = tuple(shapes(args) + shapes(kwargs))
    return _new(function.__dict__.setdefault(SHAPES, {}), now)


def _new(known: dict[tuple[Shape, ...], None], now: tuple[Shape, ...]) -> str:
    """Add shapes to those that are known; return how they differ from the ones before, empty unless they are new."""
    if not now or now in known or len(known) >= MAX_SHAPES:
        return ""
    before = next(reversed(known), None)
    known[now] = None
    if before is None:
        return ""
    differs = next(((one, other) for one, other in zip(now, before, strict=False) if one != other), None)
    return "other arguments" if differs is None else f"shape is {differs[0]}, was {differs[1]}"


def shapes(value: Any, depth: int = 0) -> list[Shape]:
    """Return the shapes of the tensors and arrays in an argument, without those that are nested deeply."""
    if isinstance(value, (tuple, list, dict)):
        found: list[Shape] = []
        for one in value.values() if isinstance(value, dict) else value:
            if depth < MAX_DEPTH and len(found) < MAX_TENSORS:
                found += shapes(one, depth + 1)
        return found
    shape: Any = getattr(value, "shape", None)
    if not isinstance(shape, tuple) and getattr(shape, "rank", None) is None:  # of another kind, or unknown
        return []
    return [tuple(shape)]
