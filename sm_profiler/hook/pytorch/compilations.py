"""Compilations of torch.compile: when each ran, what was compiled again and why, and where graphs break."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.recorded import Compile
from sm_profiler.hook.caller import user_line
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.steps import Record

MAX_BREAKS = 50  # events about graph breaks in all; the same few recur
MAX_TEXT = 300  # characters of a reason


class Compilations(Collector):
    """Records compilations from torch's callbacks; the details come from torch's own metrics, on the recorder's thread."""

    name = "compilations"

    def __init__(
        self, append: Callable[[Record], None], step: Callable[[], int], clock: Callable[[], int] = perf_counter_ns
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
        self._line = user_line()

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
