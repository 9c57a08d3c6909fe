"""Graphs of torch: compilations by torch.compile, and the operators in the autograd graph of a step."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.recorded import Compile, Operators
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import user_line
from sm_profiler.hook.guard import attempt, run_bounded
from sm_profiler.hook.scheduling import THIS_THREAD, waited_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm_profiler.hook.session import Session

# Compilations: when each ran, what was compiled again and why, and where graphs break.

MAX_BREAKS = 50  # events about graph breaks in all; the same few recur
MAX_TEXT = 300  # characters of a reason


class Compilations(Collector):
    """Records compilations from torch's callbacks; the details come from torch's own metrics, on the recorder's thread."""

    name = "compilations"

    def __init__(
        self, append: Callable[[Span], None], step: Callable[[], int], clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._append = append
        self._step = step
        self._clock = clock
        self._began = 0
        self._line: dict[str, Any] = {}  # of the user's code that called the compiled function
        self._done: list[tuple[int, int, int, str, dict[str, Any]]] = []
        self._breaks = 0
        self._handler: Any = None

    def register(self, handler: Any) -> None:
        """Have torch call back, unless it does already."""
        self._handler = handler
        if self._begins not in handler.start_callbacks:
            handler.register_start_callback(self._begins)
        if self._ends not in handler.end_callbacks:
            handler.register_end_callback(self._ends)

    def remove(self) -> None:
        """Have torch no longer call back."""
        handler, self._handler = self._handler, None
        if handler is not None:
            with contextlib.suppress(ValueError):
                handler.remove_start_callback(self._begins)
            with contextlib.suppress(ValueError):
                handler.remove_end_callback(self._ends)

    def failed(self) -> None:
        """Have torch no longer call back."""
        self.remove()

    def forked(self) -> None:
        """Forget the parent's compilations."""
        self._began, self._done = 0, []

    def _begins(self, *_: Any) -> None:
        self._began = self._clock()
        self._line = attempt(user_line) or {}  # torch would raise an error of a callback in the script

    def _ends(self, args: Any = None) -> None:
        began, self._began = self._began, 0
        if began:
            number = getattr(args, "compile_id", "")
            self._done.append((began, self._clock(), self._step(), str(number), self._line))

    def beat(self) -> None:
        """Record what was compiled since the last time, with torch's metrics."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return
        done, self._done = self._done, []
        if done:
            metrics = {str(metric.compile_id): metric for metric in list(utils.get_compilation_metrics())}
            for began, ended, step, number, line in done:
                found = metrics.get(number)
                name = getattr(found, "co_name", None) or "torch.compile"
                again = number.partition("/")[2].partition("_")[0] not in ("", "0")  # torch numbers them 3/0, 3/1 …
                reason = getattr(found, "recompile_reason", None)
                about = Compile(again=again, reason=_line(reason) if reason else None, **line)
                self._append(about.span(name, began, ended, step))
        self._record_breaks(utils)

    def close(self) -> None:
        """Record the last compilations."""
        self.beat()

    def _record_breaks(self, utils: Any) -> None:
        known = list(getattr(utils, "graph_break_reasons", ()))
        if len(known) < self._breaks:  # torch._dynamo.reset() empties the list
            self._breaks = 0
        for graph_break in known[self._breaks : MAX_BREAKS]:
            now = self._clock()
            line: dict[str, Any] = {}
            if graph_break.user_stack:
                frame = graph_break.user_stack[-1]
                line = {"file": frame.filename, "line": frame.lineno, "function": frame.name}
            self._append(Compile(reason=_line(graph_break.reason), **line).span("graph break", now, now))
        self._breaks = len(known)


def _line(text: Any) -> str:
    """Return a reason on one short line."""
    return " ".join(str(text).split())[:MAX_TEXT]


# Operators a step, and the least that an operator takes on this machine: together the part of a step that no larger batch
# costs.  Operators are counted in a few steps by a walk over the autograd graph, which reads it only: a forward and a
# backward operator per node, and another per parameter.  Their fixed cost is calibrated with a network of single numbers.
# A loop over the samples of a batch shows in the graph, too: each sample's operators read the same result.

FIRST_STEP = 10  # the steps before allocate and warm up
TIMES = 10  # the next count comes after so many times as many steps
MAX_NODES = 20_000  # some 10 ms; a larger graph is counted up to here
LAYERS = 16  # of the calibration, two parameters each
REPEATS = 10
MAX_SECONDS = 0.02
CALIBRATION_SECONDS = 10.0  # the training waits no longer if it hangs
LEAF = "AccumulateGrad"
TIMED_STEPS = 7  # after a counted step


class OperatorCount(Collector):
    """Counts the operators of a few training steps.

    Attributes:
        due: the next step to look at.
    """

    name = "operators"

    def __init__(self, session: Session, torch: Any) -> None:
        self._session = session
        self._torch = torch
        self._reset()

    def _reset(self) -> None:
        self.due = FIRST_STEP
        self._step = -1  # that is being counted
        self._operators = 0
        self._readers = 0  # the most operators of a kind that read the same result
        self._edges: list[int] = []  # starts of later steps' backward passes, by a clock without waits for a core
        self._last = -1  # step of the latest edge

    def forked(self) -> None:
        """Start over."""
        self._reset()

    def is_due(self, step: int) -> bool:
        """Return whether the backward pass of a step must be seen."""
        return (self._step >= 0 or step >= self.due) and not self._session.is_off(self.name)

    def backward_begins(self, outputs: Any) -> None:
        """Add the graph of a backward pass to the count of its step, and time some steps after it.

        On a busy machine, steps wait for a core and the short calibration does not, so they are timed without that.

        Args:
            outputs: the first argument of `torch.autograd.backward`.
        """
        if not isinstance(outputs, (self._torch.Tensor, list, tuple)):  # an iterator can be read only once
            return
        session = self._session
        step = session.tracker.global_step
        with session.work.doing("operators are counted"):
            if self._step not in (-1, step):
                if step != self._last:
                    self._edges.append(perf_counter_ns() - waited_ns(THIS_THREAD))
                    self._last = step
                if len(self._edges) > TIMED_STEPS:
                    self._finish()
                return
            self._step = step
            tensors = (outputs,) if isinstance(outputs, self._torch.Tensor) else tuple(outputs)
            operators, readers = count_operators(tensor.grad_fn for tensor in tensors)
            self._operators, self._readers = self._operators + operators, max(self._readers, readers)

    def _finish(self) -> None:
        edges, self._edges = self._edges, []
        if len(edges) <= TIMED_STEPS:
            return  # several threads train at once, and another thread has come first
        fixed_us = calibrate(self._torch, self._session.work.elsewhere)
        now = perf_counter_ns()
        step_us = statistics.median(after - before for before, after in pairwise(edges)) / 1000
        found = Operators(
            operators=self._operators, readers=self._readers, fixed_us=round(fixed_us, 3), step_us=round(step_us, 1)
        )
        self._session.append(found.span("operators", now, now, self._step))
        self.due = max(self._step, 1) * TIMES
        self._step, self._operators, self._readers, self._edges = -1, 0, 0, []


def count_operators(roots: Iterable[Any]) -> tuple[int, int]:
    """Return the number of operators behind a graph of autograd nodes, and the most of a kind that read the same result."""
    count, waiting = 0, [root for root in roots if root is not None]
    seen, readers = set(waiting), dict[tuple[Any, str], int]()
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        name, following = node.name(), [read for read, _ in node.next_functions if read is not None]
        count += 1 if name.endswith(LEAF) else 2
        for read in set(following):
            if read not in seen:
                seen.add(read)
                waiting.append(read)
            readers[read, name] = readers.get((read, name), 0) + 1
    results = (times for (read, _), times in readers.items() if not read.name().endswith(LEAF))  # and not parameters
    return count, max(results, default=0)


def calibrate(torch: Any, run: Callable[[Callable[[], float]], float]) -> float:
    """Return the microseconds that an operator takes, in a training step without noticeable arithmetic.

    The median of some steps by the thread's own CPU time: on a busy machine, where caches and cores are shared, launches
    take longer, and so do the steps that this is compared with.

    A separate thread has none of the modes (autocast, deterministic devices, counters) that the script has switched on.

    Args:
        torch: the module.
        run: runs the measurement on that thread.
    """
    return run_bounded(
        lambda: run(lambda: _measure(torch)), CALIBRATION_SECONDS, "the calibration of operators does not end"
    )


def _measure(torch: Any) -> float:
    linear, relu = torch.nn.functional.linear, torch.nn.functional.relu
    exact = {"dtype": torch.float32, "device": "cpu", "requires_grad": True}
    parameters = [torch.ones(shape, **exact) for _ in range(LAYERS) for shape in ((1, 1), (1,))]
    weights, biases, x = parameters[::2], parameters[1::2], torch.ones((1, 1), dtype=torch.float32, device="cpu")
    taken, began, operators = [], perf_counter_ns(), 0
    for _ in range(REPEATS):
        start = thread_time_ns()
        y = x
        for weight, bias in zip(weights, biases, strict=True):
            y = relu(linear(y, weight, bias))
        graph = y.sum()
        between = thread_time_ns()
        if not operators:
            operators, _ = count_operators([graph.grad_fn])
        resumed = thread_time_ns()
        gradients = torch.autograd.grad(graph, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.0)
        taken.append(between - start + thread_time_ns() - resumed)
        if perf_counter_ns() - began > MAX_SECONDS * 1e9:
            break
    return statistics.median(taken) / 1000 / operators
