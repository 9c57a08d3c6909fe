"""Statistics of Python profilers: their windows, and their contents."""

from __future__ import annotations

import errno
import json
import pstats
from enum import Enum, IntEnum
from typing import Any

import attrs
import pandas as pd

from sm_profiler.descriptors import read_regular
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.cprofile_reader import (
    MAX_BYTES,
    DamagedStatisticsError,
    Statistics,
    read_statistics,
)
from sm_profiler.printable import printable

CPROFILE, PYINSTRUMENT = "cprofile", "pyinstrument"
MAX_SESSION_BYTES = 32 << 20  # JSON takes twenty times its size in memory


class PythonProfileModes(IntEnum):
    """Mode of the training script when a profiler started or stopped."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
    PRE_STEP_ZERO = 5
    POST_HOOK_CLOSE = 6


class StepPhase(Enum):
    """Point in a step at which a profiler started or stopped."""

    START = "start"
    STEP_START = "stepstart"
    FORWARD_PASS_END = "forwardpassend"  # not a password
    STEP_END = "stepend"
    END = "end"


class PythonProfilerName(Enum):
    CPROFILE = CPROFILE
    PYINSTRUMENT = PYINSTRUMENT


class Metrics(Enum):
    """Figure that functions are sorted by."""

    TOTAL_TIME = "tottime"
    CUMULATIVE_TIME = "cumtime"
    PRIMITIVE_CALLS = "pcalls"
    TOTAL_CALLS = "ncalls"


_MODES = dict(zip(layout.MODES, PythonProfileModes, strict=True))


def str_to_python_profile_mode(mode_str: str) -> PythonProfileModes:
    """Return the mode with a name, as folders of statistics use it (`train`, `prestepzero` …).

    Raises:
        ConfigError: there is no such mode.
    """
    try:
        return _MODES[mode_str]
    except KeyError:
        raise ConfigError(f"{mode_str!r} is not a mode; use one of: {', '.join(_MODES)}") from None


def python_profile_mode_to_str(mode: PythonProfileModes) -> str:
    """Return the name of a mode, as folders of statistics use it."""
    return layout.MODES[mode - 1]


@attrs.define(repr=True)
class StepPythonProfileStats:
    """One file of statistics and its window.

    Attributes:
        profiler_name: cprofile or pyinstrument.
        framework: pytorch or tensorflow.
        node_id: the process (`0-algo-1`).
        start_mode, start_step, start_phase, start_time_since_epoch_in_micros: start of the window; step -1 is before the
            loop.
        end_mode, end_step, end_phase, end_time_since_epoch_in_micros: end of the window; step infinity is after the loop.
        stats_path: path of the file on this machine.
    """

    profiler_name: str
    framework: str
    node_id: str
    start_mode: PythonProfileModes
    start_step: int
    start_phase: StepPhase
    start_time_since_epoch_in_micros: float
    end_mode: PythonProfileModes
    end_step: float
    end_phase: StepPhase
    end_time_since_epoch_in_micros: float
    stats_path: str

    @classmethod
    def of(cls, stats: layout.PythonStats, path: str) -> StepPythonProfileStats:
        """Create from the parsed path of a file in a profile; `path` is where it can be read."""
        window = stats.window
        return cls(
            stats.profiler,
            stats.framework,
            stats.node,
            _MODES[window.start_mode],
            -1 if window.start_step is None else window.start_step,
            StepPhase(window.start_phase),
            float(window.start_us),
            _MODES[window.end_mode],
            float("inf") if window.end_step is None else window.end_step,
            StepPhase(window.end_phase),
            float(window.end_us),
            path,
        )

    def has_start_and_end_mode(self, start_mode: PythonProfileModes, end_mode: PythonProfileModes) -> bool:
        """Return True if the window starts in one mode and ends in the other."""
        return self.start_mode == start_mode and self.end_mode == end_mode

    def in_time_interval(self, start_time_since_epoch_in_micros: float, end_time_since_epoch_in_micros: float) -> bool:
        """Return True if the window overlaps a time range, both ends included."""
        begins_in_time = self.start_time_since_epoch_in_micros <= end_time_since_epoch_in_micros
        return begins_in_time and self.end_time_since_epoch_in_micros >= start_time_since_epoch_in_micros

    def in_step_interval(
        self, start_step: float, end_step: float, start_phase: StepPhase, end_phase: StepPhase
    ) -> bool:
        """Return True if the window lies between two points of the training loop.

        If the range starts later in a step than at its start, a window that starts in that step must start at the same
        phase. If the range ends at the start of a step, a window that ends in that step must end there too.
        """
        if start_step > self.start_step or end_step < self.end_step:
            return False
        late = start_phase in {StepPhase.STEP_END, StepPhase.FORWARD_PASS_END}
        if start_step == self.start_step and late and self.start_phase != start_phase:
            return False
        return not (end_step == self.end_step and end_phase is StepPhase.STEP_START and self.end_phase != end_phase)

    def has_pre_step_zero_profile_stats(self) -> bool:
        """Return True if the window starts before the training loop."""
        return self.start_phase is StepPhase.START and self.start_step < 0

    def has_post_hook_close_profile_stats(self) -> bool:
        """Return True if the window ends after the training loop."""
        is_start = self.end_mode is PythonProfileModes.PRE_STEP_ZERO  # older jobs have no step there either
        return self.end_phase is StepPhase.END and self.end_step == float("inf") and not is_start

    def has_node_id(self, node_id: str) -> bool:
        """Return True if the statistics are of this process."""
        return self.node_id == node_id


class cProfileFunctionStats:  # the known name
    """One function of cProfile's statistics.

    Attributes:
        function_name: `file:line(function)`.
        prim_calls, total_calls: number of calls, without and with recursive ones.
        total_time, cumulative_time: seconds in the function alone, and including its callees.
        callers: names of the calling functions.
    """

    def __init__(self, key: tuple[str, int, str], value: tuple[Any, ...]) -> None:
        self.function_name = function_name(key)
        self.prim_calls, self.total_calls, self.total_time, self.cumulative_time, callers = value
        self.callers = [function_name(caller) for caller in callers]

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return the figures under the column names of `cProfileStats.get_function_stats`."""
        return {
            "function name": self.function_name,
            "# of primitive calls": self.prim_calls,
            "# of total calls": self.total_calls,
            "total time": self.total_time,
            "cumulative time": self.cumulative_time,
        }


class cProfileStats:  # the known name
    """cProfile's statistics of one or more windows.

    Attributes:
        ps: the statistics as a `pstats.Stats`.
        function_stats_list: one `cProfileFunctionStats` per function.
    """

    def __init__(self, ps: pstats.Stats) -> None:
        self.ps = ps
        table: dict[Any, Any] = vars(ps)["stats"]
        self.function_stats_list = [cProfileFunctionStats(key, value) for key, value in table.items()]

    def print_top_n_functions(self, by: Metrics, n: int = 10) -> None:
        """Print the functions with the greatest values.

        Args:
            by: figure to sort by.
            n: number of functions to print.

        Raises:
            ConfigError: `by` is not a Metrics, or `n` is not an integer.
        """
        if not isinstance(by, Metrics) or not isinstance(n, int):
            raise ConfigError(f"by must be one of Metrics and n an integer, not {by!r} and {n!r}")
        self.ps.sort_stats(by.value).print_stats(n)

    def get_function_stats(self) -> pd.DataFrame:
        """Return one row per function.

        Returns:
            Columns function name, # of primitive calls, # of total calls, total time, cumulative time (both in seconds).
        """
        columns = ["function name", "# of primitive calls", "# of total calls", "total time", "cumulative time"]
        return pd.DataFrame([each.as_dict() for each in self.function_stats_list], columns=columns)


@attrs.frozen
class PyinstrumentStepStats:
    """Pyinstrument's result of one window.

    Attributes:
        html_file_path: path of its HTML page; None if there is none.
        json_stats: its session in pyinstrument's JSON format; None if there is none.
    """

    html_file_path: str | None
    json_stats: dict[str, Any] | None


def function_name(key: Any) -> str:
    """Format a function as `file:line(function)`, a built-in one as `{name}`."""
    file, line, name = key
    if (file, line) == ("~", 0):
        return f"{{{name[1:-1]}}}" if name.startswith("<") and name.endswith(">") else name
    return f"{file}:{line}({name})"


def load_cprofile(path: str) -> pstats.Stats:
    """Read a file that cProfile wrote.

    Raises:
        SourceError: the file cannot be read, is larger than 64 MB, or contains anything other than statistics.
    """
    try:
        statistics = read_statistics(read_file(path, MAX_BYTES))
    except DamagedStatisticsError as error:
        raise SourceError(f"{printable(path)} contains no statistics of cProfile: {error}") from error
    loaded: Any = _LoadedStatistics(statistics)
    return pstats.Stats(loaded) if statistics else pstats.Stats()


def load_session(path: str) -> dict[str, Any] | None:
    """Read a JSON session of Pyinstrument; None if it is not an object.

    Raises:
        SourceError: the file cannot be read, is larger than 32 MB, or is not JSON.
    """
    try:
        session = json.loads(read_file(path, MAX_SESSION_BYTES))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{printable(path)} is not a session of pyinstrument") from error
    return session if isinstance(session, dict) else None


def read_file(path: str, limit: int) -> bytes:
    """Return the contents of a regular file of limited size.

    Raises:
        SourceError: the file cannot be read or is larger than `limit` bytes.
    """
    try:
        return read_regular(path, limit)
    except OSError as error:
        reason = (
            f"is larger than {limit >> 20} MB" if error.errno == errno.EFBIG else f"cannot be read: {error.strerror}"
        )
        raise SourceError(f"{printable(path)} {reason}") from error


class _LoadedStatistics:
    """Statistics in the form that `pstats.Stats` accepts."""

    def __init__(self, stats: Statistics) -> None:
        self.stats = stats

    def create_stats(self) -> None:
        """Do nothing: the statistics are complete."""
