"""A stopwatch inside graphs: when each batch was requested and when it arrived, where no Python code runs.

While a function is traced, operators that read the clock are added around each fetch.  Their times go into variables on
the CPU, which Python reads once a step.  The operators have no influence on results: they draw no random numbers and
no gradient passes through them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Batches whose times are kept until Python reads them.  The short table is read after each step; the long one, whose
# reading takes much longer than a fetch, holds the epochs that run as one function.
SHORT, LONG = 64, 16_384
CPU = "/device:CPU:0"
NAME = "sm_profiler_batches"
ENDLESS = 2**62
# What a row is: a fetch, the start of a loop over a dataset, its body, which begins when a batch has arrived, or a fetch
# that found the dataset at its end.
FETCH, LOOP, BODY, NOTHING = 0.0, 1.0, 2.0, -1.0
COLUMNS, NUMBER = 4, 3  # kind, start, end, and the number of the row, from 1 on


class Times(NamedTuple):
    """When a batch was requested and when it arrived; `perf_counter_ns`."""

    start_ns: int
    end_ns: int


class Stopwatch:
    """Measures fetches inside graphs.

    Attributes:
        used: a function with a stopwatch was traced.
    """

    def __init__(self, tensorflow: Any, failed: Callable[[Exception], None]) -> None:
        self._tf = tensorflow
        self._failed = failed
        self._raw: Any = tensorflow.raw_ops
        self._handles: tuple[Any, Any, Any] | None = None  # of the tables and the count, for reading
        self._seen = 0
        self._nested = threading.local()
        self.used = False

    # reading

    def rows(self) -> list[tuple[float, int, int]]:
        """Return the batches since the last call: kind, start and end (`perf_counter_ns`)."""
        if not self.used or self._handles is None:
            return []
        short, long, _ = self._handles
        table, seen = self._read(short), self._seen
        rows, last = _rows_after(seen, table)
        if last == seen and table[seen % SHORT, NUMBER] > seen:  # more than the short table holds
            newest = int(table[:, NUMBER].max())
            rows, last = _rows_after(max(seen, newest - LONG), self._read(long))
        self._seen = last
        if not rows:
            return []
        offset = perf_counter_ns() - time.time_ns()
        return [(kind, int(start * 1e9) + offset, int(end * 1e9) + offset) for kind, start, end in rows]

    def _read(self, handle: Any) -> Any:
        return self._raw.ReadVariableOp(resource=handle, dtype=self._tf.float64).numpy()

    def batches(self) -> list[Times]:
        """Return the waits since the last call."""
        found, last = [], 0
        for kind, start, end in self.rows():
            if kind == LOOP:
                last = max(last, start)
            elif kind == BODY:
                found.append(Times(min(last or start, start), start))
                last = end
            else:
                found.append(Times(start, max(end, start)))
        return found

    # tracing

    def wrap_fetch(self, original: Any, *, optional: bool = False) -> Any:
        """Return a method that fetches a batch of an iterator, timed if it is traced.

        Args:
            original: the iterator's method.
            optional: it returns an Optional, which is empty after the last batch.
        """

        @functools.wraps(original)
        def fetch(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            graph = None if getattr(self._nested, "inside", False) else self.graph()
            if graph is None:
                return original(iterator, *args, **kwargs)
            with self._once():
                began = self._time()
                with self._tf.control_dependencies([began] if began is not None else []):
                    result = original(iterator, *args, **kwargs)
                if began is not None:
                    self._attempt(lambda: self._record_fetch(began, result, optional=optional))
            return result

        return fetch

    def wrap_scan(self, original: Any) -> Any:
        """Return autograph's loop over a dataset, with a stopwatch in its body."""

        @functools.wraps(original)
        def scan(dataset: Any, state: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
            if self.graph() is None:
                return original(dataset, state, body, *args, **kwargs)
            began = self._time()
            if began is not None:
                self._attempt(lambda: self._record(LOOP, began, [began]))
            return original(dataset, state, self._timed_body(body), *args, **kwargs)

        return scan

    def _timed_body(self, body: Any) -> Any:
        @functools.wraps(body)
        def timed(*args: Any) -> Any:
            graph = self._tf.compat.v1.get_default_graph()
            began = self._time()
            if began is None:
                return body(*args)
            with self._tf.control_dependencies([began]):
                result = body(*args)
            self._attempt(lambda: self._record(BODY, began, graph.get_operations()))
            return result

        return timed

    @contextlib.contextmanager
    def _once(self) -> Iterator[None]:
        self._nested.inside = True
        try:
            yield
        finally:
            self._nested.inside = False

    def _attempt(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - fail open
            self._failed(error)
            return None

    def graph(self) -> Any:
        """Return the graph that is being traced if operators can be added to it; else None."""
        return self._attempt(self._find_graph)

    def _find_graph(self) -> Any:
        """Return the graph that is being traced, if its operators will run in this process and outside of XLA."""
        tf = self._tf
        if tf.executing_eagerly() or not tf.compat.v1.executing_eagerly_outside_functions():
            return None
        kind = type(tf.distribute.get_strategy()).__name__
        if kind.startswith(("TPU", "ParameterServer", "CentralStorage")):
            return None
        graph = tf.compat.v1.get_default_graph()
        while graph is not None:  # XLA cannot compile the operators
            context = graph._get_control_flow_context()  # noqa: SLF001 - TensorFlow's own check does the same
            if context is not None and context.IsXLAContext():
                return None
            graph = getattr(graph, "outer_graph", None)
        self._create()
        return tf.compat.v1.get_default_graph()

    def _variable(self, kind: Any, shape: list[int], suffix: str) -> Any:
        name = f"{NAME}_{suffix}"
        return self._raw.VarHandleOp(dtype=kind, shape=shape, shared_name=name, name=name)

    def _variables(self) -> tuple[Any, Any, Any]:
        """Return the variables by their names: a handle from outside would become an input of the function."""
        tf = self._tf
        short, long = (
            self._variable(tf.float64, [size, COLUMNS], name) for size, name in ((SHORT, "short"), (LONG, "long"))
        )
        return short, long, self._variable(tf.int64, [], "count")

    def _create(self) -> None:
        if self._handles is not None:
            return
        tf = self._tf
        with tf.init_scope(), tf.device(CPU):
            handles = self._variables()
            for handle, size in zip(handles, (SHORT, LONG), strict=False):
                self._raw.AssignVariableOp(resource=handle, value=tf.zeros([size, COLUMNS], tf.float64))
            self._raw.AssignVariableOp(resource=handles[2], value=tf.zeros([], tf.int64))
            self._handles = handles
        self.used = True

    def _time(self) -> Any:
        def now() -> Any:
            with self._tf.device(CPU):
                return self._tf.timestamp()

        return self._attempt(now)

    def _record_fetch(self, began: Any, result: Any, *, optional: bool) -> None:
        tf = self._tf
        tensors = [one for one in tf.nest.flatten(result, expand_composites=True) if tf.is_tensor(one)]
        with tf.device(CPU):
            kind = tf.where(result.has_value(), FETCH, NOTHING) if optional else FETCH
        self._record(kind, began, tensors)

    def _record(self, kind: Any, began: Any, after: list[Any]) -> None:
        """Add a row, once `after` is done."""
        tf, raw = self._tf, self._raw
        with tf.control_dependencies(after), tf.device(CPU):
            ended = tf.timestamp()
            short, long, count = self._variables()
            before = raw.ResourceCountUpTo(resource=count, limit=ENDLESS, T=tf.int64)
            row = tf.stack([tf.cast(kind, tf.float64), began, ended, tf.cast(before + 1, tf.float64)])
            for table, size in ((short, SHORT), (long, LONG)):
                raw.ResourceScatterUpdate(resource=table, indices=before % size, updates=row)


def _rows_after(seen: int, table: Any) -> tuple[list[tuple[float, float, float]], int]:
    """Return the rows that follow number `seen` in a table, without those of no batch, and the last number."""
    rows: list[tuple[float, float, float]] = []
    while True:
        kind, start, end, number = table[seen % len(table)].tolist()
        if number != seen + 1:
            return rows, seen
        seen += 1
        if kind != NOTHING:
            rows.append((kind, start, end))
