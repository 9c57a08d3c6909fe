"""States of merged slices that wait for the next ones: in a temporary file, as memory is for the rows."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any

from sm_profiler.report.scaling import codec
from sm_profiler.report.scaling.part import new_folds, rule_state
from sm_profiler.rules.engine import Slice, Stored


def put_away(state: Slice, parameters: Mapping[str, object]) -> Callable[[], Slice]:
    """Store a state in a file without a name; return a function that loads it, once.

    The folds are written and loaded one after another, so that only one of them is in memory twice. A state stays in
    memory if it cannot be written.
    """
    try:
        file: IO[bytes] = tempfile.TemporaryFile(prefix="sm-profiler-")  # noqa: SIM115 - closed once nothing is left to load
    except OSError:
        return lambda: state
    report = state.folds[0]
    try:
        rules = {name: codec.write(rule_state(rule), file) for name, rule in report.rules.items()}
        counted = codec.write({name: getattr(report, name) for name in ("broken", "first_met", "windows")}, file)
        places = [codec.write(dict(vars(fold)), file) for fold in state.folds[1:]]
        file.flush()
    except (OSError, TypeError):
        file.close()
        return lambda: state
    broken = state.broken

    def load() -> Slice:
        new = new_folds(parameters)
        left = len(new)

        def loaded(fold: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                file.close()
            return fold

        def rules_again() -> Any:
            for name, at in rules.items():
                vars(new[0].rules[name]).update(codec.read(file, at))
            vars(new[0]).update(codec.read(file, counted))
            return loaded(new[0])

        def fold_again(fold: Any, at: int) -> Any:
            vars(fold).update(codec.read(file, at))
            return loaded(fold)

        folds = (Stored(partial(fold_again, fold, at)) for fold, at in zip(new[1:], places, strict=True))
        return Slice([Stored(rules_again), *folds], broken)

    weakref.finalize(load, file.close)  # if the state is not needed any more
    return load
