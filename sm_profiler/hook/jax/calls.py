"""Calls of functions that the script compiles with `jax.jit`, and waiting for their results.

Gradient functions that the script has not compiled run their operations one by one, as Python traces them.  The time
within the operations is that of launching and, on a CPU, of computing; the time between them is Python alone.  The fastest
operations compute next to nothing, so that they take as long as a launch.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import statistics
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

from sm_profiler.formats.recorded import Operators
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import MAX_DEPTH, is_library, outwards
from sm_profiler.hook.jax.loop import Compiled, Loop
from sm_profiler.hook.patches import Patches, timed
from sm_profiler.hook.rest import MIN_WAIT_NS
from sm_profiler.hook.steps import METER_MAX_NS

if TYPE_CHECKING:
    from sm_profiler.hook.jax.compilations import Compilations
    from sm_profiler.hook.session import Session


# Operations that run one by one.


COMPILING = 2  # first calls, which compile their operations
FIRST = 4  # calls measured before the first record; the next comes after twice as many, and so on
CHEAPEST = 10  # the share of operations that compute next to nothing, as 1 in so many
MAX_OPERATIONS = 100_000  # of a call; no more are timed


class OneByOne:
    """Measures some calls of functions that are not compiled.

    Args:
        append: takes the records.
        clock: nanoseconds.
    """

    def __init__(self, append: Callable[[Span], None], clock: Callable[[], int] = perf_counter_ns) -> None:
        self._append = append
        self._clock = clock
        self._watches = False  # JAX's evaluation of operations is wrapped
        self._taken: list[int] | None = None  # nanoseconds of each operation of the call that is measured
        self._thread = 0  # of that call
        self._inside = False  # an operation runs: what it runs itself is part of it
        self._found: list[tuple[int, float, int]] = []  # operations, fixed nanoseconds of each, nanoseconds of the call
        self._due = FIRST
        self._calls = 0

    def is_due(self, *, metering: bool) -> bool:
        """Return whether to measure this call: a few early ones, so that short trainings have them, and then those that are metered."""
        self._calls += 1
        return metering or COMPILING < self._calls <= COMPILING + FIRST

    def watch(self, patches: Patches, core: Any) -> None:
        """Wrap JAX's evaluation of operations, once."""
        if self._watches:
            return
        self._watches = True
        owner = getattr(core, "EvalTrace", None)
        original = getattr(owner, "process_primitive", None)
        if original is not None:
            patches.put(owner, "process_primitive", self._wrap(original))

    def _wrap(self, original: Any) -> Any:
        def process_primitive(*args: Any, **kwargs: Any) -> Any:
            taken = self._taken
            if taken is None or self._inside or len(taken) >= MAX_OPERATIONS or get_ident() != self._thread:
                return original(*args, **kwargs)
            self._inside = True
            start = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                taken.append(self._clock() - start)
                self._inside = False

        return process_primitive

    def begins(self) -> None:
        """Measure the call that begins."""
        self._taken, self._thread = [], get_ident()

    def ended(self, nanoseconds: int, step: int) -> None:
        """Record the end of the measured call."""
        taken, self._taken = self._taken, None
        if not taken:
            return
        cheapest = sorted(taken)[len(taken) // CHEAPEST]
        python = max(nanoseconds - sum(taken), 0)
        self._found.append((len(taken), python / len(taken) + cheapest, nanoseconds))
        if len(self._found) >= self._due:
            self._due *= 2
            count, fixed, length = map(statistics.median_low, zip(*self._found, strict=True))
            found = Operators(operators=count, fixed_us=round(fixed / 1000, 3), call_us=round(length / 1000, 1))
            now = self._clock()
            self._append(found.span("operators", now, now, step))
            self._found = []

    def failed(self) -> None:
        """Forget the measured call: it raised an error."""
        self._taken, self._inside = None, False

    def forked(self) -> None:
        """Start over in a forked child."""
        self.failed()
        self._found, self._due = [], FIRST


# Calls.


# What scripts and libraries use of a compiled function.
_ATTRIBUTES = (
    "lower",
    "trace",
    "eval_shape",
    "clear_cache",
    "_cache_size",
    "_clear_cache",
    "_cache_miss",
    "_fun",
    "_jit_info",
)
MAX_FUNCTIONS = 1000
Place: TypeAlias = tuple[tuple[CodeType, int], ...]  # codes and instructions, the innermost first
_PARTS = 64  # of each of a call's arguments that are described
_LONGEST = 40  # characters of a value
MIN_QUEUED_NS = 100_000  # by which a call is longer than the quickest, if it waits for those before it


class Calls(Collector):
    """Wraps what `jax.jit` returns, and what blocks until results are there."""

    name = "calls"

    def __init__(
        self, session: Session, jax: Any, loop: Loop, compilations: Compilations, watch: Callable[[OneByOne], None]
    ) -> None:
        """Create the wrappers.

        Args:
            session: the session.
            jax: the module.
            loop: finds steps in calls.
            compilations: what JAX compiles.
            watch: called when the script has gradients that it does not compile.
        """
        self._session = session
        self._loop = loop
        self._compilations = compilations
        self._inside = False  # an outermost call, or waiting, is running
        self._jax = jax
        self._results: list[Any] | None = None  # weak references to those of the last call, while they are needed
        self._clock = perf_counter_ns
        self._thread = threading.main_thread().ident
        self._runs: Callable[[], bool] = getattr(import_module("jax._src.core"), "trace_state_clean", lambda: True)
        self._array: type = import_module("jax._src.array").ArrayImpl  # isinstance(…, jax.Array) runs Python code
        self._run_compiled: Any = None  # JAX's own call of a function that was compiled ahead of time
        self._made: dict[Any, Compiled] = {}  # code of a function, and lines that compiled it
        self._latest: Any = None  # weak reference to a result of the last call
        self._one_by_one = OneByOne(session.append)
        self._watch = watch
        compilations.find_running = self._find_running

    def forked(self) -> None:
        """Forget what runs in the parent."""
        self._inside, self._results, self._latest = False, None, None
        self._thread = threading.main_thread().ident
        self._one_by_one.forked()
        self._loop.reset()

    def keep_results(self, *, on: bool) -> None:
        """Remember the results of the last call from now on, or no longer."""
        self._results = (self._results or []) if on else None

    def settle(self) -> None:
        """Wait until what was called so far has run: JAX returns before."""
        arrays = [array for array in (reference() for reference in self._results or ()) if array is not None]
        if get_ident() != self._thread:  # whose calls are reported, and which may be inside a call
            self._jax.block_until_ready([array for array in arrays if not array.is_deleted()])
            return
        inside, self._inside = self._inside, True
        try:
            self._jax.block_until_ready([array for array in arrays if not array.is_deleted()])
        finally:
            self._inside = inside

    # jit

    def compiled(self, made: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return what `jax.jit` or `jax.pmap` made for the script, with its calls reported."""
        place = () if self._session.quiet else users_place(sys._getframe(1))  # who compiles
        return self._observed(made, place) if place else None

    def differentiated(self, made: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return what `jax.grad` or `jax.value_and_grad` made, with its calls reported unless they are compiled."""
        place = () if self._session.quiet or self._inside else users_place(sys._getframe(1))
        return self._wrap(made, place, is_compiled=False) if place else None

    def differentiates(self, *_args: Any, **_kwargs: Any) -> None:
        """Record that JAX differentiates a function, for gradients, while it traces a compiled function."""
        running = self._compilations.running
        if running is not None and get_ident() == self._thread:
            self._loop.computes_gradients(running[0])

    def _observed(self, made: Any, place: Place) -> Any:
        if hasattr(made, "lower"):
            return self._wrap(made, place)
        if not callable(made):
            return made

        @functools.wraps(made)
        def decorator(*args: Any, **kwargs: Any) -> Any:  # jax.jit(static_argnums=…)
            return self._observed(made(*args, **kwargs), place)

        return decorator

    def _function(self, made: Any, place: Place, *, is_compiled: bool) -> Compiled:
        """Return what is known of a function: a loop that compiles it in each turn calls the same function again."""
        code = getattr(getattr(made, "__wrapped__", None), "__code__", None)
        key = code, place
        function = self._made.get(key)
        if function is None or not function.calls:
            function = Compiled(str(getattr(made, "__name__", "") or "jit"), is_compiled=is_compiled)
            if code is not None and any(other.gradients for (same, _), other in self._made.items() if same is code):
                self._loop.computes_gradients(function)  # JAX does not trace it again
            if len(self._made) < MAX_FUNCTIONS:
                self._made[key] = function
        function.made += 1
        return function

    def _wrap(self, made: Any, place: Place, *, is_compiled: bool = True) -> Any:
        function = self._function(made, place, is_compiled=is_compiled)
        call = self._caller(function, made)
        for attribute in _ATTRIBUTES:
            if hasattr(made, attribute):
                setattr(call, attribute, getattr(made, attribute))
        if hasattr(made, "lower"):
            setattr(call, "lower", self._lowering(function, made.lower))  # noqa: B010 - of a function
        return call

    def _caller(self, function: Compiled, made: Any) -> Any:
        """Return a function that reports its calls."""
        session, loop, compilations, tracker = self._session, self._loop, self._compilations, self._session.tracker
        clock, runs, is_compiled = self._clock, self._runs, function.is_compiled

        def begin(*args: Any, **kwargs: Any) -> tuple[int, int, bool, int] | None:
            if self._inside or session.quiet or get_ident() != self._thread or not runs():
                if function.gradients:  # JAX may not trace it again
                    self.differentiates()
                return None
            start, arguments, latest = clock(), (args, kwargs), self._latest
            if loop.begins(function, start, arguments):
                return None
            self._inside = True
            compilations.running, compiled = (function, arguments), compilations.finished
            array = None if latest is None else latest()
            behind = array is not None and _is_pending(array)  # this call may have to wait for the call before
            launched = clock()
            if not is_compiled:
                self._measures()
            tracker.in_compiled = True
            return start, launched, behind, compiled

        def end(begun: tuple[int, int, bool, int], result: Any, error: BaseException | None) -> None:
            end_ns, (start_ns, launched_ns, behind, compiled) = clock(), begun
            tracker.in_compiled = False
            compilations.running = None
            try:
                if error is not None:
                    self._one_by_one.failed()
                    loop.failed(function)
                    return
                length_ns = end_ns - launched_ns
                queued_ns = _queued(function, length_ns, behind=behind) if compiled == compilations.finished else 0
                if not is_compiled:
                    self._one_by_one.ended(end_ns - start_ns, tracker.number)
                loop.ended(function, function.name, start_ns, end_ns - queued_ns)
                if queued_ns:
                    loop.queued(function, end_ns - queued_ns, end_ns)
                self._keep(function, result)
                if tracker.metering:
                    tracker.own_ns += min(launched_ns - start_ns, METER_MAX_NS) + min(clock() - end_ns, METER_MAX_NS)
            finally:
                self._inside = False

        self._loop.codes.add(Call.__call__.__code__)
        return Call(function, made, timed(made, begin, end, session.fail), clock)

    def _find_running(self) -> tuple[Compiled, Any] | None:
        """Return the function that is called during a rest, with its arguments; the rest ends after this step."""
        rest, codes = self._loop.rest, self._loop.codes
        if rest is None or get_ident() != self._thread:
            return None
        rest.until = 0
        names = (frame.f_locals for frame in reversed(outwards(sys._getframe(1))) if frame.f_code in codes)
        return next(((its["self"]._function, (its["args"], its["kwargs"])) for its in names if "self" in its), None)

    def _keep(self, function: Compiled, result: Any) -> None:
        """Remember the results of a call, as far as they are needed."""
        leaf = _first_leaf(result)
        self._latest = weakref.ref(leaf) if type(leaf) is self._array else None
        if not function.settled:
            self._loop.returned(function, result)
        if self._results is not None:
            arrays = [leaf for leaf in self._jax.tree_util.tree_leaves(result) if isinstance(leaf, self._jax.Array)]
            self._results = [weakref.ref(array) for array in arrays]

    def _measures(self) -> None:
        """Measure what the operations of this call cost, if it is its turn."""
        if self._one_by_one.is_due(metering=self._session.tracker.metering):
            self._watch(self._one_by_one)
            self._one_by_one.begins()

    # compiled ahead of time

    def _lowering(self, function: Compiled, original: Any) -> Any:
        """Return `lower` of a compiled function, whose result refers to the function."""

        def begin(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            before = self._inside, self._compilations.running
            self._inside, self._compilations.running = True, (function, (args, kwargs))
            return before

        def end(before: tuple[Any, Any], lowered: Any, error: BaseException | None) -> None:
            self._inside, self._compilations.running = before
            if error is None:
                with contextlib.suppress(AttributeError):
                    lowered.sm_profiler_function = function

        return timed(original, begin, end, self._session.fail)

    def compiled_ahead(self, compiled: Any, lowered: Any, *_args: Any, **_kwargs: Any) -> None:
        """Have the calls of what `Lowered.compile` returned reported."""
        function = getattr(lowered, "sm_profiler_function", None)
        if function is not None and not self._session.quiet:
            compiled.sm_profiler_call = self._caller(function, functools.partial(self._run_compiled, compiled))

    def wrap_compiled(self, original: Any) -> Any:
        """Return `Compiled.__call__` that reports calls."""
        self._run_compiled = original

        @functools.wraps(original)
        def __call__(compiled: Any, *args: Any, **kwargs: Any) -> Any:  # replaces a method of this name
            call = getattr(compiled, "sm_profiler_call", None)
            return original(compiled, *args, **kwargs) if call is None else call(*args, **kwargs)

        return __call__

    # waiting

    def wrap_wait(self, name: str, original: Any) -> Any:
        """Return a function that reports how long it blocks."""
        session, tracker, loop = self._session, self._session.tracker, self._loop
        clock = self._clock

        def begin(*_args: Any, **_kwargs: Any) -> int | None:
            if self._inside or session.quiet or get_ident() != self._thread:
                return None
            self._inside = tracker.in_compiled = True
            return clock()

        def end(start_ns: int, _result: Any, _error: BaseException | None) -> None:
            end_ns = clock()
            self._inside = tracker.in_compiled = False
            loop.waited = True
            if end_ns - start_ns >= MIN_WAIT_NS:
                loop.ended(None, name, start_ns, end_ns)

        observed = timed(original, begin, end, session.fail)

        @functools.wraps(observed)
        def wait(*args: Any, **kwargs: Any) -> Any:  # flat on purpose
            rest = loop.rest
            if rest is None or session.quiet or get_ident() != rest.thread:
                return observed(*args, **kwargs)
            start_ns = clock()
            try:
                return original(*args, **kwargs)
            finally:
                rest.waits.append((name, start_ns, clock()))

        loop.codes.add(wait.__code__)  # type: ignore[attr-defined]  # of a function
        return wait


class Call:
    """A function of the script that JAX made: during a rest it only notes its calls, and else is `observed`.

    It is pickled as what JAX made, by value as well, and is bound to an object as that is.
    """

    def __init__(self, function: Compiled, made: Any, observed: Any, clock: Callable[[], int]) -> None:
        functools.update_wrapper(self, observed)  # first: it copies attributes, those of another Call among them
        self._function, self._made, self._observed, self._clock = function, made, observed, clock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # flat on purpose: calls cost time
        part = self._function.part
        if part is None or get_ident() != part.rest.thread:
            return self._observed(*args, **kwargs)
        now, begun, rest = self._clock(), part.calls, part.rest
        if now > rest.until or len(begun) == len(part.limit):
            return self._observed(*args, **kwargs)  # ends the rest
        begun.append(now)
        try:
            return self._made(*args, **kwargs)
        except BaseException:
            if begun is not rest.ends or len(begun) > 1:  # no step begins with a call that failed
                begun.pop()
            raise

    def __get__(self, instance: Any, _owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> Any:
        return operator.itemgetter(0), ((self._made,),)

    def __repr__(self) -> str:
        return repr(self._made)


def _queued(function: Compiled, length_ns: int, *, behind: bool) -> int:
    """Return the ns that a call has waited for those before it: what it takes beyond the quickest call.

    JAX limits the computations that wait to run, and a CPU runs small ones inside the call, after those before it.
    """
    function.quickest_ns = min(function.quickest_ns, length_ns)
    queued = length_ns - function.quickest_ns
    return queued if behind and function.is_compiled and queued >= MIN_QUEUED_NS else 0


def _first_leaf(tree: Any) -> Any:
    """Return a leaf of a tree of results, without a look at the others."""
    for _ in range(MAX_DEPTH):
        if isinstance(tree, dict):
            tree = next(iter(tree.values()), None)
        elif isinstance(tree, tuple | list):
            tree = next((item for item in tree if not (isinstance(item, dict | tuple | list) and not item)), None)
        else:
            break
    return tree


def _is_pending(array: Any) -> bool:
    """Return whether an array's values are not there yet; keys of random numbers are arrays without `is_ready`."""
    is_ready = getattr(array, "is_ready", None)
    return is_ready is not None and not array.is_deleted() and not is_ready()


def users_place(frame: FrameType | None) -> Place:
    """Return the lines through which the program compiles a function, itself or through a library.

    Empty if no line of the program does: a library compiles it as it is imported.
    """
    places, users = [], False
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        path = frame.f_code.co_filename
        if not users:
            if path.startswith("<frozen importlib"):
                return ()
            users = not is_library(path)
        places.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(places) if users else ()


def describe(flatten: Callable[[Any], Any], show: Callable[[Any], str], arguments: Any) -> dict[str, str]:
    """Return place → type and shape, or value, of each of a call's arguments."""
    found, parts = {}, Counter[str]()
    for path, leaf in flatten(arguments)[0]:
        argument = show(path[:2])
        parts[argument] += 1
        if parts[argument] > _PARTS:  # all parameters of a model, before the batch
            continue
        shape, kind = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is not None and kind is not None:
            text = f"{kind}[{','.join(map(str, shape))}]"
        else:
            text = repr(leaf)[:_LONGEST] if isinstance(leaf, (bool, int, float, str)) else type(leaf).__name__
        found[f"argument {show(path[1:2]).strip('[]')}{show(path[2:])}"] = text
    return found
