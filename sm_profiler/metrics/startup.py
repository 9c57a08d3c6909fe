"""Break the time until training runs at full speed down into its parts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.process_end import END_STEP, END_US
from sm_profiler.formats.recorded import Compile, Save
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.attempts import MAX_SECONDS, MIN_SECONDS, TRAINING, ended_attempts, transitions
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.step_fold import TRAIN

LONGEST_S = 400 * 86400.0  # of a job; the service allows 28 days


@attrs.frozen
class Repeated:
    """Training since the last checkpoint before each interruption, which the next attempt does again."""

    steps: int
    seconds: float


def repeated_work(metrics: JobMetrics) -> Repeated | None:
    """Return what was done again, of the process that did most; None without interruptions or recorded checkpoints.

    A checkpoint of any process counts for all: usually the first rank saves for the others.
    """
    saves = metrics.recorded(Save)
    if not saves.longest or saves.count != len(saves.longest):  # the last ones might be missing
        return None
    found = [one for rank in metrics.ranks if (one := _of_rank(rank, saves.longest)) is not None]
    return max(found, key=lambda one: one.seconds, default=None)


def _of_rank(rank: Rank, saves: tuple[Record[Save], ...]) -> Repeated | None:
    rows = rank.steps
    steps, seconds, known, begin = 0, 0.0, False, 0
    for at in np.searchsorted(rows.start, rank.attempts.restarts).tolist():
        ended = float(rows.end[at - 1]) / 1e6
        saved = max((one.end for one in saves if one.end <= ended), default=None)
        of_attempt, begin = slice(begin, at), at
        if saved is None:
            continue
        known = True
        since = max(saved, float(rows.start[of_attempt.start]) / 1e6)
        again = (rows.start[of_attempt] / 1e6 >= since) & (rows.mode[of_attempt] == TRAIN)
        count = int(again.sum())
        if rank.judged is not None and len(again):  # these rows are a sample of all steps
            count = round(count * rank.all_steps / max(len(rows), 1))
        steps, seconds = steps + count, seconds + max(ended - since, 0.0)
    return Repeated(steps, seconds) if known else None


@attrs.frozen
class Billed:
    """Seconds of training, and how many of them are billed; spot instances bill a part of the training time."""

    spot: bool
    training_s: float
    billable_s: float


def billed_time(description: Mapping[str, Any]) -> Billed | None:
    """Return the bill of a job that ended; None if its description has none."""
    training, billable = (job_seconds(description.get(f"{kind}TimeInSeconds")) for kind in ("Training", "Billable"))
    if training is None or billable is None:
        return None
    return Billed(description.get("EnableManagedSpotTraining") is True, training, billable)


def job_seconds(value: object) -> float | None:
    """Return a time that a job can take, in seconds; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and 0 <= value <= LONGEST_S else None  # type: ignore[operator, arg-type]


def unstored_attempts(metrics: JobMetrics) -> str:
    """Return why attempts have no steps, as a part of a sentence; "" if all have some."""
    starts = [start for start, _ in ended_attempts(metrics.description)]
    ended = [one[END_US] for one in metrics.metadata if one.get(END_STEP) == 0 and isinstance(one.get(END_US), int)]
    early = {bisect_right(starts, at_us / 1e6) for at_us in ended}  # number of the attempt
    missing = metrics.attempts_without_steps
    stopped, lost = [one for one in missing if one in early], [one for one in missing if one not in early]
    found = []
    if stopped:
        found.append(f"{_attempts(stopped)} stopped before {'its' if len(stopped) == 1 else 'their'} first step")
    if lost:
        found.append(f"steps of {_attempts(lost)} are not stored")
    return "; ".join(found)


def _attempts(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"attempts {', '.join(others)} and {last}" if others else f"attempt {last}"


# Secondary status of a training job → part of the start; only what follows the instance's own start is paid.
_STATES = {
    "Starting": "instance",
    "Pending": "instance",
    "LaunchingMLInstances": "instance",
    "PreparingTrainingStack": "instance",
    "DownloadingTrainingImage": "image",
    "Downloading": "download",
}
UNPAID = frozenset({"instance"})
IMPORTS, BUILDING, COMPILING = "imports", "building", "compile"
INSIDE_LOOP = frozenset({COMPILING, "first_steps"})
LABELS = {
    "instance": "waiting for the instance",
    "image": "pulling the image",
    "download": "downloading the data",
    "install": "starting the container and installing packages",
    IMPORTS: "starting Python and importing packages",
    BUILDING: "building model and dataset before the first step",
    COMPILING: "compiling in the first steps",
    "first_steps": "the slow first steps",
}


@attrs.frozen
class StartPart:
    """A part of the start of a job, in time order; `paid` is False before the instance is ready."""

    key: str
    seconds: float

    @property
    def label(self) -> str:
        """Name for a sentence."""
        return LABELS[self.key]

    @property
    def paid(self) -> bool:
        """True if the instance runs already."""
        return self.key not in UNPAID


def start_parts(metrics: JobMetrics) -> tuple[StartPart, ...]:
    """Return the parts of a job's start that are known, in time order."""
    found = dict.fromkeys(LABELS, 0.0)
    for key, start, end in _transitions(metrics.description):
        if key in found and end is not None:
            found[key] += max(end - start, 0.0)
    found |= _of_process(metrics)
    found |= _of_first_steps(metrics)
    return tuple(StartPart(key, seconds) for key, seconds in found.items() if seconds > 0)


@attrs.frozen
class JobPart:
    """A part of the whole job, for its bar.

    Attributes:
        label: name.
        seconds: its length.
        colour: a key of `render.charts.COLOURS`.
        letter: its letter in a terminal without colours.
    """

    label: str
    seconds: float
    colour: str
    letter: str


_BARS = {  # part of the start → colour and letter; no part of the loop has one of these colours
    "image": ("slate", "I"), "download": ("pine", "D"), "install": ("steel", "P"), "imports": ("bronze", "M"),
    "building": ("plum", "B"), COMPILING: ("olive", "C"), "first_steps": ("sand", "S"),
}  # fmt: skip


def job_parts(metrics: JobMetrics) -> list[JobPart]:
    """Return the paid parts of a job in time order: its start, its loop, and what follows; none without a loop."""
    if metrics.loop is None:
        return []
    start, end = metrics.loop
    found = [part for part in start_parts(metrics) if part.paid]
    before = [part for part in found if part.key not in INSIDE_LOOP]
    inside = [part for part in found if part.key in INSIDE_LOOP]
    known = [JobPart("Before the first step", metrics.initialization or 0.0, "plum", "B")]
    return [
        *map(_bar, before),
        *(known if all(part.key != "building" for part in before) else ()),
        *map(_bar, inside),
        JobPart("Training loop", max(end - start - sum(part.seconds for part in inside), 0.0), "navy", "L"),
        JobPart("After the loop", max(metrics.end - end, 0.0), "stone", "."),
    ]


def _bar(part: StartPart) -> JobPart:
    return JobPart(f"{part.label[:1].upper()}{part.label[1:]}", part.seconds, *_BARS[part.key])


def before_profile(metrics: JobMetrics) -> tuple[float, float]:
    """Return the paid seconds before the profile begins, and how many of them start Python and import the framework."""
    parts = {part.key: part.seconds for part in start_parts(metrics)}
    moments = _moments(metrics)
    if moments is None:
        return parts.get("image", 0.0) + parts.get("download", 0.0), 0.0
    begun, process, _ = moments
    imports = max(metrics.start - process, 0.0) if process is not None else 0.0
    known = [moment for moment in (begun, process) if moment is not None]
    earlier = max(metrics.start - min(known), 0.0) if known else 0.0
    return parts.get("image", 0.0) + parts.get("download", 0.0) + earlier, imports


def in_first_steps(parts: Sequence[StartPart]) -> float:
    """Return the seconds by which the first steps exceed usual ones."""
    return sum(part.seconds for part in parts if part.key in INSIDE_LOOP)


def largest(parts: Sequence[StartPart]) -> StartPart | None:
    """Return the largest paid part."""
    return max((part for part in parts if part.paid), key=lambda part: part.seconds, default=None)


def _transitions(description: Mapping[str, Any]) -> list[tuple[str, float, float | None]]:
    """Return part, start and end of the job's secondary states."""
    parts = {TRAINING: "training", **_STATES}
    return [
        (parts[one.status], one.start, one.end)
        for one in transitions(description)
        if one.status in parts and one.start is not None
    ]


def _micros(value: object) -> float | None:
    return (
        float(value) / 1e6
        if isinstance(value, (int, float)) and MIN_SECONDS * 1e6 < value < MAX_SECONDS * 1e6
        else None
    )


def _moments(metrics: JobMetrics) -> tuple[float | None, float | None, float] | None:
    """Return when the container and the first process started, and when it had imported the framework."""
    loaded = [(at, one) for one in metrics.metadata if (at := _micros(one.get("loaded_us"))) is not None]
    if metrics.loop is None or not loaded:
        return None
    ready, record = min(loaded, key=lambda pair: pair[0])  # a restarted process would count its own start
    if ready > metrics.loop[0]:
        return None
    process = _micros(record.get("process_us"))
    if process is None or process > ready:
        return None, None, ready
    training = [start for key, start, _ in _transitions(metrics.description) if key == "training"]
    begun = min(training) if training else _micros(record.get("container_us"))
    return (begun if begun is not None and begun < process else None), process, ready


def _of_process(metrics: JobMetrics) -> dict[str, float]:
    """Return the parts between the start of the container and the loop, by the first process that was ready."""
    moments = _moments(metrics)
    if moments is None or metrics.loop is None:
        return {}
    begun, process, ready = moments
    building = metrics.loop[0] - ready
    further = min(importing(metrics), building)  # further packages, after the framework
    found = {"building": building - further, "imports": further}
    if process is not None:
        found["imports"] += ready - process
        if begun is not None:
            found["install"] = process - begun
    return found


def importing(metrics: JobMetrics) -> float:
    """Return the seconds of imports between the framework's and the loop, by samples; the most of all processes."""
    spent: dict[str, float] = {}
    for one in metrics.samples.stacks:
        if one.phase == "start" and one.leaf == "import":
            spent[one.process] = spent.get(one.process, 0.0) + one.seconds
    return max(spent.values(), default=0.0)


def _of_first_steps(metrics: JobMetrics) -> dict[str, float]:
    """Return by how much the first steps exceed usual ones, and how much of that was compilation."""
    if not metrics.ranks:
        return {}
    rank = max(metrics.ranks, key=_first_steps)
    spent = _first_steps(rank)
    if spent <= 0:
        return {}
    until = rank.start + spent
    compiling = sum(one.seconds for one in metrics.recorded(Compile).of(rank.name) if one.start <= until)
    compiling = min(compiling, spent)
    return {COMPILING: compiling, "first_steps": spent - compiling}


def _first_steps(rank: Rank) -> float:
    """Return the seconds that the first training steps of a process take beyond usual ones."""
    count = int(thresholds.WARM_UP_STEPS)
    if len(rank.iterations) < thresholds.MIN_STEPS or not rank.train[:count].all():
        return 0.0
    usual = float(np.median(rank.iterations.length))
    return max(float(rank.steps.end[count - 1]) / 1e6 - rank.start - count * usual, 0.0)
