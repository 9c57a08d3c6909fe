"""A stopwatch inside graphs: when each batch was requested and when it arrived, where no Python code runs.

While a function is traced, operators that read the clock are added around each fetch.  Their times go into a table on
the CPU, which Python reads later.  The operators have no influence on results: they draw no random numbers and
no gradient passes through them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from bisect import bisect_left
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sm_profiler.hook.clock import Timebase
from sm_profiler.hook.guard import attempt
from sm_profiler.hook.rest import ENDLESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROWS = 16_384  # batches whose times are kept until Python reads them: epochs may run as one function; a power of two
BLOCK = 256  # rows; two blocks are read at once
PATIENCE = 8  # rows after a missing row, since the function failed in between; before, it may be written yet
CPU = "/device:CPU:0"
NAME = "sm_profiler_batches"
# A row: its number, from 1 on, the start, the end, and the number again plus what the row is.  Another thread may read a
# row that is being written; a row whose numbers differ is not complete.
COLUMNS = 4
# What a row is: a fetch, the start of a loop over a dataset, its body, which begins when a batch has arrived, or a fetch
# that found the dataset at its end.
FETCH, LOOP, BODY, NOTHING = 0.0, 0.25, 0.5, 0.75
SLEW, SLACK_NS = 1000, 1_000_000
LOCK_SECONDS = 1.0  # a signal's handler may interrupt a thread that reads


class Times(NamedTuple):
    """When a batch was requested and when it arrived; `perf_counter_ns`."""

    start_ns: int
    end_ns: int


class Table:
    """Rows of numbers on the CPU, which operators in graphs add and Python reads.

    Rows are numbered from 1 on, and row n lies in place n % `rows`, a power of two, until it is overwritten.

    Attributes:
        handles: of the table and the count of rows, for reading; None before `create`.
    """

    def __init__(self, tensorflow: Any, name: str, rows: int, columns: int) -> None:
        self._tf = tensorflow
        self._raw: Any = tensorflow.raw_ops
        self._name = name
        self._shape = [rows, columns]
        self.handles: Any = None

    def create(self) -> None:
        """Make the variables, unless they exist."""
        if self.handles is None:
            tf, raw = self._tf, self._raw
            with tf.init_scope(), tf.device(CPU):
                handles = table, count = self._variables()
                raw.AssignVariableOp(resource=table, value=tf.zeros(self._shape, tf.float64))
                raw.AssignVariableOp(resource=count, value=tf.ones([], tf.int64))
                self.handles = handles

    def add(self, row: Callable[[Any], Any], after: Sequence[Any] = ()) -> None:
        """Let the graph that is being traced add `row(number)`, once `after` is done; an operator costs about a microsecond."""
        tf, raw = self._tf, self._raw
        with tf.device(CPU):
            table, count = self._variables()
            with tf.control_dependencies(after):
                number = raw.ResourceCountUpTo(resource=count, limit=ENDLESS, T=tf.int64)
                values = row(tf.cast(number, tf.float64))
            place = tf.bitwise.bitwise_and(number, self._shape[0] - 1)
            raw.ResourceScatterUpdate(resource=table, indices=place, updates=values)

    def _variables(self) -> tuple[Any, Any]:
        """Return the variables by their names: a handle from outside would become an input of the function."""
        tf = self._tf
        return self._variable(tf.float64, self._shape, "rows"), self._variable(tf.int64, [], "count")

    def _variable(self, kind: Any, shape: list[int], suffix: str) -> Any:
        name = f"{self._name}_{suffix}"
        return self._raw.VarHandleOp(dtype=kind, shape=shape, shared_name=name, name=name)


class Stopwatch:
    """Measures fetches inside graphs.

    Attributes:
        used: a function with a stopwatch was traced.
    """

    def __init__(self, tensorflow: Any, failed: Callable[[Exception], None]) -> None:
        self._tf = tensorflow
        self._failed = failed
        self._raw: Any = tensorflow.raw_ops
        self._table = Table(tensorflow, NAME, ROWS, COLUMNS)
        self._places: dict[int, Any] = {}  # block → the places of its rows and those of the next block
        self._seen = 0
        self._loop_ns = 0  # when the loop over a dataset requested its batch
        self._waits: list[Times] = []  # that were read and not taken
        self._reading = threading.Lock()
        self._nested = threading.local()
        self._fetching = weakref.WeakSet[Any]()  # graphs that fetch their batches themselves
        self.used = False

    # reading, on any thread

    def batches(self, first_ns: int = 0, end_ns: int = ENDLESS, *, take: bool = True) -> list[Times]:
        """Return the waits that began in that time; if `take` is set, they are not returned again.

        The wall clock, by which graphs measure, may be slewed in between, so waits that began slightly earlier also count.
        """
        first_ns -= max(perf_counter_ns() - first_ns, 0) // SLEW + SLACK_NS
        if not self.used or not self._reading.acquire(timeout=LOCK_SECONDS):
            return []
        try:
            waits = self._waits
            self._add(waits)
            first, end = (bisect_left(waits, (limit,)) for limit in (first_ns, end_ns))
            found = waits[first:end]
            if take:
                del waits[first:end]
            return found
        finally:
            self._reading.release()

    def forked(self) -> None:
        """Start over, in a forked child."""
        self._waits, self._reading = [], threading.Lock()

    def _add(self, waits: list[Times]) -> None:
        """Add the waits whose rows have not been read."""
        for kind, start, end in self.rows():
            if kind == LOOP:
                self._loop_ns = max(self._loop_ns, start)
            elif kind == BODY:
                waits.append(Times(min(self._loop_ns or start, start), start))
                self._loop_ns = end
            else:
                waits.append(Times(start, max(end, start)))
        waits.sort()
        del waits[:-ROWS]

    def rows(self) -> list[tuple[float, int, int]]:
        """Return the rows since the last call: kind, start and end (`perf_counter_ns`)."""
        parts = []
        for _ in range(2 * ROWS // BLOCK):
            seen = self._seen
            table = self._read((seen + 1) % ROWS // BLOCK)[(seen + 1) % BLOCK :]
            if table[0, 0] > seen + 1:  # overwritten
                self._seen = self._newest() - ROWS
                continue
            found, self._seen = _rows_after(seen, table)
            parts.append(found)
            if self._seen < seen + len(table):
                break
        kinds, *times = np.concatenate(parts or [np.empty((0, 3))]).T
        offset = Timebase().offset_ns if len(kinds) else 0
        starts, ends = ((each * 1e9).astype(np.int64) - offset for each in times)
        return list(zip(kinds.tolist(), starts.tolist(), ends.tolist(), strict=True))

    def _read(self, block: int) -> Any:
        """Return a block of the table and the one after it."""
        places = self._places.get(block)
        if places is None:
            with self._tf.device(CPU):
                rows = range(BLOCK * block, BLOCK * (block + 2))
                places = self._places[block] = self._tf.constant([row % ROWS for row in rows])
        table = self._raw.ResourceGather(resource=self._table.handles[0], indices=places, dtype=self._tf.float64)
        return table.numpy()

    def _newest(self) -> int:
        """Return the number of the newest row."""
        return int(self._raw.ReadVariableOp(resource=self._table.handles[1], dtype=self._tf.int64).numpy()) - 1

    # tracing

    def fetches(self) -> bool:
        """Return whether the graph that is being traced fetches its batches itself."""
        graph = self._graph()
        while graph is not None:
            if graph in self._fetching:
                return True
            graph = getattr(graph, "outer_graph", None)
        return False

    def wrap_fetch(self, original: Any, *, optional: bool = False) -> Any:
        """Return a method that fetches a batch of an iterator, timed if it is traced.

        Args:
            original: the iterator's method.
            optional: it returns an Optional, which is empty after the last batch.
        """

        @functools.wraps(original)
        def fetch(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            graph = None if getattr(self._nested, "inside", False) else self._graph()
            if graph is None:
                return original(iterator, *args, **kwargs)
            self._fetching.add(graph)
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
            if self._graph() is None:
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
            self._fetching.add(graph)
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
        return attempt(action, self._failed)

    def _graph(self) -> Any:
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
            context = graph._get_control_flow_context()  # TensorFlow's own check does the same
            if context is not None and context.IsXLAContext():
                return None
            graph = getattr(graph, "outer_graph", None)
        self._table.create()
        self.used = True
        return tf.compat.v1.get_default_graph()

    def _time(self) -> Any:
        def now() -> Any:
            with self._tf.device(CPU):
                return self._tf.timestamp()

        return self._attempt(now)

    def _record_fetch(self, began: Any, result: Any, *, optional: bool) -> None:
        tf = self._tf
        tensors = [tensor for tensor in tf.nest.flatten(result, expand_composites=True) if tf.is_tensor(tensor)]
        with tf.device(CPU):
            kind = FETCH
            if optional:
                kind = tf.where(result.has_value(), tf.constant(FETCH, tf.float64), tf.constant(NOTHING, tf.float64))
        self._record(kind, began, tensors)

    def _record(self, kind: Any, began: Any, after: list[Any]) -> None:
        """Add a row, once `after` is done."""
        tf = self._tf

        def row(number: Any) -> Any:
            return tf.stack([number, began, tf.timestamp(), number if kind is FETCH else number + kind])

        self._table.add(row, after)


def _rows_after(seen: int, table: Any) -> tuple[Any, int]:
    """Return kind, start and end of the complete rows of a part of the table that follows row `seen`, and the last row's number.

    Those of no batch are left out. There are no Python objects for each row: there may be thousands a second.
    """
    newest = int(table[:, 0].max())
    table = table[: max(newest - seen, 0)]
    numbers, kinds = table[:, 0], table[:, 3] - table[:, 0]
    whole = (numbers == np.arange(seen + 1, seen + 1 + len(table))) & (kinds >= 0) & (kinds < 1)
    missing = np.flatnonzero(~whole)
    unwritten = missing[missing >= newest - seen - PATIENCE]  # it may be written yet
    end = int(unwritten[0]) if len(unwritten) else len(table)
    found = np.column_stack((kinds, table[:, 1], table[:, 2]))[:end]
    return found[(whole & (kinds != NOTHING))[:end]], seen + end
