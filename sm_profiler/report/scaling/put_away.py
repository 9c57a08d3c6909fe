"""States of merged slices that wait for the next ones: in a temporary file, as memory is for the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from sm_profiler.report.scaling import codec
from sm_profiler.report.scaling.part import new_folds, rule_state
from sm_profiler.rules.engine import Slice


def put_away(state: Slice, parameters: Mapping[str, object]) -> Callable[[], Slice]:
    """Store a state in a file without a name; return a function that loads it, once.

    The folds are written one after another, so that only one of them is in memory twice. A state stays in memory if it
    cannot be written.
    """
    try:
        file: IO[bytes] = tempfile.TemporaryFile(prefix="sm-profiler-")  # noqa: SIM115 - `load` closes it
    except OSError:
        return lambda: state
    try:
        sizes = [file.write(codec.encode(one)) for one in _states(state)]
        file.flush()
    except (OSError, TypeError):
        file.close()
        return lambda: state

    def load() -> Slice:
        with file:
            file.seek(0)
            found = Slice(new_folds(parameters))
            report = found.folds[0]
            for owner, size in zip([*report.rules.values(), report, *found.folds[1:], found], sizes, strict=True):
                for name, value in codec.decode(file.read(size)).items():
                    setattr(owner, name, value)
        return found

    return load


def _states(state: Slice) -> Iterator[dict[str, Any]]:
    report, *folds = state.folds
    for rule in report.rules.values():
        yield rule_state(rule)
    yield {name: getattr(report, name) for name in ("broken", "first_met", "windows")}
    for fold in folds:
        yield dict(vars(fold))
    yield {"broken": state.broken}
