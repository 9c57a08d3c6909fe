"""Compilations by JAX: how long each took, of which function, and what was different from the previous compilation."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.recorded import Compile
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import user_line
from sm_profiler.hook.jax.loop import Compiled

COMPILER = "jax.jit"
TRACED = "/jax/core/compile/jaxpr_trace_duration"
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"
MAX_NAMES = 1000
USUAL = 8  # shapes of one operation in one line: a network has layers of some sizes
MAX_EARLY = 500  # compilations before the first step
MAX_TEXT = 300  # characters of a reason
NEW = "the arguments are the same: jax.jit was called again, for a new function"
SAME = "shapes and types are the same: a weak type, a device or sharding, or a structure differs"


class Compilations(Collector):
    """Records compilations, as JAX reports them.

    Attributes:
        running: the function of the script that is called, with its arguments.
        find_running: returns the same if that call is not reported.
        finished: compilations so far.
    """

    name = "compilations"

    def __init__(
        self,
        append: Callable[[Span], None],
        step: Callable[[], int],
        describe: Callable[[Any], dict[str, str]],
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Create the collector.

        Args:
            append: takes the records.
            step: returns the number of the step.
            describe: returns place → type of each of a call's arguments.
            clock: nanoseconds.
        """
        self._append = append
        self._step = step
        self._describe = describe
        self._clock = clock
        self._early: list[Span] | None = []  # before recording starts
        self.running: tuple[Compiled, Any] | None = None
        self.find_running: Callable[[], tuple[Compiled, Any] | None] = lambda: None
        self.finished = 0
        self._before: dict[str, float] = {}  # function → seconds it was traced and lowered since it was last compiled
        self._known: dict[tuple[Any, ...], int] = {}  # function and line → compilations

    def heard(self, event: str, seconds: float, **about: Any) -> None:
        """Take a report of JAX."""
        if event not in (TRACED, LOWERED, COMPILED):
            return
        name = str(about.get("fun_name", ""))
        name = name.removeprefix("jit(").removesuffix(")") if name.startswith("jit(") else name
        if event != COMPILED:
            if len(self._before) < MAX_NAMES:
                self._before[name] = self._before.get(name, 0.0) + seconds
            return
        self.finished += 1
        now = self._clock()
        seconds += self._before.pop(name, 0.0)
        line = user_line()
        again, reason = self._compare(name, (name, line.get("file"), line.get("line")))
        found = Compile(compiler=COMPILER, again=again, reason=reason, **line)
        record = found.span(name or COMPILER, now - int(seconds * 1e9), now, self._step())
        if self._early is None:
            self._append(record)
        elif len(self._early) < MAX_EARLY:
            self._early.append(record)

    def start(self) -> None:
        """Record what was compiled before the first step."""
        early, self._early = self._early, None
        for record in early or ():
            self._append(record)

    def _compare(self, name: str, place: tuple[Any, ...]) -> tuple[bool, str | None]:
        """Return whether a function was compiled before, and what is different now, if that is known."""
        running = self.running or self.find_running()
        if running is None or running[0].name != name:  # a separate operation, or called by another function
            count = self._known.get(place, 0)
            if len(self._known) < MAX_NAMES or count:
                self._known[place] = count + 1
            return count >= USUAL, None
        function, arguments = running
        function.compilations += 1
        before, function.signature = function.signature, self._describe(arguments)
        if function.compilations == 1:
            return False, None
        return True, difference(before, function.signature) or (NEW if function.made > 1 else SAME)

    def forked(self) -> None:
        """Forget what runs in the parent."""
        self.running, self._early = None, []
        self._before.clear()


def difference(before: dict[str, str], now: dict[str, str]) -> str:
    """Return which arguments changed, as text."""
    changed = [
        f"{place}: {before[place]} → {now[place]}" for place in now if place in before and before[place] != now[place]
    ]
    other = [f"{place} is new" for place in now if place not in before] + [
        f"{place} is gone" for place in before if place not in now
    ]
    return ", ".join((changed + other)[:5])[:MAX_TEXT]
