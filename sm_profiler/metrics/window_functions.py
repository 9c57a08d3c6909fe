"""The script's functions in a recorded Python window (cProfile): lines for a finding that samples have none for."""

from __future__ import annotations

import contextlib
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import attrs

from sm_profiler.analysis.cprofile_reader import DamagedStatisticsError, Function, Statistics, read_statistics
from sm_profiler.formats import layout

CPROFILE = "cprofile"
MAX_FILES = 12  # windows have a few steps, with two files each
MAX_BYTES = 4_000_000  # of a file
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/sm_profiler/hook/", "<", "~")
MODEL = "/torch/nn/modules/module.py"  # calls forward()


@attrs.frozen
class FunctionTime:
    """A function of the script: its file, first line and name, and its seconds with the libraries that it calls."""

    file: str
    line: int
    function: str
    seconds: float


def read_functions(source: Any) -> tuple[FunctionTime, ...]:
    """Return the script's functions in the steps of the Python window, the most expensive first; none without one.

    Functions that the model's forward pass calls are left out.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
    """
    storage = getattr(source, "storage", None)
    if storage is None:
        return ()
    seconds: dict[Function, float] = defaultdict(float)
    # listed with the data: a listing of its own would cost as much as the whole job is long, for each report
    for info in _files(source.other_files):
        with contextlib.suppress(DamagedStatisticsError):
            for function, spent in own_seconds(read_statistics(storage.read(info.key))).items():
                seconds[function] += spent
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return tuple(FunctionTime(*function, spent) for function, spent in ranked if spent > 0)


def _files(files: Iterable[Any]) -> list[Any]:
    """Return the files with the statistics of training steps, the first ones."""
    found = []
    for info in files:
        parsed = layout.parse_path(info.key)
        if not isinstance(parsed, layout.PythonStats) or parsed.profiler != CPROFILE or info.size > MAX_BYTES:
            continue
        if parsed.window.start_mode == parsed.window.end_mode == "train":
            found.append((parsed.window.start_us, info))
    return [info for _, info in sorted(found, key=lambda pair: (pair[0], pair[1].key))[:MAX_FILES]]


def own_seconds(statistics: Statistics) -> dict[Function, float]:
    """Return the script's functions with their time, without that of the script's functions which they call."""
    found: dict[Function, float] = {}
    for function, (*_, cumulative, callers) in statistics.items():
        if _is_users(function) and not _is_forward(callers):
            found[function] = found.get(function, 0.0) + cumulative
    for function, (*_, callers) in statistics.items():
        if not _is_users(function):
            continue
        for caller, through in callers.items():
            if caller in found:
                found[caller] -= through[-1]
    return {function: max(spent, 0.0) for function, spent in found.items()}


def _is_users(function: Function) -> bool:
    file = function[0]
    return not any(part in file if part.startswith("/") else file.startswith(part) for part in _libraries())


def _libraries() -> tuple[str, ...]:
    return (*LIBRARIES, sysconfig.get_paths()["stdlib"] + "/")


def _is_forward(callers: Iterable[Function]) -> bool:
    callers = list(callers)
    return bool(callers) and all(caller[0].endswith(MODEL) for caller in callers)
