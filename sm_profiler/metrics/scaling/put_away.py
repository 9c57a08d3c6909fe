"""States of merged slices that wait for the next ones: in a temporary file, as memory is for the rows."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import IO, Any

from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.scaling.part import rule_state
from sm_profiler.rules.engine import Slice
from sm_profiler.rules.stored import Stored


class _File:
    """A file without a name, which is closed once nothing is left to load from it."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="sm-profiler-")  # noqa: SIM115 - see above
        weakref.finalize(self, self.file.close)

    def put(self, part: Any, state: dict[str, Any]) -> Stored:
        """Write the state of a rule or fold, and return what loads it."""
        at = codec.write(state, self.file)
        self.file.flush()
        empty = copy(part)
        for name in state:
            delattr(empty, name)
        return Stored(partial(self._load, empty, at))

    def _load(self, empty: Any, at: int) -> Any:
        part = copy(empty)
        vars(part).update(codec.read(self.file, at))
        return part


def put_away(state: Slice) -> Callable[[], Slice]:
    """Store a state in a file without a name; return a function that returns it, to be loaded part by part.

    Rules and folds are merged, written and loaded one after another, so that only one of them is in memory twice. What
    cannot be written stays in memory.
    """
    try:
        file = _File()
        report = state.load(0)
        for name in report.rules:
            report.rules[name] = file.put(report.rule(name), rule_state(report.rules[name]))
        for index in range(1, len(state.folds)):
            state.folds[index] = file.put(state.load(index), dict(vars(state.folds[index])))
    except (OSError, TypeError):
        state.loaded()
    return lambda: state
