"""Operators a step, and the least that they take on this machine: together the part of a step that no larger batch costs.

Operators that Python launches are counted during one step, without those of callbacks, saving and logging; those of a
`tf.function` in its graph.  What each takes at
least is calibrated with operators on single numbers; in a step without any `tf.function`, the Python between them counts,
too.
"""

from __future__ import annotations

import statistics
import threading
from concurrent.futures import Future
from importlib import import_module
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from sm_profiler.formats.recorded import Operators
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.scheduling import waited_ns
from sm_profiler.hook.tensorflow.compilations import NODES

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session
    from sm_profiler.hook.tensorflow.compilations import Retracing
    from sm_profiler.hook.tensorflow.loops import Loops

STEPS = (10, 100)  # that are counted: those before the first trace and warm up
MAX_OPERATORS = 100_000  # of a step; after the last one, the script may go on for long without another
TIMED_STEPS = 7  # after a counted step
FRAMEWORK = "tensorflow"
LAUNCHERS = ("TFE_Py_FastPathExecute", "TFE_Py_Execute")
CHAIN = 48  # operators of the calibration's graph
REPEATS = 20
CALIBRATION_SECONDS = 10.0  # it takes milliseconds; the training waits no longer if it hangs
PAIRS = 8  # of a forward and a backward operator, of the eager calibration
MOST_PYTHON = 10  # times the cost of an operator: what Keras and TensorFlow run in Python for each
XLA = "_XlaMustCompile"


class Costs(NamedTuple):
    """Microseconds: of an operator launched from Python, of a function's call, and of an operator in its graph."""

    eager: float
    call: float
    inside: float


class OperatorCount(Collector):
    """Counts the operators of a few training steps."""

    name = "operators"

    def __init__(self, session: Session, tensorflow: Any, loops: Loops, retracing: Retracing) -> None:
        self._session = session
        self._tf = tensorflow
        self._loops = loops
        self._retracing = retracing
        self._launchers: Any = import_module("tensorflow.python.pywrap_tfe")
        self._patches = Patches(session.fail)
        self._count = 0
        self._began_ns = self._inside_ns = 0  # of the counted step: its start, and the time in its operators
        self._aside_ns = 0  # of all callbacks and saves before it
        self._python_us = 0.0  # outside its operators
        self._due = list(STEPS)
        self._counted: tuple[list[Any], int, int] | None = None  # functions, operators from Python, batches of a step
        self._edges: list[int] = []  # starts of the steps after it, by a clock without waits for a core
        self._chains: tuple[Any, Any] | None = None
        retracing.traced = self._traced

    def forked(self) -> None:
        """Start over."""
        self.stop()
        self._due, self._counted = list(STEPS), None

    def failed(self) -> None:
        """Count no longer."""
        self.stop()

    def step_begins(self, step: int, mode: ModeKeys) -> bool:
        """Begin or end the count of a step, or time a later step."""
        if self._loops.ran is not None:
            if mode is ModeKeys.TRAIN:
                self._counted = self._loops.ran, self._count, self._session.tracker.batches
            self._edges = [perf_counter_ns() - waited_ns()]
            other_ns = self._inside_ns + self._session.aside.ns - self._aside_ns
            self._python_us = max(self._edges[0] - self._began_ns - other_ns, 0) / 1000
            self.stop()
        elif self._counted is not None:
            self._edges = [*self._edges, perf_counter_ns() - waited_ns()] if mode is ModeKeys.TRAIN else []
            if len(self._edges) > TIMED_STEPS:
                with self._session.work.doing("operators are counted"):
                    self._note(*self._counted)
                self._counted = None
        elif self._due and step >= self._due[0] and mode is ModeKeys.TRAIN:
            self._due = [due for due in self._due if due > step]
            if self._trains():
                self._begin()
        return self._loops.ran is None and self._counted is None and not self._due

    def _trains(self) -> bool:
        adapter = self._session.adapter
        return FRAMEWORK in (adapter.framework, getattr(adapter, "backend", ""))

    def _begin(self) -> None:
        self._count, self._inside_ns, self._loops.ran = 0, 0, []
        self._began_ns = perf_counter_ns() - waited_ns()
        thread, get_ident, aside = self._loops.thread, threading.get_ident, self._session.aside
        self._aside_ns = aside.ns
        for name in LAUNCHERS:
            original = getattr(self._launchers, name)

            def launch(*args: Any, original: Any = original) -> Any:
                if get_ident() != thread or aside.depth:
                    return original(*args)
                self._count += 1
                if self._count > MAX_OPERATORS:
                    self.stop()
                    return original(*args)
                start_ns = perf_counter_ns()
                try:
                    return original(*args)
                finally:
                    self._inside_ns += perf_counter_ns() - start_ns

            self._patches.put(self._launchers, name, launch)

    def stop(self) -> None:
        """Restore what launches operators."""
        self._patches.remove()
        self._loops.ran = None

    def _traced(self, made: Any) -> None:
        """Count the operators of a graph for the function that is called."""
        function = self._loops.running
        if function is None or threading.get_ident() != self._loops.thread:
            return
        try:
            function.__dict__[NODES] = _operators(made)
        except Exception as error:  # fail open
            self._session.switch_off(self, error)

    def _note(self, functions: list[Any], launched: int, batches: int) -> None:
        nodes = [function.__dict__.get(NODES, -1) for function in functions]
        if (nodes and min(nodes) < 0) or not (nodes or launched):
            return  # the number of operators is unknown
        costs = self._calibrated(graphs=bool(nodes))
        inside = sum(nodes) * max(batches, 1)
        eager = max(launched - len(nodes), 0)
        of_python = min(self._python_us, eager * costs.eager * MOST_PYTHON) if not nodes else 0.0
        total = of_python + eager * costs.eager + len(nodes) * costs.call + inside * costs.inside
        count, now = eager + inside, perf_counter_ns()
        if count and total > 0:
            step_us = statistics.median(after - before for before, after in pairwise(self._edges)) / 1000
            eager = None if nodes else True
            found = Operators(operators=count, fixed_us=round(total / count, 4), step_us=round(step_us, 1), eager=eager)
            self._session.append(found.span("operators", now, now, self._session.tracker.train_number))

    def _calibrated(self, *, graphs: bool) -> Costs:
        """Measure in a separate thread, which has none of the scopes that the script has entered."""
        costs: Future[Costs] = Future()

        def measure() -> None:
            try:
                costs.set_result(self._measure(graphs=graphs))
            except Exception as error:  # raised below, on the thread that waits
                costs.set_exception(error)

        with self._retracing.ignored():
            threading.Thread(target=measure, name="sm-profiler-calibration", daemon=True).start()
            return costs.result(CALIBRATION_SECONDS)

    def _measure(self, *, graphs: bool) -> Costs:
        tf = self._tf
        with tf.device("/device:CPU:0"):
            eager = self._eager()
            if not graphs or tf.config.functions_run_eagerly():
                return Costs(eager, eager, eager)
            x = tf.ones((1, 1))
            if self._chains is None:
                self._chains = self._chain(1), self._chain(CHAIN)
            short, long = (_quickest(lambda chain=chain: chain(x)) for chain in self._chains)
            return Costs(eager, short, max(long - short, 0.0) / (CHAIN - 1))

    def _chain(self, length: int) -> Any:
        tf = self._tf

        def multiply(x: Any) -> Any:
            for _ in range(length):
                x = tf.raw_ops.MatMul(a=x, b=x)
            return x

        return tf.function(multiply, autograph=False)

    def _eager(self) -> float:
        tf = self._tf
        x = tf.ones((1, 1))

        def step() -> None:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for _ in range(PAIRS):
                    y = tf.nn.relu(y)
            tape.gradient(y, x)

        return _quickest(step) / (2 * PAIRS)


def _operators(made: Any) -> int:
    """Return the operators of a traced function and of those inside it; -1 if XLA compiles one.

    They are counted where Python has them already: a large graph takes long to serialize, the more so with constants.
    """
    count = len(made.graph.get_operations())
    waiting, seen = list(made._inference_function.children), set()  # it has no public name
    while waiting:
        called = waiting.pop()
        if called.name in seen:
            continue
        seen.add(called.name)
        definition = called._cached_definition  # of what was called; `definition` would make it anew
        if definition is not None and XLA in definition.attr and definition.attr[XLA].b:
            return -1
        graph = called._cached_graph  # `graph` would make one
        if graph is not None:
            count += len(graph.get_operations()) - len(graph.inputs)
        waiting += called.children
    return count


def _quickest(action: Any) -> float:
    """Return the microseconds of the quickest of some calls: other processes may use the cores."""
    action()
    taken = []
    for _ in range(REPEATS):
        start = perf_counter_ns()
        action()
        taken.append(perf_counter_ns() - start)
    return min(taken) / 1000
