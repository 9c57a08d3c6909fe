"""Compilations: traces of `tf.function`, and of XLA without a trace; which call caused each, and why.

A graph whose shapes vary is traced once, and compiled by XLA for each shape that a call is the first to have.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, NamedTuple

from sm_profiler.formats.recorded import Compile
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import is_library, user_line
from sm_profiler.hook.guard import attempt, pass_on
from sm_profiler.hook.patches import timed
from sm_profiler.hook.tensorflow.stopwatch import Table

# Traces.


MAX_TEXT = 300  # characters of a reason
MAX_NAMES = 10_000  # functions remembered
MAX_EARLY = 200
MAX_WAITING = 64  # calls whose functions have not run again yet
COMPILER = "tf.function"
NEW_OBJECT = "tf.function is created again for the same code: create it once, outside of the loop"


class _Waiting(NamedTuple):
    """A call of a function that was traced or compiled in it, and of which no other call shows yet how long a run takes."""

    function: int
    held: list[Span]
    end_ns: int
    xla: bool


class Retracing(Collector):
    """Records each trace that runs from Python; a trace inside another is part of it.

    Attributes:
        traced: called with the function that a trace on the training thread made.
        is_called: returns whether a call on this thread will report its end.
        held: traces of such a call.
        anew: why the library compiles the same model again, for the record of the next trace.
    """

    name = "tensorflow traces"

    def __init__(
        self, append: Callable[[Span], None], step: Callable[[], int], clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._append = append
        self._step = step
        self._clock = clock
        self._depth = 0
        self._early: deque[Span] | None = deque(maxlen=MAX_EARLY)  # before the first step, which starts recording
        self._waiting: deque[_Waiting] = deque()
        self._codes: set[Any] = set()  # of the user's functions that were traced
        self.traced: Callable[[Any], object] = lambda _graph: None
        self.is_called: Callable[[], bool] = lambda: False
        self.begins: Callable[[], None] = lambda: None
        self.held: list[Span] = []
        self.anew = ""

    def start(self) -> None:
        """Record the traces before the first step."""
        early, self._early = self._early, None
        for record in early or ():
            self._append(record)

    def close(self) -> None:
        """Record what a call left that has not ended."""
        for call in self._waiting:  # they ran once, and it is not known how long of that was compiling
            self._call_ended(call.held, call.end_ns, None)
        self._waiting.clear()
        self.call_ended(self._clock(), None)

    def forked(self) -> None:
        """Forget what is the parent's to record."""
        self._waiting.clear()
        self.held = []

    def compiled(self, name: str, start_ns: int, about: Compile) -> None:
        """Record that a function was compiled without a trace, in a call that began at that time."""
        self.held.append(about.span(name, start_ns, start_ns, self._step()))

    def forget_compiled(self) -> None:
        """Forget that a function was compiled without a trace in the call that ended."""
        self.held = [record for record in self.held if (record[5] or {}).get("compiler") != XLA]

    def wait_for_run(self, function: int, end_ns: int, *, xla: bool) -> None:
        """Hold back what a call left until the function runs again, which shows how long a run takes.

        Args:
            function: number of the function.
            end_ns: end of the call, without what it waited for.
            xla: XLA compiles the function.
        """
        if len(self._waiting) >= MAX_WAITING:
            call = self._waiting.popleft()
            self._call_ended(call.held, call.end_ns, None, xla=call.xla)
        held, self.held = self.held, []
        self._waiting.append(_Waiting(function, held, end_ns, xla))

    def ran(self, function: int | None, run_ns: int) -> None:
        """Record what was held back until a function ran again."""
        if function is None:
            return
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if call.function == function:
                self._call_ended(call.held, call.end_ns, run_ns, xla=call.xla)
            else:
                self._waiting.append(call)

    def call_ended(self, end_ns: int, quickest_ns: int | None) -> None:
        """Record the traces of a call; TensorFlow optimizes and compiles their graphs in the run that follows.

        Args:
            end_ns: end of the call, without what it waited for.
            quickest_ns: the function's quickest call without a trace; None if there was none. Then only the trace counts.
        """
        held, self.held = self.held, []
        self._call_ended(held, end_ns, quickest_ns)

    def _call_ended(self, held: list[Span], end_ns: int, quickest_ns: int | None, *, xla: bool = False) -> None:
        if not held:
            return
        phase, name, began, ended, step, about = held[-1]
        first = max(end_ns - ended, 0)
        if xla:  # which takes many times as long as a run
            ended += max(first - (quickest_ns or 0), 0)
        elif quickest_ns is not None:
            ended += max(first - quickest_ns, 0)
        for record in (*held[:-1], (phase, name, began, ended, step, about)):
            self._record(record)

    def _record(self, record: Span) -> None:
        self._append(record) if self._early is None else self._early.append(record)

    def wrap_trace(self, original: Any) -> Any:
        """Return TensorFlow's function that makes a graph, with its traces recorded."""
        return timed(original, self._trace_begins, self._trace_ends, pass_on)

    def _trace_begins(
        self, function_type: Any, _context: Any, _graph: Any, options: Any, *_args: Any, **_kwargs: Any
    ) -> tuple[str, int, Compile | None]:
        began, about = self._clock(), None
        if self._depth == 0:
            self.begins()
            about = attempt(lambda: self._describe(function_type, options)) or Compile(compiler=COMPILER, again=False)
        self._depth += 1
        return str(getattr(options, "name", "")) or "tf.function", began, about

    def _trace_ends(self, begun: tuple[str, int, Compile | None], made: Any, error: BaseException | None) -> None:
        name, began, about = begun
        self._depth -= 1
        if about is None:
            return
        if error is None:
            self.traced(made)
        record = about.span(name, began, self._clock(), self._step())
        self.held.append(record) if self.is_called() else self._record(record)

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Record no traces in the block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _describe(self, function_type: Any, options: Any) -> Compile:
        known = [graph.function_type for graph in options.function_cache.values()] if options.function_cache else []
        code, reason = code_of(options.python_function), ""
        if known:
            reason = why(function_type, known)
            if not reason and len(known) > 1:  # a function that creates variables is traced twice at its first call
                reason = "another context (device, strategy or variables)"
        elif self.anew:
            reason, self.anew = self.anew, ""
        elif code is not None and not is_library(code.co_filename):
            if code in self._codes:
                reason = NEW_OBJECT
            elif len(self._codes) < MAX_NAMES:
                self._codes.add(code)
        return Compile(compiler=COMPILER, again=bool(reason), reason=reason or None, **user_line())


def code_of(function: Any) -> Any:
    """Return the code of the user's function inside TensorFlow's wrappers, or None."""
    for _ in range(20):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    return getattr(function, "__code__", None)


def why(wanted: Any, known: list[Any]) -> str:
    """Return as text how the arguments of a call differ from those of the most similar graph; empty if they do not."""
    fewest = attempt(lambda: min((_differences(wanted, graph) for graph in reversed(known)), key=len))
    if fewest is None:  # other versions of TensorFlow describe arguments differently
        return "other arguments"
    return " ".join("; ".join(fewest).split())[:MAX_TEXT]


def _differences(wanted: Any, known: Any) -> list[str]:
    old, new = known.parameters, wanted.parameters
    found = []
    for name in new:
        if name not in old:
            found.append(f"argument {name} is new")
            continue
        before, now = old[name].type_constraint, new[name].type_constraint
        if before != now:
            found.append(_difference(name, before, now))
    return found


def _difference(name: str, before: Any, now: Any) -> str:
    """Return as text how an argument differs."""
    before, now = _first_different(before, now)
    value, earlier = getattr(now, "value", None), getattr(before, "value", None)
    if type(now).__name__ == "Literal" and type(before).__name__ == "Literal":
        return f"Python value: {name} is {value!r}, was {earlier!r}"
    for what in ("shape", "dtype"):
        new, other = getattr(now, what, None), getattr(before, what, None)
        if new is not None and other is not None and new != other:
            return f"{what} of {name} is {_name(new)}, was {_name(other)}"
    if type(now).__name__ in {"Reference", "Weakref"}:
        return f"{name} is another Python object"
    return f"{name} is {str(now)[:80]}, was {str(before)[:80]}"


def _name(value: Any) -> str:
    return str(getattr(value, "name", None) or value)


def _first_different(before: Any, now: Any) -> tuple[Any, Any]:
    """Return the first parts of two nested types that differ."""
    for attribute in ("components", "mapping"):
        inner: list[Any] = [getattr(part, attribute, None) for part in (before, now)]
        if all(isinstance(part, tuple | list) for part in inner) and len(inner[0]) == len(inner[1]):
            pairs = list(zip(*inner, strict=True))
        elif all(isinstance(part, dict) for part in inner) and inner[0].keys() == inner[1].keys():
            pairs = [(inner[0][key], inner[1][key]) for key in inner[1]]
        else:
            continue
        for old, other in pairs:
            if old != other:
                return _first_different(old, other)
    return before, now


# XLA.


XLA = "XLA"
NODES = "_sm_profiler_nodes"  # of a function: operators of its latest graph; -1 if XLA compiles them
INSIDE = "_sm_profiler_xla"  # of a function whose graph calls a function that XLA compiles
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
    """Records the shapes with which graphs call functions that XLA compiles: such a call runs no Python code.

    Keras's `fit` fetches a batch and calls the compiled step in one graph.  While that graph is traced, operators are
    added to it that write down the shapes which are not known yet.  Nothing is added if all are known, or if the shapes
    are those of arguments: the function might be exported, and its operators would miss their table in another process.
    """

    def __init__(self, tensorflow: Any, stopwatch: Any) -> None:
        self._tf = tensorflow
        self._stopwatch = stopwatch
        self._table = Table(tensorflow, NAME, ROWS, LENGTHS + MAX_LENGTHS)
        self._calls: list[_Call] = []
        self._seen = 0

    def traced(self, name: str, args: Any, kwargs: Any) -> None:
        """Add operators to the graph that is being traced, before a call of a function that XLA compiles."""
        tf = self._tf
        tensors: list[Any] = []
        ranks: list[int] = []
        for tensor in tf.nest.flatten((args, kwargs), expand_composites=True):
            rank = tensor.shape.rank if tf.is_tensor(tensor) and not tensor.shape.is_fully_defined() else None
            if rank is not None and sum(ranks) + rank <= MAX_LENGTHS:
                tensors.append(tensor)
                ranks.append(rank)
        if not tensors or not self._stopwatch.fetches():
            return
        self._table.create()
        call = float(len(self._calls))
        lengths = tf.concat([tf.shape(tensor) for tensor in tensors], 0)  # where the tensors are; no data is copied

        def row(number: Any) -> Any:
            rest = tf.zeros([MAX_LENGTHS - sum(ranks)], tf.float64)
            return tf.concat([tf.stack([number, call, tf.timestamp()]), tf.cast(lengths, tf.float64), rest], 0)

        self._table.add(row)
        self._calls.append(_Call(name, ranks, {}))

    def another(self, start_ns: int) -> tuple[str, str] | None:
        """Return the function that ran with new shapes since a time, and how they differ; None if there is none."""
        if self._table.handles is None:
            return None
        tf = self._tf
        table = tf.raw_ops.ReadVariableOp(resource=self._table.handles[0], dtype=tf.float64).numpy()
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


def _split(lengths: list[float], ranks: list[int]) -> list[Shape]:
    """Return the shapes in a row."""
    found, at = [], 0
    for rank in ranks:
        found.append(tuple(int(length) for length in lengths[at : at + rank]))
        at += rank
    return found


def another(function: Any, args: Any, kwargs: Any) -> str:
    """Return how the shapes of a call differ from those of the call before; empty unless they are new."""
    now = tuple(shapes(args) + shapes(kwargs))
    return _new(function.__dict__.setdefault(SHAPES, {}), now)


def _new(known: dict[tuple[Shape, ...], None], now: tuple[Shape, ...]) -> str:
    """Add shapes to those that are known; return how they differ from the shapes before, empty unless they are new."""
    if not now or now in known or len(known) >= MAX_SHAPES:
        return ""
    before = next(reversed(known), None)
    known[now] = None
    if before is None:
        return ""
    differs = next(((shape, other) for shape, other in zip(now, before, strict=False) if shape != other), None)
    return "other arguments" if differs is None else f"shape is {differs[0]}, was {differs[1]}"


def shapes(value: Any, depth: int = 0) -> list[Shape]:
    """Return the shapes of the tensors and arrays in an argument, without those that are nested deeply."""
    if isinstance(value, (tuple, list, dict)):
        found: list[Shape] = []
        for item in value.values() if isinstance(value, dict) else value:
            if depth < MAX_DEPTH and len(found) < MAX_TENSORS:
                found += shapes(item, depth + 1)
        return found
    shape: Any = getattr(value, "shape", None)
    if not isinstance(shape, tuple) and getattr(shape, "rank", None) is None:  # of another kind, or unknown
        return []
    return [tuple(shape)]
