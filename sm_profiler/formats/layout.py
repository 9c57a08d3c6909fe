"""Names of files and folders under a `profiler-output/`: where writers put a file, and what a reader learns from a name.

Every path here is relative to that folder and has forward slashes.  Hours and minutes are UTC.
"""

from __future__ import annotations

import re
import time

import attrs

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US

SYSTEM = "system"
SYSTEM_FOLDER = "system/incremental"
FRAMEWORK = "framework"
TRACE_FOLDER = "framework/pevents"
DETAILED = "detailed_profiling"
END_MARKER = "training_job_end.ts"
END_MARKERS = (f"{SYSTEM}/{END_MARKER}", f"{FRAMEWORK}/{END_MARKER}")
TEMPORARY = ".tmp"
IGNORED_FOLDER = ".sagemaker-ignore"

PYTHON_TIMELINE = "pythontimeline"
MODEL_TIMELINE = "model_timeline"
HOROVOD_TIMELINE = "horovod_timeline"
SMDATAPARALLEL_TIMELINE = "smdataparallel_timeline"
DETAILED_TRACE = "trace"
DETAILED_TRACE_SUFFIX = ".trace.json.gz"
METADATA_SUFFIX = ".metadata"

PYTHON_STATS = "python_stats"
PYTHON_STATS_NAMES = (PYTHON_STATS, f"{PYTHON_STATS}.json", f"{PYTHON_STATS}.html")
MODES = ("train", "eval", "predict", "global", "prestepzero", "posthookclose")
PHASES = ("start", "stepstart", "forwardpassend", "stepend", "end")
NO_STEP = "*"

_SYSTEM_FILE = re.compile(r"system/(?:[^/]+/)*(?P<minute>\d{1,11})\.(?P<node>algo-\d+)\.json")
_TRACE_FILE = re.compile(
    r"framework/(?:[^/]+/)*pevents/(?:[^/]+/)*(?P<end>\d{1,18})_(?P<source>[^/_]+)(?:_[^/]*?)??_?"
    r"(?P<kind>pythontimeline|model_timeline|horovod_timeline|smdataparallel_timeline|[^/_]+)\.json",
)
_DETAILED_FILE = re.compile(
    rf"framework/(?P<framework>[^/]+)/{DETAILED}/(?P<folder>(?P<hour>[^/]+)/(?P<step>\d+))/(?P<rest>.*\.trace\.json(?:\.gz)?)",
)
_METADATA_FILE = re.compile(
    rf"framework/(?P<framework>[^/]+)/{DETAILED}/(?P<folder>[^/]+/\d+)/(?:.*/)?"
    r"(?P<source>[^/]+)_(?P<start>\d+(?:\.\d+)?)_(?P<end>\d+(?:\.\d+)?)\.metadata",
)
_STATS_FILE = re.compile(
    r"framework/(?P<framework>[^/]+)/(?P<profiler>cprofile|pyinstrument)/(?P<node>[^/]+)/(?P<window>[^/]+)/"
    r"(?P<name>python_stats(?:\.json|\.html)?)",
    re.IGNORECASE,
)
_OLD_STATS_FILE = re.compile(
    r"framework/(?P<framework>[^/]+)/(?P<profiler>cprofile|pyinstrument)/"
    r"(?P<start>\d+(?:\.\d+)?)_(?P<end>\d+(?:\.\d+)?)_(?P<node>[^/_]+)_(?P<step>-?\d+)/"
    r"(?P<name>python_stats(?:\.json|\.html)?)",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?P<m0>[a-z]+)-(?P<s0>\*|-?\d+)-(?P<p0>[a-z]+)-(?P<t0>\d+(?:\.\d+)?)"
    r"_(?P<m1>[a-z]+)-(?P<s1>\*|-?\d+)-(?P<p1>[a-z]+)-(?P<t1>\d+(?:\.\d+)?)",
)
_NODE_OF_SOURCE = re.compile(r"(?P<number>.*)-(?P<node>algo.*)")


def hour_folder(at_us: float) -> str:
    """The name of the folder of an hour, `YYYYMMDDHH` in UTC, for a time in microseconds since the epoch."""
    return time.strftime("%Y%m%d%H", time.gmtime(at_us // SECOND_US))


def is_ignored(path: str) -> bool:
    """Whether a file stays behind: neither uploaded nor read."""
    parts = path.split("/")
    return parts[-1].endswith(TEMPORARY) or IGNORED_FOLDER in parts


def shown_node(source: str) -> str:
    """`905-algo-1` as readers show it, `algo-1-905`; any other text as it is."""
    match = _NODE_OF_SOURCE.fullmatch(source)
    return f"{match['node']}-{match['number']}" if match else source


def source_name(number: int | str, node: str) -> str:
    """The `<node>` part of a trace file's name, `<rank or pid>-algo-N`; `_` would end it and becomes `-`."""
    return f"{number}-{node}".replace("_", "-").replace("/", "-")


@attrs.frozen
class SystemFile:
    """The system metrics of one node and minute.

    Attributes:
        node: `algo-1`.
        minute_s: start of the minute in seconds since the epoch.
    """

    node: str
    minute_s: int

    @property
    def path(self) -> str:
        """Where it stands."""
        return f"{SYSTEM_FOLDER}/{hour_folder(self.minute_s * SECOND_US)}/{self.minute_s}.{self.node}.json"

    @property
    def at_us(self) -> int:
        """The time it is filed under, in microseconds since the epoch: the start of its minute."""
        return self.minute_s * SECOND_US


@attrs.frozen
class TraceFile:
    """Trace events of one process.

    Attributes:
        end_us: end of the last event, microseconds since the epoch.
        source: who wrote it as the name has it: `0-algo-1`, or `4711-hostname`.
        kind: pythontimeline, model_timeline, horovod_timeline, smdataparallel_timeline, or another name.
    """

    end_us: int
    source: str
    kind: str

    @property
    def path(self) -> str:
        """Where it stands."""
        return f"{TRACE_FOLDER}/{hour_folder(self.end_us)}/{self.end_us}_{self.source}_{self.kind}.json"

    @property
    def node(self) -> str:
        """`algo-1-0`: node and process as readers show them."""
        return shown_node(self.source)

    @property
    def at_us(self) -> int:
        """The time it is filed under, in microseconds since the epoch: the end of its last event."""
        return self.end_us


@attrs.frozen
class DetailedTrace:
    """A trace of TensorFlow's or PyTorch's own profiler.

    Attributes:
        path: where it stands.
        framework: pytorch or tensorflow.
        folder: `YYYYMMDDHH/<step>`, which its metadata file shares.
        hour: `YYYYMMDDHH`, as the folder says.
        step: the step at which the profiler was started.
        host: the file's name up to its first dot.
    """

    path: str
    framework: str
    folder: str
    hour: str
    step: int
    host: str


@attrs.frozen
class TraceMetadata:
    """What the name of a `.metadata` file says about the trace beside it; times in microseconds since the epoch."""

    path: str
    folder: str
    source: str
    start_us: int
    end_us: int


@attrs.frozen
class StatsWindow:
    """Between which two points of a training run Python was profiled.

    Attributes:
        start_mode, end_mode: train, eval, predict, global, prestepzero or posthookclose.
        start_step, end_step: a step number, or None before the loop and after it.
        start_phase, end_phase: start, stepstart, forwardpassend, stepend or end.
        start_us, end_us: microseconds since the epoch.
    """

    start_mode: str
    start_step: int | None
    start_phase: str
    start_us: int
    end_mode: str
    end_step: int | None
    end_phase: str
    end_us: int

    @property
    def folder(self) -> str:
        """The name of the window's folder."""
        points = (
            (self.start_mode, self.start_step, self.start_phase, self.start_us),
            (self.end_mode, self.end_step, self.end_phase, self.end_us),
        )
        return "_".join(f"{mode}-{NO_STEP if step is None else step}-{phase}-{at}" for mode, step, phase, at in points)


@attrs.frozen
class PythonStats:
    """A file of Python statistics."""

    path: str
    framework: str
    profiler: str
    node: str
    window: StatsWindow
    name: str


def parse_window(folder: str) -> StatsWindow | None:
    """The window that a folder's name tells, or None for a name that is none."""
    match = _WINDOW.fullmatch(folder)
    if not match or not {match["m0"], match["m1"]} <= set(MODES) or not {match["p0"], match["p1"]} <= set(PHASES):
        return None
    steps = [None if match[key] == NO_STEP else int(match[key]) for key in ("s0", "s1")]
    times = [int(float(match[key])) if "." in match[key] else int(match[key]) for key in ("t0", "t1")]
    return StatsWindow(match["m0"], steps[0], match["p0"], times[0], match["m1"], steps[1], match["p1"], times[1])


def stats_path(framework: str, profiler: str, node: str, window: StatsWindow, name: str = PYTHON_STATS) -> str:
    """Where the statistics of a window stand."""
    return f"{FRAMEWORK}/{framework}/{profiler}/{node}/{window.folder}/{name}"


def detailed_folder(framework: str, start_us: int, step: int) -> str:
    """Where a detailed profile that began at `start_us` with step `step` stands, and its metadata file with it."""
    return f"{FRAMEWORK}/{framework}/{DETAILED}/{hour_folder(start_us)}/{step:09d}"


def metadata_path(framework: str, source: str, start_us: int, end_us: int, step: int) -> str:
    """Where the metadata file of a detailed profile stands; its name is all that it says."""
    folder = detailed_folder(framework, start_us, step)
    return f"{folder}/{source.replace('_', '-')}_{start_us}_{end_us}{METADATA_SUFFIX}"


Parsed = SystemFile | TraceFile | DetailedTrace | TraceMetadata | PythonStats


def parse_path(path: str) -> Parsed | None:
    """What a file's path tells; None for a file that is no profiler data, or stays behind."""
    if is_ignored(path):
        return None
    if path.startswith(SYSTEM + "/"):
        match = _SYSTEM_FILE.fullmatch(path)
        return SystemFile(match["node"], int(match["minute"])) if match else None
    if match := _TRACE_FILE.fullmatch(path):
        return TraceFile(int(match["end"]), match["source"], match["kind"])
    return _parse_detailed(path) or _parse_stats(path)


def _parse_detailed(path: str) -> DetailedTrace | TraceMetadata | None:
    if match := _DETAILED_FILE.fullmatch(path):
        host = match["rest"].rpartition("/")[2].partition(".")[0]
        return DetailedTrace(path, match["framework"], match["folder"], match["hour"], int(match["step"]), host)
    if match := _METADATA_FILE.fullmatch(path):
        start, end = int(float(match["start"])), int(float(match["end"]))
        return TraceMetadata(path, match["folder"], match["source"], start, end)
    return None


def _parse_stats(path: str) -> PythonStats | None:
    if match := _OLD_STATS_FILE.fullmatch(path):
        step, times = int(match["step"]), (int(float(match["start"])), int(float(match["end"])))
        # Jobs of 2020 profiled whole steps, and before the first one under number -1.
        mode, number = ("train", step) if step >= 0 else ("prestepzero", None)
        window = StatsWindow(mode, number, "start", times[0], mode, number, "end", times[1])
        return PythonStats(path, match["framework"], match["profiler"].lower(), match["node"], window, match["name"])
    if (match := _STATS_FILE.fullmatch(path)) and (parsed := parse_window(match["window"])):
        return PythonStats(path, match["framework"], match["profiler"].lower(), match["node"], parsed, match["name"])
    return None
