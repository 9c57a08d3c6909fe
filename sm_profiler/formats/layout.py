"""Names of the files and folders in a `profiler-output/`: paths for writers, parsed names for readers.

Every path is relative to that folder and has forward slashes. Hours and minutes are UTC. Names come from other people's
folders and buckets: numbers have bounded lengths, and a name that does not match is no profiler data.
"""

from __future__ import annotations

import re
import time
from sys import intern

import attrs

OUTPUT = "profiler-output"
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
EXIT_FOLDER = f"{IGNORED_FOLDER}/exits"  # `<source>_<pid>_<time>`: the record of a process, a line end, and its exit code as a byte

# `<source>_<pid>_<signal>`: the record of a process, and a line end; once that signal has ended it, its stack at the signal.
STOP_FOLDER = f"{IGNORED_FOLDER}/stops"
LOADING_FOLDER = f"{IGNORED_FOLDER}/loading"  # the same of a process that has recorded nothing yet

PYTHON_TIMELINE = "pythontimeline"
MODEL_TIMELINE = "model_timeline"
HOROVOD_TIMELINE = "horovod_timeline"
SMDATAPARALLEL_TIMELINE = "smdataparallel_timeline"
DETAILED_TRACE = "trace"
DETAILED_TRACE_SUFFIX = ".trace.json.gz"
XPLANE_SUFFIX = ".xplane.pb"  # traces of TensorFlow's and JAX's profilers
METADATA_SUFFIX = ".metadata"

PYTHON_STATS = "python_stats"
PYTHON_STATS_NAMES = (PYTHON_STATS, f"{PYTHON_STATS}.json", f"{PYTHON_STATS}.html")
MODES = ("train", "eval", "predict", "global", "prestepzero", "posthookclose")
PHASES = ("start", "stepstart", "forwardpassend", "stepend", "end")
NO_STEP = "*"

_WHOLE = r"[0-9]{1,18}"
_NUMBER = rf"{_WHOLE}(?:\.[0-9]{{1,18}})?"
_SYSTEM_FILE = re.compile(r"system/(?:[^/]+/)*(?P<minute>[0-9]{1,11})\.(?P<node>algo-[0-9]{1,9})\.json")
_TRACE_FILE = re.compile(
    rf"framework/(?:[^/]+/)*pevents/(?:[^/]+/)*(?P<end>{_WHOLE})_(?P<source>[^/_]+)(?:_[^/]*?)??_?"
    r"(?P<kind>pythontimeline|model_timeline|horovod_timeline|smdataparallel_timeline|[^/_]+)\.json",
)
_DETAILED_FILE = re.compile(
    rf"framework/(?P<framework>[^/]+)/{DETAILED}/(?P<folder>(?P<hour>[0-9]{{10}})/(?P<step>{_WHOLE}))/(?P<rest>.*\.trace\.json(?:\.gz)?)",
)
_METADATA_FILE = re.compile(
    rf"framework/(?P<framework>[^/]+)/{DETAILED}/(?P<folder>[^/]+/{_WHOLE})/(?:.*/)?"
    rf"(?P<source>[^/]+)_(?P<start>{_NUMBER})_(?P<end>{_NUMBER})\.metadata",
)
_STATS_FILE = re.compile(
    r"framework/(?P<framework>[^/]+)/(?P<profiler>cprofile|pyinstrument)/(?P<node>[^/]+)/(?P<window>[^/]+)/"
    r"(?P<name>python_stats(?:\.json|\.html)?)",
    re.IGNORECASE,
)
_OLD_STATS_FILE = re.compile(
    r"framework/(?P<framework>[^/]+)/(?P<profiler>cprofile|pyinstrument)/"
    rf"(?P<start>{_NUMBER})_(?P<end>{_NUMBER})_(?P<node>[^/_]+)_(?P<step>-?{_WHOLE})/"
    r"(?P<name>python_stats(?:\.json|\.html)?)",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    rf"(?P<m0>[a-z]+)-(?P<s0>\*|-?{_WHOLE})-(?P<p0>[a-z]+)-(?P<t0>{_NUMBER})"
    rf"_(?P<m1>[a-z]+)-(?P<s1>\*|-?{_WHOLE})-(?P<p1>[a-z]+)-(?P<t1>{_NUMBER})",
)
_NODE_OF_SOURCE = re.compile(r"(?P<number>.*)-(?P<node>algo.*)")


def hour_folder(at_us: float) -> str:
    """Return the folder name (`YYYYMMDDHH`, UTC) of the hour of a time in microseconds since the epoch."""
    return time.strftime("%Y%m%d%H", time.gmtime(at_us // SECOND_US))


def is_ignored(path: str) -> bool:
    """Return whether a file is neither uploaded nor read: temporary, or in a `.sagemaker-ignore` folder."""
    parts = path.split("/")
    return parts[-1].endswith(TEMPORARY) or IGNORED_FOLDER in parts


def shown_node(source: str) -> str:
    """Return the readers' notation of a node and process: `algo-1-905` for `905-algo-1`; other texts unchanged."""
    match = _NODE_OF_SOURCE.fullmatch(source)
    return f"{match['node']}-{match['number']}" if match else source


def source_name(number: int | str, node: str) -> str:
    """Return the `<node>` part of a trace file's name, `<rank or pid>-algo-N`; `_`, which would end it, becomes `-`."""
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
        return f"{SYSTEM_FOLDER}/{hour_folder(self.minute_s * SECOND_US)}/{self.minute_s}.{self.node}.json"

    @property
    def at_us(self) -> int:
        """Start of its minute, microseconds since the epoch."""
        return self.minute_s * SECOND_US


@attrs.frozen
class TraceFile:
    """Trace events of one process.

    Attributes:
        end_us: end of the last event, microseconds since the epoch.
        source: the process that wrote it: `0-algo-1`, or `4711-hostname`.
        kind: pythontimeline, model_timeline, horovod_timeline, smdataparallel_timeline, or another name.
    """

    end_us: int
    source: str
    kind: str

    @property
    def path(self) -> str:
        return f"{TRACE_FOLDER}/{hour_folder(self.end_us)}/{self.end_us}_{self.source}_{self.kind}.json"

    @property
    def node(self) -> str:
        """Node and process in the readers' notation, `algo-1-0`."""
        return intern(shown_node(self.source))

    @property
    def at_us(self) -> int:
        """End of its last event, microseconds since the epoch."""
        return self.end_us


@attrs.frozen
class DetailedTrace:
    """A trace of TensorFlow's or PyTorch's own profiler.

    Attributes:
        framework: pytorch or tensorflow.
        folder: `YYYYMMDDHH/<step>`, shared with its metadata file.
        hour: `YYYYMMDDHH`.
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
    """Name of a `.metadata` file, which describes the trace in its folder; times in microseconds since the epoch."""

    path: str
    folder: str
    source: str
    start_us: int
    end_us: int


@attrs.frozen
class StatsWindow:
    """The two points of a training run between which Python was profiled.

    Attributes:
        start_mode, end_mode: train, eval, predict, global, prestepzero or posthookclose.
        start_step, end_step: a step number; None before and after the loop.
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
        points = (
            (self.start_mode, self.start_step, self.start_phase, self.start_us),
            (self.end_mode, self.end_step, self.end_phase, self.end_us),
        )
        return "_".join(f"{mode}-{NO_STEP if step is None else step}-{phase}-{at}" for mode, step, phase, at in points)


@attrs.frozen
class PythonStats:
    path: str
    framework: str
    profiler: str
    node: str
    window: StatsWindow
    name: str


def parse_window(folder: str) -> StatsWindow | None:
    """Parse the folder name of a window; None if it is something else."""
    match = _WINDOW.fullmatch(folder)
    if not match or not {match["m0"], match["m1"]} <= set(MODES) or not {match["p0"], match["p1"]} <= set(PHASES):
        return None
    steps = [None if match[key] == NO_STEP else int(match[key]) for key in ("s0", "s1")]
    times = [int(float(match[key])) if "." in match[key] else int(match[key]) for key in ("t0", "t1")]
    return StatsWindow(match["m0"], steps[0], match["p0"], times[0], match["m1"], steps[1], match["p1"], times[1])


def stats_path(framework: str, profiler: str, node: str, window: StatsWindow, name: str = PYTHON_STATS) -> str:
    return f"{FRAMEWORK}/{framework}/{profiler}/{node}/{window.folder}/{name}"


def detailed_folder(framework: str, start_us: int, step: int) -> str:
    """Return the folder of a detailed profile (and of its metadata file) that began at `start_us` with step `step`."""
    return f"{FRAMEWORK}/{framework}/{DETAILED}/{hour_folder(start_us)}/{step:09d}"


def metadata_path(framework: str, source: str, start_us: int, end_us: int, step: int) -> str:
    """Return the path of a detailed profile's metadata file, which is empty: its name is its content."""
    folder = detailed_folder(framework, start_us, step)
    return f"{folder}/{source.replace('_', '-')}_{start_us}_{end_us}{METADATA_SUFFIX}"


Parsed = SystemFile | TraceFile | DetailedTrace | TraceMetadata | PythonStats


def parse_path(path: str) -> Parsed | None:
    """Parse the path of a file; None if it is no profiler data, or ignored."""
    if is_ignored(path) or not _is_text(path):
        return None
    if path.startswith(SYSTEM + "/"):
        match = _SYSTEM_FILE.fullmatch(path)
        return SystemFile(intern(match["node"]), int(match["minute"])) if match else None
    if match := _TRACE_FILE.fullmatch(path):
        return TraceFile(int(match["end"]), intern(match["source"]), intern(match["kind"]))
    return _parse_detailed(path) or _parse_stats(path)


def _is_text(path: str) -> bool:
    """Return whether a name is text; bytes of a local name that are not UTF-8 become surrogates, which are not."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        # Jobs of 2020 profiled whole steps; what came before the first one has number -1.
        mode, number = ("train", step) if step >= 0 else ("prestepzero", None)
        window = StatsWindow(mode, number, "start", times[0], mode, number, "end", times[1])
        return PythonStats(path, match["framework"], match["profiler"].lower(), match["node"], window, match["name"])
    if (match := _STATS_FILE.fullmatch(path)) and (parsed := parse_window(match["window"])):
        return PythonStats(path, match["framework"], match["profiler"].lower(), match["node"], parsed, match["name"])
    return None
