"""The job around its training steps: a slow start, idle time, growing memory, and trainings that stopped."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import NOT_BEGUN, Class
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.ledger import rows_of_rank
from sm_profiler.diagnosis.profile.lines import (
    FIRST_STEPS,
    IMPORT,
    MAX_LOCATIONS,
    MODULE,
    START,
    WORKER,
    in_loop,
    lines_around_the_loop,
    lines_of_samples,
)
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.profile.occurrences import lines_of_records
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.diagnosis.words import FRAGMENTS
from sm_profiler.formats.columns import Floats
from sm_profiler.formats.event_names import COMPILE, HANG, LOG, PROFILING, SAVE
from sm_profiler.formats.process_end import (
    COMPLETED,
    CRASHED,
    INTERRUPTED,
    KILLED,
    OUT_OF_MEMORY,
    RUNNING,
    bounded_line,
)
from sm_profiler.formats.recorded import Compile, Objects, ThreadEnd
from sm_profiler.formatting import duration, percent, plural, shorten, size
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.ends import UNKNOWN_SIGNAL, RankEnd
from sm_profiler.metrics.hang import DeadThread, Hang, find_hang
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.parts import Covered
from sm_profiler.metrics.sample_fold import Place, Sampled
from sm_profiler.metrics.startup import (
    BUILDING,
    COMPILING,
    IMPORTS,
    INSIDE_LOOP,
    StartPart,
    before_profile,
    importing,
    in_first_steps,
    largest,
    start_parts,
)
from sm_profiler.printable import cut, printable
from sm_profiler.settings import HANG_SECONDS

Span = tuple[float, float]


def start_allowance(metrics: JobMetrics) -> float:
    """Return the seconds before the first step that are normal.

    If the hook recorded how long importing the framework took, building a model may take as long again: both are slow on
    a slow or busy machine.
    """
    device = 2 * limits.START_S if metrics.gpus else 0.0
    if metrics.loading is None:
        return 2 * limits.START_S + device
    loading = metrics.loading + importing(metrics)  # frameworks import parts of themselves when they are first used
    return min(loading, limits.IMPORTS_S) + _model_allowance(metrics) + device


def _model_allowance(metrics: JobMetrics) -> float:
    """Return the seconds that building a model, or starting loader workers in the first steps, may take."""
    return max(min(metrics.loading or 0.0, limits.IMPORTS_S), limits.START_S)


@attrs.frozen
class Beginning:
    """The start of a job, until training runs at full speed; seconds.

    Attributes:
        parts: what is known about it, without what is not paid.
        before: until the first step.
        late: how much of that is not normal.
        first_steps: how much of what the first steps take beyond usual ones is not normal.
        allowance: what is normal before the first step.
        whole: the job.
    """

    parts: tuple[StartPart, ...]
    before: float
    late: float
    first_steps: float
    allowance: float
    whole: float

    @property
    def seconds(self) -> float:
        """Seconds of all of it."""
        return self.before + (in_first_steps(self.parts) if self.first_steps > 0 else 0.0)

    @property
    def excess(self) -> float:
        """Seconds that are not normal."""
        return self.late + self.first_steps

    @property
    def avoidable(self) -> float:
        """Seconds that the best repair saves: what is normal may vanish, too, but imports stay."""
        imports = sum(part.seconds for part in self.parts if part.key == IMPORTS)
        return max(self.seconds - imports, self.excess)


def beginning_of(metrics: JobMetrics) -> Beginning | None:
    """Return the start of a job; None if it is not known."""
    inside, whole = metrics.initialization, metrics.duration
    if inside is None or whole <= 0:
        return None
    parts = tuple(part for part in start_parts(metrics) if part.paid)
    earlier, imports = before_profile(metrics)
    before, whole, allowance = inside + earlier, whole + earlier, start_allowance(metrics) + imports
    first_steps = max(in_first_steps(parts) - _model_allowance(metrics), 0.0)
    return Beginning(parts, before, max(before - allowance, 0.0), first_steps, allowance, whole)


def start(case: Case) -> Found | None:
    """Find a long time before training runs at full speed, compared with the whole job, and name its largest part.

    Of a job that did not end by itself, the whole is not known: any job that is stopped early is mostly start.
    """
    metrics = case.metrics
    if metrics.ending.state != COMPLETED:
        return None
    found = beginning_of(metrics)
    if found is None or found.excess < limits.USUAL * found.whole:
        return None
    late, share = found.late, found.seconds / found.whole
    # what is normal is no cause
    main = largest(found.parts if late else [part for part in found.parts if part.key in INSIDE_LOOP])
    if main is not None and main.seconds < limits.MAJORITY * (found.seconds if late else found.first_steps):
        main = None
    most = ""
    if main is not None:
        what = FRAGMENTS["most_of_start" if late else "most_of_excess"]
        most = what.format(part=main.label, time=duration(main.seconds))
    evidence = (
        Evidence("job time before the first step", round(share, 4), limits.USUAL, unit="share"),
        Evidence("initialization", round(found.seconds, 2), found.allowance if late else None, unit="s"),
        *(
            Evidence(part.label, round(part.seconds, 2), unit="s")
            for part in sorted(found.parts, key=lambda part: -part.seconds)
            if part.seconds >= limits.SHOWN * found.seconds
        ),
    )
    words = {
        "ready": FRAGMENTS["full_speed" if found.first_steps > 0 else "first_step"],
        "time": duration(found.seconds),
        "share": percent(share),
        "most": most,
    }
    clear = found.excess >= limits.CLEARLY * limits.USUAL * found.whole
    return Found(
        "start", words, evidence, share, f"start_{main.key}" if main is not None else "start", of="job", error=0.0,
        doubt="" if clear else "close to what is usual", where=_lines_of_start(metrics, main),
    )  # fmt: skip


def _lines_of_start(metrics: JobMetrics, part: StartPart | None) -> tuple[Location, ...]:
    """Return the lines of a part of the start, or of all of it."""
    if part is not None and part.key == COMPILING:
        return lines_of_records(
            [one for one in metrics.recorded(Compile).longest if one.step < thresholds.WARM_UP_STEPS]
        )

    def belongs(one: Sampled) -> bool:
        if one.phase not in {START, FIRST_STEPS} or part is None:
            return one.phase in {START, FIRST_STEPS}
        if part.key in INSIDE_LOOP:
            return one.phase == FIRST_STEPS
        return one.phase == START and part.key == (IMPORTS if one.leaf == IMPORT else BUILDING)

    return lines_around_the_loop(metrics, belongs)


# --- idle -----------------------------------------------------------------------------------------------------------


def idle(case: Case) -> Found | None:
    """Find a long idle end of the job, and idle pauses between its steps."""
    metrics = case.metrics
    if metrics.loop is None or metrics.duration <= 0 or HANG in metrics.records:
        return None
    # of a training that was ended, what came after its last step may belong to its loop
    tail = 0.0 if metrics.ending.is_early else _tail(metrics, metrics.loop[1])
    pauses = idle_pauses(metrics)
    paused = sum(end - begin for begin, end in pauses)
    share = (tail + paused) / metrics.duration
    beyond = (max(tail - start_allowance(metrics), 0.0) + paused) / metrics.duration  # a usual end is in each job
    if beyond < limits.NOTICEABLE:
        return None
    where, evidence = [], [Evidence("idle time of the job", round(share, 4), limits.NOTICEABLE, unit="share")]
    if tail:
        where.append(FRAGMENTS["idle_tail"].format(time=duration(tail)))
        evidence.append(Evidence("idle after the last step", round(tail, 2), start_allowance(metrics), unit="s"))
    if pauses:
        where.append(FRAGMENTS["idle_pauses"].format(time=duration(paused), pauses=plural(len(pauses), "pause")))
        longest = max(end - begin for begin, end in pauses)
        evidence.append(Evidence("longest idle pause between steps", round(longest, 2), unit="s"))
    cores = _cores(metrics, (metrics.loop[1], metrics.end) if tail >= paused else pauses[0])
    if cores is not None:
        evidence.append(Evidence("CPU cores in use meanwhile", round(cores, 3), thresholds.HANG_CPU))
    advice = "idle_pauses" if tail < paused else "idle_running" if metrics.running else "idle_tail"
    clear = beyond >= limits.CLEARLY * limits.NOTICEABLE and cores is not None
    return Found(
        "idle", {"share": percent(share), "where": " and ".join(where)}, tuple(evidence), share, advice,
        partial(_without_pauses, case, pauses), "" if clear else "few samples of the processes cover it", 0.0,
        lines_around_the_loop(metrics, lambda one: one.phase == "end") if tail >= paused
        else lines_of_samples(metrics, lambda one: one.long and one.phase == "outside"),
        of="job",
    )  # fmt: skip


def _without_pauses(case: Case, pauses: Sequence[Span], loop: Loop) -> Saving:
    """Leave out the pauses between steps: nothing works in them."""
    found = np.zeros(len(loop.index))
    for rank in case.ranks[:1]:
        rows = rows_of_rank(rank)
        at = np.searchsorted(rows.start, [begin for begin, _ in pauses], side="right") - 1
        for row, (begin, end) in zip(at.tolist(), pauses, strict=True):
            if row >= 0:
                found += loop.placed(rows.index[row : row + 1], np.asarray([end - begin]))
    return Saving(np.minimum(found, loop.now))


def _tail(metrics: JobMetrics, last_step: float) -> float:
    """Return the seconds after the last step if nothing happens in them, beyond a usual end."""
    span = last_step, metrics.end
    length = span[1] - span[0]
    if length <= start_allowance(metrics):
        return 0.0
    used = _within(metrics, "gpu", span)
    if used is not None:
        return length if used < thresholds.SAMPLE_IDLE else 0.0
    return length if _is_idle(metrics, span) else 0.0


def idle_pauses(metrics: JobMetrics) -> list[Span]:
    """Return the long spans between two steps in which no process works."""
    rank = metrics.ranks[0]
    if len(rank.iterations) < thresholds.MIN_STEPS or rank.stalls.period is not None:
        return []
    usual = float(np.median(rank.iterations.length))
    ends = rank.steps.end[:-1] / 1e6
    starts = rank.steps.start[1:] / 1e6 - rank.steps.seconds("wait")[1:]
    gaps = starts - ends
    gaps[np.asarray(rank.attempts.breaks, np.int64) - 1] = 0.0  # downtime between attempts
    if rank.judged is not None:
        ends, starts = rank.judged.pauses
        gaps = starts - ends
    rows = np.flatnonzero(gaps > limits.PAUSE_STEPS * usual)
    rows = rows[np.argsort(-gaps[rows])][:1_000]
    spans = [(float(ends[row]), float(starts[row])) for row in rows]
    return [span for span in spans if not _is_recorded(metrics, span) and _is_idle(metrics, span)]


def _is_recorded(metrics: JobMetrics, span: Span) -> bool:
    """Return whether something is known to have happened in a span: a checkpoint, a compilation, a window."""
    found = (
        one
        for kind in (SAVE, LOG, COMPILE, PROFILING)
        if kind in metrics.records
        for one in metrics.records[kind].longest
    )
    known = sum(max(min(one.end, span[1]) - max(one.start, span[0]), 0.0) for one in found)
    return known >= limits.MAJORITY * (span[1] - span[0])


def _is_idle(metrics: JobMetrics, span: Span) -> bool:
    """Return whether neither a GPU nor a training process works in a span; False if that is not known."""
    used = _within(metrics, "gpu", span)
    if used is not None and used >= thresholds.SAMPLE_IDLE:
        return False
    cores = _cores(metrics, span)
    if cores is not None:
        return cores < thresholds.HANG_CPU
    cpu = _within(metrics, "cpu", span)
    if cpu is None:
        return False
    used_cores = cpu / 100 * max(metrics.system.cores.values(), default=1)
    return cpu < thresholds.SAMPLE_IDLE and used_cores < 2 * thresholds.HANG_CPU


def _cores(metrics: JobMetrics, span: Span) -> float | None:
    """Return the CPU cores that the busiest training process occupies in a span; None if samples cover too little of it."""
    used = [
        cores for usage in metrics.usage.values()
        if usage.covered(*span) >= limits.MAJORITY and (cores := usage.cores(*span)) is not None
    ]  # fmt: skip
    return max(used, default=None)


def _within(metrics: JobMetrics, metric: str, span: Span) -> float | None:
    """Return the mean of a system metric in a span; None without samples in it."""
    means = []
    for data in metrics.system.of(metric).values():
        inside = (data.count > 0) & (data.seconds >= span[0]) & (data.seconds <= span[1])
        if inside.any():
            means.append(float(data.total[inside].sum() / data.count[inside].sum()))
    return float(np.mean(means)) if means else None


# --- memory ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Growth:
    """A line fitted to memory over time.

    Attributes:
        start, end: memory at both ends of the line.
        slope: growth a second.
        error: standard error of the slope.
        late: slope of the second half.
    """

    start: float
    end: float
    slope: float
    error: float
    late: float

    @property
    def gained(self) -> float:
        """Growth from start to end."""
        return self.end - self.start

    @property
    def is_significant(self) -> bool:
        """True if the slope is not a chance of the samples."""
        return self.slope > limits.BEYOND_CHANCE * self.error

    @property
    def is_steady(self) -> bool:
        """True if memory grows significantly, and still does in the second half."""
        return self.is_significant and self.late >= limits.MAJORITY * self.slope


def fit_growth(seconds: Floats, values: Floats) -> Growth | None:
    """Fit a line to memory samples without the warm-up, a tenth of them; None with too few samples.

    The error takes the correlation of neighbouring residuals into account.
    """
    if not len(seconds):
        return None
    keep = seconds >= seconds[0] + thresholds.RARE * (seconds[-1] - seconds[0])
    x, y = seconds[keep] - seconds[0], values[keep]
    if len(x) <= limits.REPEATS or np.ptp(x) <= 0:
        return None
    slope, at_zero = np.polyfit(x, y, 1)
    rest = y - (slope * x + at_zero)
    spread = float((rest**2).sum())
    correlation = max(float((rest[1:] * rest[:-1]).sum() / spread), 0.0) if spread > 0 else 0.0
    repeats = (1 + correlation) / (1 - min(correlation, 1 - limits.FLOOR))  # samples that count as one
    error = float(np.sqrt(spread / (len(x) - 2) / ((x - x.mean()) ** 2).sum() * repeats))
    half = len(x) // 2
    late = float(np.polyfit(x[half:], y[half:], 1)[0]) if len(x) - half > limits.REPEATS else float(slope)
    return Growth(float(slope * x[0] + at_zero), float(slope * x[-1] + at_zero), float(slope), error, late)


def memory(case: Case) -> Found | None:
    """Find steadily growing memory of a process, a GPU or a node."""
    return _process_memory(case) or _gpu_memory(case) or _host_memory(case)


def _inside_loop(case: Case, seconds: Floats, values: Floats) -> tuple[Floats, Floats]:
    span = case.metrics.loop
    if span is None:
        return seconds, values
    rows = (seconds >= span[0]) & (seconds <= span[1])
    return seconds[rows], values[rows]


def _process_memory(case: Case) -> Found | None:
    worst: tuple[Growth, str] | None = None
    for name, (seconds, values) in case.metrics.memory.items():
        growth = fit_growth(*_inside_loop(case, *_without_compiling(case, name, seconds, values)))
        if (
            growth is None
            or not growth.is_steady
            or growth.gained < max(limits.GROWTH_BYTES, limits.NOTICEABLE * growth.start)
        ):
            continue
        if growth.late < limits.CLOSE * growth.slope and _keeps_nothing(_objects(case, name)):
            continue  # caches of libraries, which fill
        if worst is None or growth.slope > worst[0].slope:
            worst = growth, name
    if worst is None:
        return None
    growth, name = worst
    rate, speed, left = growth.slope * 60, case.metrics.steps_per_second, _exhaustion(case, growth)
    evidence = [
        Evidence("resident memory gained in the loop", round(growth.gained), limits.GROWTH_BYTES, name, "bytes")
    ]
    if speed:  # the line leaves out the warm-up, so its steps are not all of the loop
        per_step = growth.slope / speed
        evidence.append(Evidence("training steps meanwhile", round(growth.gained / per_step), None, name))
        evidence.append(Evidence("growth per step", round(per_step), None, name, "bytes"))
    evidence.append(Evidence("growth per minute", round(rate), round(growth.error * 60), name, "bytes", "±"))
    if left:
        evidence.append(Evidence("time to exhaustion", round(left), None, name, "s"))
    objects = _objects(case, name)
    evidence += _grown_objects(objects[-1], name) if objects else []
    container = (objects[-1].container or "").partition(";")[0] if objects else ""
    words = {
        "rate": size(rate),
        "error": size(growth.error * 60),
        "until": _until(case, left),
        "container": FRAGMENTS["grows_most"].format(container=container) if container else "",
        "uncounted": "" if objects else FRAGMENTS["uncounted"],
    }
    fatal = left is not None and left < limits.SHORT_RUN_S
    clear = growth.slope >= limits.CLEARLY * limits.BEYOND_CHANCE * growth.error and case.steps >= limits.STEADY_STEPS
    return _grows(
        "memory_of_process",
        words,
        evidence,
        left,
        "memory varies much" if not clear else "" if fatal else "it may be a buffer, which will be full",
        _growing_lines(objects),
    )


def _until(case: Case, left: float | None) -> str:
    """Return when memory will be full, as a part of a sentence; "" for a job that has ended."""
    return FRAGMENTS["full_in"].format(time=duration(left)) if left and case.metrics.running else ""


def _grows(
    text: str,
    words: dict[str, Any],
    evidence: Sequence[Evidence],
    left: float | None,
    doubt: str,
    where: tuple[Location, ...] = (),
) -> Found:
    """Return the finding about memory: it costs no time until the job dies, which leads only if it is about to."""
    fatal = left is not None and left < limits.SHORT_RUN_S
    share = 1.0 if fatal else limits.CLEARLY * limits.FAR
    return Found(text, words, tuple(evidence), share, doubt=doubt, where=where, certain=not doubt)


def _without_compiling(case: Case, process: str, seconds: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the memory of a process without what it gained while functions were compiled.

    Graphs and kernels are kept for each shape, not because a step keeps something. Until all is compiled for the first
    time, buffers are made as well.
    """
    records = case.metrics.recorded(Compile).of(process)
    settled = seconds >= max((one.end for one in records if one.args.again is False), default=0.0)
    seconds, values = seconds[settled], values[settled]
    if not records or not len(seconds):
        return seconds, values
    compiling = Covered.by(*(np.array([getattr(one, edge) for one in records]) for edge in ("start", "end")))
    inside = compiling.within(seconds[:-1], seconds[1:]) > 0
    gained = np.where(inside, np.minimum(np.diff(values), 0.0), np.diff(values))
    return seconds, values[0] + np.concatenate([[0.0], np.cumsum(gained)])


def _exhaustion(case: Case, growth: Growth) -> float | None:
    """Return the seconds until the node's memory is full; None if its size or use is unknown."""
    total = next((float(one["memory_total"]) for one in case.metrics.metadata if one.get("memory_total")), None)
    used = case.metrics.mean_of("memory")
    if total is None or used is None or growth.slope <= 0:
        return None
    return max(total * (1 - used / 100), 0.0) / growth.slope


def _objects(case: Case, process: str) -> list[Objects]:
    """Return what the hook counted of the objects of a process, in time order."""
    return [one.args for one in case.metrics.recorded(Objects).of(process)]


def _grown_objects(args: Objects, process: str) -> list[Evidence]:
    """Return which objects a process has more of than when its memory began to grow."""
    evidence = []
    if args.container is not None:
        evidence.append(Evidence("container that grows most", args.container, None, process))
    if args.tensor_bytes >= limits.GROWTH_BYTES:
        evidence.append(Evidence("tensors gained", args.tensor_bytes, None, process, "bytes"))
    if args.tensors_in_graphs >= limits.STEADY_STEPS:
        evidence.append(Evidence("tensors gained that keep a graph", args.tensors_in_graphs, None, process))
    gained = [f"{kind} +{count:,}" for kind, count in args.types.items() if count >= limits.STEADY_STEPS]
    if gained:
        evidence.append(Evidence("objects gained", ", ".join(gained), None, process))
    return evidence


def _keeps_nothing(objects: Sequence[Objects]) -> bool:
    """Return whether objects were counted while a process grew, and none of the script's are more than before.

    Then libraries grow: allocators, and caches of kernels for each new shape, which fill and stop.
    """
    if not objects:
        return False
    last = objects[-1]
    most = max(last.tensors_in_graphs, *last.types.values(), 0)
    return most < limits.STEADY_STEPS and last.tensor_bytes < limits.GROWTH_BYTES


def _growing_lines(objects: Sequence[Objects]) -> tuple[Location, ...]:
    """Return the lines that add to the container that grows most."""
    lines = next((one.lines for one in reversed(objects) if one.lines is not None), ())
    places = lines[:MAX_LOCATIONS]
    return tuple(
        Location(printable(file), line, printable(function), 1 / len(places)) for file, line, function in places
    )


def _gpu_memory(case: Case) -> Found | None:
    for (node, device), data in case.metrics.system.of("gpu_memory").items():
        filled = data.count > 0
        seconds, values = _inside_loop(case, data.seconds[filled], data.mean[filled])
        growth = fit_growth(seconds, values)
        if growth is None or growth.gained < limits.GPU_GROWTH or not growth.is_significant:
            continue
        if float(np.mean(values[-max(len(values) // limits.STRETCHES, 1) :])) < growth.start + limits.GPU_GROWTH:
            continue  # it was given back
        name = "GPU memory gained in the loop"
        gained = Evidence(name, round(growth.gained, 1), limits.GPU_GROWTH, f"{node} {device}", "percent")
        return _in_percent(
            case, "memory_of_gpu", f"{device} on {node}", growth, gained,
            "" if growth.gained >= limits.CLEARLY * limits.GPU_GROWTH else "memory varies much",
        )  # fmt: skip
    return None


def _host_memory(case: Case) -> Found | None:
    for (node, _), data in case.metrics.system.of("memory").items():
        filled = data.count > 0
        growth = fit_growth(*_inside_loop(case, data.seconds[filled], data.mean[filled]))
        if growth is None or not growth.is_steady or growth.gained < 100 * limits.FLOOR:
            continue
        if case.metrics.loader.num_workers <= 0 and _grown_by_others(case, node, growth):
            continue
        name = "memory gained in the loop"
        gained = Evidence(name, round(growth.gained, 1), 100 * limits.FLOOR, node, "percent")
        return _in_percent(case, "memory_of_node", node, growth, gained, "other processes of the node may grow")
    return None


def _grown_by_others(case: Case, node: str, growth: Growth) -> bool:
    """Return whether the job's processes, whose own memory is known, gained only a small part of what the node did."""
    metrics = case.metrics
    total = next((float(one["memory_total"]) for one in metrics.metadata if one.get("memory_total")), None)
    own = [
        fit_growth(*_inside_loop(case, *metrics.memory[rank.name]))
        for rank in metrics.ranks
        if rank.node == node and rank.name in metrics.memory
    ]
    if not total or not own:
        return False
    gained = 100 * sum(max(one.gained, 0.0) for one in own if one is not None) / total
    return gained < limits.MAJORITY * growth.gained


def _in_percent(case: Case, advice: str, holder: str, growth: Growth, gained: Evidence, doubt: str) -> Found:
    """Return the finding for memory measured in percent."""
    left, where = max(100 - growth.end, 0.0) / growth.slope, gained.where
    evidence = (
        gained,
        Evidence("growth per minute", round(growth.slope * 60, 3), round(growth.error * 60, 3), where, "percent", "±"),
        Evidence("time to exhaustion", round(left), None, where, "s"),
    )
    words = {"holder": holder, "rate": f"{growth.slope * 60:.2g}", "until": _until(case, left)}
    return attrs.evolve(_grows("memory_in_percent", words, evidence, left, doubt), advice=advice)


# --- trainings that stopped -----------------------------------------------------------------------------------------

MAX_ERROR = 120  # characters, of an exception
_OF_A_DEVICE = re.compile(r"CUDA|HIP|GPU|RESOURCE_EXHAUSTED|ResourceExhausted")  # in errors of allocations
ENDED = {
    CRASHED: "failed",
    KILLED: UNKNOWN_SIGNAL,
    OUT_OF_MEMORY: "was killed",
    INTERRUPTED: "was interrupted",
}  # in a sentence


def hang(case: Case) -> Found | None:
    """Find processes whose steps stopped and did not go on, or that were ended while they waited for long."""
    metrics = case.metrics
    found = find_hang(metrics)
    if found is None:
        waited = last_wait(metrics)
        return _ended_in_wait(case, waited) if waited is not None else None
    first, longest = found.first, found.first.record.args.longest
    where = [Location(*one.place, share=1.0, rank=one.name) for one in found.stopped if one.place is not None][
        :MAX_LOCATIONS
    ]
    evidence = (
        Evidence("time without a step", round(found.seconds, 1), round(longest, 1) or None, first.name, "s", "usually up to"),
        Evidence("completed training steps", first.steps, None, first.name),
        Evidence("CPU use of the process meanwhile", round(100 * first.record.args.cpu, 1), None, first.name, "percent"),
    )  # fmt: skip
    sure = first.is_sure and (not first.waits_for_ranks or found.gone or found.disagree)
    doubt = FRAGMENTS["rank_unrecorded" if first.waits_for_ranks else "threads_busy"]
    text, words = _about_hang(found)
    return Found(
        text, words, evidence, min(found.seconds / metrics.duration, 1.0) if metrics.duration > 0 else 1.0,
        _advice_of_hang(found), doubt="" if sure else doubt, where=tuple(where), of="job", certain=bool(sure),
        label=words["what"],
    )  # fmt: skip


@attrs.frozen
class LastWait:
    """A wait in which a process was when its job was ended, far longer than any of its steps.

    Attributes:
        name: the process.
        seconds: from its last step to its end.
        usual: seconds of its usual step.
        longest: seconds of its longest step.
        steps: training steps that it had completed.
        line: the line at which it waited; None if that is unknown.
        in_loop: that line is surely one of the loop.
        for_ranks: it waited in a collective.
    """

    name: str
    seconds: float
    usual: float
    longest: float
    steps: int
    line: Location | None
    in_loop: bool
    for_ranks: bool


def last_wait(metrics: JobMetrics) -> LastWait | None:
    """Return the wait in which a job was ended that did not end by itself; None if any of its ranks did something else."""
    if not metrics.ending.is_early or HANG in metrics.records:
        return None
    ends = {one.name: one for one in metrics.ending.ranks}
    waits = [_last_wait_of(metrics, rank, ends.get(rank.name)) for rank in metrics.ranks]
    found = [one for one in waits if one is not None]
    if len(found) < len(waits):
        return None
    return min(found, key=lambda one: (one.for_ranks, one.line is None, one.name), default=None)


def _last_wait_of(metrics: JobMetrics, rank: Rank, end: RankEnd | None) -> LastWait | None:
    lengths = rank.iterations.length
    if end is None or len(lengths) < limits.REPEATS:
        return None
    span = rank.end, end.at
    seconds, usual, longest = span[1] - span[0], float(np.median(lengths)), float(lengths.max())
    if seconds <= max(limits.PAUSE_STEPS * usual, limits.REPEATS * longest):
        return None
    if _is_recorded(metrics, span) or not _is_idle(metrics, span):
        return None
    stack = _last_stack(metrics, rank, span)
    line, in_loop, for_ranks = None, False, False
    if stack is not None:
        place = stack.places[-1]
        line = Location(place.file, place.line, place.function, 1.0, stack.phase, source=metrics.samples.source(place))
        in_loop, for_ranks = _is_in_loop(metrics, stack), stack.leaf.startswith("torch.distributed.")
    elif end.place:  # where a signal found it
        file, _, number = end.place.rpartition(":")
        line = Location(file, int(number), MODULE, 1.0) if number.isdecimal() else None
    return LastWait(rank.name, seconds, usual, longest, end.step, line, in_loop, for_ranks)


def _last_stack(metrics: JobMetrics, rank: Rank, span: Span) -> Sampled | None:
    """Return the stack at whose innermost line a process was for most of a span; None if samples do not show it."""
    course, least = metrics.samples.course.get(rank.name), limits.MAJORITY * (span[1] - span[0])
    if course is None:
        return None
    own = [one for one in metrics.samples.stacks if one.process == rank.name and one.places]
    seen = defaultdict[Place, float](float)
    for one in own:
        if one.phase == "end":  # nothing but the span
            seen[one.places[-1]] += one.seconds
    width = course.width / 1e6
    if not seen and width <= least:
        end = span[1] + width / 2  # the samples up to the process's end lie in a span whose middle may be later
        for phase, place, seconds, _ in course.within(span[0], end):
            if phase not in (WORKER, "gc"):
                seen[place] += seconds
    if not seen:
        return None
    place, most = max(seen.items(), key=lambda item: item[1])
    stacks = [one for one in own if one.places[-1] == place]
    if most < least or sum(one.count for one in stacks) < limits.REPEATS:
        return None
    return max(stacks, key=lambda one: one.seconds)


def _is_in_loop(metrics: JobMetrics, stack: Sampled) -> bool:
    """Return whether a stack from after the last step is one of the loop: a step had begun, or a later line was seen in it."""
    if stack.phase != "end":
        return True
    lines = [(one.file, one.function, one.line) for one in stack.places]
    for other in metrics.samples.stacks:
        if other.process != stack.process or not in_loop(other):
            continue
        seen = [(one.file, one.function, one.line) for one in other.places]
        first = next(((own, its) for own, its in zip(lines, seen, strict=False) if own != its), None)
        if first is None or (first[0][:2] == first[1][:2] and first[0] < first[1]):
            return True
    return False


def _ended_in_wait(case: Case, wait: LastWait) -> Found:
    """Return the finding about a training that was ended in the middle of a wait: it is no proof that it would never go on."""
    metrics, line = case.metrics, wait.line
    cores = _cores(metrics, (metrics.end - wait.seconds, metrics.end))
    evidence = [
        Evidence(
            "time without a step", round(wait.seconds, 1), round(wait.longest, 3), wait.name, "s", "usually up to"
        ),
        Evidence("completed training steps", wait.steps, None, wait.name),
    ]
    if cores is not None:
        evidence.append(Evidence("CPU cores in use meanwhile", round(cores, 3), thresholds.HANG_CPU))
    function = f" in {line.function}" if line is not None and line.function != MODULE else ""
    dead = max(metrics.recorded(ThreadEnd).of(wait.name), key=lambda one: one.start, default=None)
    words = {
        "ended": ENDED.get(metrics.ending.state, "was stopped"),
        "at": f"{line.file.rpartition('/')[2]}:{line.line}{function}" if line is not None else "",
        "time": duration(wait.seconds),
        "usual": duration(wait.usual),
        "after": plural(wait.steps, "training step"),
        "seconds": f"{HANG_SECONDS.default:.0f}",
        "over": "" if wait.in_loop else FRAGMENTS["loop_over"],
        "dead": "",
    }
    text = "ended_in_wait" if line is not None else "ended_without_step"
    if dead is not None:
        before = metrics.end - wait.seconds - dead.start
        thread, error, where = (bounded_line(one) for one in (dead.name, dead.args.error, dead.args.where))
        words["dead"] = _of_dead(wait.name, DeadThread(thread, error, where, before))
    return Found(
        text, words, tuple(evidence), min(wait.seconds / metrics.duration, 1.0) if metrics.duration > 0 else 1.0,
        text if dead is None else "hang_dead_thread",
        doubt="it ended before a hang was certain", error=0.0, where=(line,) if line is not None else (), of="job",
        low="" if wait.in_loop else "the loop may have been over" if line is not None else "no sample shows the line",
    )  # fmt: skip


def _about_hang(hang: Hang) -> tuple[str, dict[str, Any]]:
    first = hang.first
    others = sum(one.waits_for_ranks for one in hang.stopped if one is not first)
    lines = [f"{one.name} at {one.line}" for one in hang.stopped if one.place is not None]
    alone = first.waits_for in ("a queue", "a lock or a thread") and len(first.stacks) == 1
    words = {
        "what": NOT_BEGUN if hang.before_first_step else Class.HANG.label,
        "name": first.name,
        "time": duration(hang.seconds),
        "at": f"{first.line} in {first.place[2]}" if first.place else "an unknown line",
        "gone": (hang.gone[0] if len(hang.gone) == 1 else f"{len(hang.gone)} ranks") if hang.gone else "",
        "lines": ", ".join(lines[:MAX_LOCATIONS]),
        "waits": f", waiting for {first.waits_for}" if first.waits_for else "",
        "others": "",
        "after": _after_steps(*hang.steps),
        "dead": _dead(hang),
        "alone": FRAGMENTS["alone"].format(name=first.name) if alone else "",
        "stacks": "" if len(first.stacks) == 1 else FRAGMENTS["other_stacks"],
    }
    if others and not first.waits_for_ranks:
        words["others"] = f"; {others} other{'s wait' if others > 1 else ' waits'} for it"
    if hang.gone:
        return "hang_gone", words
    if hang.disagree:
        return "hang_disagree", words
    return ("hang_before" if first.before_first_step else "hang"), words


def _after_steps(fewest: int, most: int) -> str:
    return f"{f'{fewest:,} to ' if fewest != most else ''}{plural(most, 'training step')}"


def _dead(hang: Hang) -> str:
    """Return a sentence about the thread that ended last; "" if none did."""
    found = next(((one, one.dead[0]) for one in hang.stopped if one.dead), None)
    if found is None:
        return ""
    return _of_dead(found[0].name, found[1])


def _of_dead(process: str, thread: DeadThread) -> str:
    return FRAGMENTS["dead_thread"].format(
        name=process,
        thread=f"thread {thread.name}" if thread.name else "a thread",
        when=f" {duration(thread.before)} before that" if thread.before > 60 else "",
        error=shorten(thread.error, MAX_ERROR),
        place=f" ({thread.where})" if thread.where else "",
    )


def _advice_of_hang(hang: Hang) -> str:
    if any(one.dead for one in hang.stopped) and not hang.gone:
        return "hang_dead_thread"
    if hang.gone:
        return "hang_gone"
    if hang.first.waits_for_ranks:
        return "hang_start" if hang.before_first_step else "hang_collective"
    return "hang"


def dead_rank(case: Case) -> Found | None:
    """Find a rank that failed before its peers did."""
    ending = case.metrics.ending
    rank = ending.dead
    if rank is None:
        return None
    hung = find_hang(case.metrics)
    if hung is not None and rank.name in {one.name for one in hung.stopped}:
        return None  # what ended it, or its peers, came long after all had stopped
    words = {
        "sentence": rank.sentence,
        "running": " The job is still running." if ending.state == RUNNING else "",
        "name": rank.name,
        "code": rank.exit_code,
    }
    how = rank.state
    if how == CRASHED and not rank.error:
        how = "left"
    elif how == OUT_OF_MEMORY and _OF_A_DEVICE.search(rank.error):
        how = CRASHED  # the advice for the machine's memory is none for a GPU's
    return Found(
        "dead_rank", words, _furthest(case, rank), _after(case, rank), f"dead_rank_{how}", of="job", certain=True
    )


def unequal_steps(case: Case) -> Found | None:
    """Find a rank that ended by itself while its peers needed it for their next steps."""
    rank = case.metrics.ending.short
    if rank is None:
        return None
    others = [one for one in case.metrics.ending.ranks if one.is_rank and one.name != rank.name]
    other = max(others, key=lambda one: (one.step, one.name))
    how = attrs.evolve(other, error=cut(other.error, MAX_ERROR)).how
    went_on = how if other.state else f"went on to step {other.step:,}"
    words = {"steps": plural(rank.step, "training step"), "name": rank.name, "others": f"{other.name} {went_on}"}
    return Found("unequal_steps", words, _furthest(case, rank), _after(case, rank), of="job", certain=True)


def _furthest(case: Case, rank: RankEnd) -> tuple[Evidence, ...]:
    """Return how far the peers of a rank came; its own steps are in the headline."""
    others = [one for one in case.metrics.ending.ranks if one.is_rank and one.name != rank.name]
    if not others:
        return () if rank.exit_code is None else (Evidence("exit code of the rank", rank.exit_code, None, rank.name),)
    furthest = min(others, key=lambda one: (-one.step, one.name))
    recorded = "" if furthest.counted else "recorded "  # one that was killed as well may have come further
    metric = f"{recorded}training steps of the other rank that came furthest"
    return (Evidence(metric, furthest.step, None, furthest.name),)


def _after(case: Case, rank: RankEnd) -> float:
    """Return the share of the job after the end of a rank."""
    metrics = case.metrics
    return min(max((metrics.end - rank.at) / metrics.duration, 0.0), 1.0) if metrics.duration > 0 else 0.0
