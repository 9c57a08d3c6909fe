"""Judges of the job around its training steps: initialization, evaluation, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.objects import growing_lines, grown_objects, keeps_nothing
from sm_profiler.diagnosis.model import Evidence, Finding, Location
from sm_profiler.diagnosis.where import FIRST_STEPS, IMPORT, START, lines_of_samples
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, percent, size
from sm_profiler.metrics.covered import Covered
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.sample_fold import Sampled
from sm_profiler.metrics.startup import (
    ADVICE,
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
from sm_profiler.metrics.step_fold import TRAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm_profiler.formats.columns import Floats


def start_allowance(metrics: JobMetrics) -> float:
    """Return the seconds before the first step that are normal.

    If the hook recorded how long importing the framework took, building a model may take as long again: both are slow on
    a slow or busy machine.
    """
    if metrics.loading is None:
        return policy.INIT_ALLOWANCE_GPU_S if metrics.gpus else policy.INIT_ALLOWANCE_S
    device = policy.INIT_DEVICE_S if metrics.gpus else 0.0
    loading = metrics.loading + importing(metrics)  # frameworks import parts of themselves when they are first used
    return min(loading, policy.INIT_LOADING_S) + _model_allowance(metrics) + device


def _model_allowance(metrics: JobMetrics) -> float:
    """Return the seconds that building a model, or starting loader workers in the first steps, may take."""
    return max(min(metrics.loading or 0.0, policy.INIT_LOADING_S), policy.INIT_MODEL_S)


def _compiles_in_vain(metrics: JobMetrics, parts: Sequence[StartPart]) -> bool:
    """Return whether compiling in the first steps takes longer than all of the loop but the first steps' excess."""
    compiling = sum(part.seconds for part in parts if part.key == COMPILING)
    if metrics.loop is None or metrics.running or compiling < policy.COMPILING_S:
        return False
    start, end = metrics.loop
    return compiling > policy.COMPILING_IN_VAIN * max(end - start - in_first_steps(parts), 0.0)


@attrs.frozen
class Start:
    """The start of a job, until training runs at full speed; seconds.

    Attributes:
        parts: what is known about it, without what is not paid.
        before: until the first step.
        late: how much of that is not normal.
        first_steps: how much of what the first steps take beyond usual ones is not normal.
        allowance: what is normal before the first step.
        judged: the job, for the share.
        whole: the job.
    """

    parts: tuple[StartPart, ...]
    before: float
    late: float
    first_steps: float
    allowance: float
    judged: float
    whole: float

    @property
    def seconds(self) -> float:
        """Seconds of all of it."""
        return self.before + (in_first_steps(self.parts) if self.first_steps > 0 else 0.0)

    @property
    def excess(self) -> float:
        """Seconds that are not normal."""
        return self.late + self.first_steps


def start_of(metrics: JobMetrics) -> Start | None:
    """Return the start of a job; None if it is not known."""
    inside, whole = metrics.initialization, metrics.duration
    if inside is None or whole <= 0:
        return None
    parts = tuple(part for part in start_parts(metrics) if part.paid)
    earlier, imports = before_profile(metrics)
    before, whole, allowance = inside + earlier, whole + earlier, start_allowance(metrics) + imports
    first_steps, judged = max(in_first_steps(parts) - _model_allowance(metrics), 0.0), whole
    if _compiles_in_vain(metrics, parts):  # no model is built meanwhile, and a short job consists of its start anyway
        first_steps, judged = in_first_steps(parts), max(whole - min(before, allowance), 1e-9)
    return Start(parts, before, max(before - allowance, 0.0), first_steps, allowance, judged, whole)


def judge_initialization(context: JudgeContext) -> Finding | None:
    """Find a long time before training runs at full speed, compared with the whole job, and name its largest part."""
    metrics = context.metrics
    start = start_of(metrics)
    if start is None or start.excess < policy.INITIALIZATION * start.judged:
        return None
    late, share = start.late, start.seconds / start.whole
    # what is normal is no cause
    main = largest(start.parts if late else [part for part in start.parts if part.key in INSIDE_LOOP])
    if main is not None and main.seconds < policy.START_PART * (start.seconds if late else start.first_steps):
        main = None
    what = "most of it is" if late else "most of the excess is"
    most = f"; {what} {main.label} ({duration(main.seconds)})" if main is not None else ""
    ready = "Training runs at full speed" if start.first_steps > 0 else "The first training step starts"
    clear = start.excess >= policy.CLEARLY * policy.INITIALIZATION * start.judged and not metrics.running
    return Finding(
        Class.INITIALIZATION_BOUND,
        f"{ready} after {duration(start.seconds)}: {percent(share)} of the job is over before it{most}.",
        (
            Evidence("job time before the first step", round(share, 4), policy.INITIALIZATION, unit="share"),
            Evidence("initialization", round(start.seconds, 2), start.allowance if late else None, unit="s"),
            *(
                Evidence(part.label, round(part.seconds, 2), unit="s")
                for part in sorted(start.parts, key=lambda part: -part.seconds)
                if part.seconds >= policy.START_PART_SHOWN * start.seconds
            ),
        ),
        ADVICE[main.key]
        if main is not None
        else "Stream the data instead of downloading it first (FastFile mode, FSx), cache what each start prepares again (tokenized "
        "or decoded data, compiled kernels), and build model and dataset in parallel.",
        share,
        of="job",
        confidence="high" if clear else "medium",
        where=_lines_of_start(metrics, main),
    )


def _lines_of_start(metrics: JobMetrics, part: StartPart | None) -> tuple[Location, ...]:
    """Return the lines of a part of the start, or of all of it."""

    def belongs(one: Sampled) -> bool:
        if one.phase not in {START, FIRST_STEPS} or part is None:
            return one.phase in {START, FIRST_STEPS}
        if part.key in INSIDE_LOOP:
            return one.phase == FIRST_STEPS
        return one.phase == START and part.key == (IMPORTS if one.leaf == IMPORT else BUILDING)

    return lines_of_samples(metrics, belongs)


def judge_evaluation(context: JudgeContext) -> Finding | None:
    """Find a loop that spends much of its time in evaluation."""
    ranks = [rank for rank in context.metrics.ranks if rank.loop > 0]
    if not ranks:
        return None
    compiling = [_compiling_for_evaluation(rank, context.metrics) for rank in ranks]
    spent = [max(rank.slices["evaluation"] - once, 0.0) for rank, once in zip(ranks, compiling, strict=True)]
    share = float(np.mean([one / rank.loop for one, rank in zip(spent, ranks, strict=True)]))
    if share < policy.EVALUATION:
        return None
    once = float(np.mean(compiling))
    return Finding(
        Class.EVALUATION_BOUND,
        f"Evaluation takes {percent(share)} of the training loop ({duration(float(np.mean(spent)))})"
        f"{f', without {duration(once)} of compiling for it' if once > 0 else ''}.",
        (Evidence("time in evaluation", round(share, 4), policy.EVALUATION, unit="share"),),
        f"{context.stack.evaluation}, or in a separate job on checkpoints.",
        share,
        confidence=context.confidence(share, policy.EVALUATION),
    )


def _compiling_for_evaluation(rank: Rank, metrics: JobMetrics) -> float:
    """Return the seconds in which functions were compiled during evaluation, which evaluating less often does not save."""
    found = metrics.records.get(event_names.COMPILE)
    own = [one for one in found.of(rank.name) if rank.start <= one.start <= rank.end] if found else []
    if not own or not len(rank.steps):
        return 0.0
    # Between two training steps nothing is evaluated.
    train, ends = np.equal(rank.steps.mode, TRAIN), np.array([one.end for one in own])
    before = np.searchsorted(rank.steps.start, ends * 1e6, side="right") - 1
    evaluates = ~train[np.maximum(before, 0)] | ~train[np.minimum(before + 1, len(train) - 1)]
    starts, ends = np.array([one.start for one in own])[evaluates], ends[evaluates]
    return float(Covered.by(starts, ends).before[-1])


@attrs.frozen
class Growth:
    """A line fitted to memory over time."""

    start: float
    end: float
    slope: float  # per second
    error: float  # standard error of the slope
    late: float  # slope of the second half

    @property
    def gained(self) -> float:
        """Growth from start to end."""
        return self.end - self.start

    @property
    def is_significant(self) -> bool:
        """True if the slope is not a chance of the samples."""
        return self.slope > policy.GROWTH_SIGMAS * self.error

    @property
    def is_steady(self) -> bool:
        """True if memory grows significantly, and still does in the second half."""
        return self.is_significant and self.late >= policy.GROWTH_LATE * self.slope


def fit_growth(seconds: Floats, values: Floats) -> Growth | None:
    """Fit a line to memory samples without the warm-up; None with too few samples.

    The error takes the correlation of neighbouring residuals into account.
    """
    if not len(seconds):
        return None
    keep = seconds >= seconds[0] + policy.GROWTH_WARM_UP * (seconds[-1] - seconds[0])
    x, y = seconds[keep] - seconds[0], values[keep]
    if len(x) < policy.GROWTH_SAMPLES or np.ptp(x) <= 0:
        return None
    slope, at_zero = np.polyfit(x, y, 1)
    rest = y - (slope * x + at_zero)
    spread = float((rest**2).sum())
    correlation = max(float((rest[1:] * rest[:-1]).sum() / spread), 0.0) if spread > 0 else 0.0
    repeats = (1 + correlation) / (1 - min(correlation, policy.MAX_CORRELATION))  # samples that count as one
    error = float(np.sqrt(spread / (len(x) - 2) / ((x - x.mean()) ** 2).sum() * repeats))
    half = len(x) // 2
    late = float(np.polyfit(x[half:], y[half:], 1)[0]) if len(x) - half >= policy.LATE_SAMPLES else float(slope)
    return Growth(float(slope * x[0] + at_zero), float(slope * x[-1] + at_zero), float(slope), error, late)


def judge_memory(context: JudgeContext) -> Finding | None:
    """Find steadily growing memory of a process, a GPU or a node."""
    return _process_memory(context) or _gpu_memory(context) or _host_memory(context)


def _inside_loop(context: JudgeContext, seconds: Floats, values: Floats) -> tuple[Floats, Floats]:
    span = context.metrics.loop
    if span is None:
        return seconds, values
    rows = (seconds >= span[0]) & (seconds <= span[1])
    return seconds[rows], values[rows]


def _process_memory(context: JudgeContext) -> Finding | None:
    worst: tuple[Growth, str] | None = None
    for name, (seconds, values) in context.metrics.memory.items():
        settled = seconds >= _compiled_at(context, name)
        growth = fit_growth(*_inside_loop(context, seconds[settled], values[settled]))
        if growth is None or not growth.is_steady:
            continue
        if growth.gained < max(policy.GROWTH_BYTES, policy.GROWTH_SHARE * growth.start):
            continue
        if growth.late < policy.GROWTH_UNKEPT * growth.slope and keeps_nothing(context, name):
            continue
        if worst is None or growth.slope > worst[0].slope:
            worst = growth, name
    if worst is None:
        return None
    growth, name = worst
    rate, speed = growth.slope * 60, context.metrics.steps_per_second
    left = _exhaustion(context, growth)
    until = f"; at this rate, memory is full in {duration(left)}" if left else ""
    evidence = [
        Evidence("resident memory gained in the loop", round(growth.gained), policy.GROWTH_BYTES, name, "bytes"),
        Evidence("growth per minute", round(rate), round(growth.error * 60), name, "bytes", "±"),
    ]
    if speed:
        evidence.append(Evidence("growth per step", round(growth.slope / speed), None, name, "bytes"))
    if left:
        evidence.append(Evidence("time to exhaustion", round(left), None, name, "s"))
    evidence += grown_objects(context, name)
    return Finding(
        Class.MEMORY_GROWTH,
        f"The training process's memory grows by {size(rate)} per minute (± {size(growth.error * 60)}){until}.",
        tuple(evidence),
        "Look for tensors kept from step to step: losses appended to a list without .item() or .detach(), growing caches, "
        f"histories in callbacks. {context.stack.memory}",
        _weight(left),
        confidence=context.confidence(growth.slope, policy.GROWTH_SIGMAS * growth.error),
        where=growing_lines(context, name),
    )


def _weight(left: float | None) -> float:
    """Return the rank among findings that cost time: first if the job is about to run out of memory."""
    return 1.0 if left is not None and left < policy.FATAL_S else policy.GROWTH_WEIGHT


def _compiled_at(context: JudgeContext, process: str) -> float:
    """Return when the last function of a process was compiled for the first time, in seconds since the epoch.

    Until then memory grows because graphs, kernels and buffers are made, not because a step keeps something.
    """
    found = context.metrics.records.get(event_names.COMPILE)
    first = [one.end for one in found.of(process) if one.args.get("again") is False] if found else []
    return max(first, default=0.0)


def _exhaustion(context: JudgeContext, growth: Growth) -> float | None:
    """Return the seconds until the node's memory is full; None if its size or use is unknown."""
    total = next((float(one["memory_total"]) for one in context.metrics.metadata if one.get("memory_total")), None)
    used = context.metrics.mean_of("memory")
    if total is None or used is None or growth.slope <= 0:
        return None
    return max(total * (1 - used / 100), 0.0) / growth.slope


def _gpu_memory(context: JudgeContext) -> Finding | None:
    for (node, device), data in context.metrics.system.of("gpu_memory").items():
        filled = data.count > 0
        seconds, values = _inside_loop(context, data.seconds[filled], data.mean[filled])
        growth = fit_growth(seconds, values)
        if growth is None or growth.gained < policy.GPU_GROWTH or not growth.is_significant:
            continue
        tail = values[-max(int(len(values) * policy.GPU_GROWTH_TAIL), 1) :]
        if float(np.mean(tail)) < growth.start + policy.GPU_GROWTH:
            continue
        return _memory_of(
            f"{device} on {node}",
            f"{node} {device}",
            growth,
            Evidence("GPU memory gained in the loop", round(growth.gained, 1), policy.GPU_GROWTH, f"{node} {device}", "percent"),
            "Look for tensors on the GPU kept from step to step (losses without .detach(), outputs collected for metrics). If the "
            "growth is intended (longer sequences), use an instance with more GPU memory before the job fails.",
            context.confidence(growth.gained, policy.GPU_GROWTH),
        )  # fmt: skip
    return None


def _host_memory(context: JudgeContext) -> Finding | None:
    for (node, _), data in context.metrics.system.of("memory").items():
        filled = data.count > 0
        growth = fit_growth(*_inside_loop(context, data.seconds[filled], data.mean[filled]))
        if growth is None or not growth.is_steady or growth.gained < policy.HOST_GROWTH:
            continue
        if context.metrics.loader.num_workers <= 0 and _grown_by_others(context, node, growth):
            continue
        return _memory_of(
            node,
            node,
            growth,
            Evidence("memory gained in the loop", round(growth.gained, 1), policy.HOST_GROWTH, node, "percent"),
            "Look for objects kept from step to step in the training process or its loader workers: histories, caches, losses "
            "without .item(), Python lists in a dataset that forked workers copy page by page.",
            "medium",
        )
    return None


def _grown_by_others(context: JudgeContext, node: str, growth: Growth) -> bool:
    """Return whether the job's processes, whose own memory is known, gained only a small part of what the node did."""
    metrics = context.metrics
    total = next((float(one["memory_total"]) for one in metrics.metadata if one.get("memory_total")), None)
    own = [
        fit_growth(*_inside_loop(context, *metrics.memory[rank.name]))
        for rank in metrics.ranks
        if rank.node == node and rank.name in metrics.memory
    ]
    if not total or not own:
        return False
    gained = 100 * sum(max(one.gained, 0.0) for one in own if one is not None) / total
    return gained < policy.EXPLAINED * growth.gained


def _memory_of(  # one argument a part of the finding
    holder: str, where: str, growth: Growth, gained: Evidence, advice: str, confidence: str
) -> Finding:
    """Return the finding for memory measured in percent."""
    left = max(100 - growth.end, 0.0) / growth.slope
    return Finding(
        Class.MEMORY_GROWTH,
        f"Memory of {holder} grows by {growth.slope * 60:.2g} percentage points per minute; it is full in {duration(left)}.",
        (
            gained,
            Evidence("growth per minute", round(growth.slope * 60, 3), round(growth.error * 60, 3), where, "percent", "±"),
            Evidence("time to exhaustion", round(left), None, where, "s"),
        ),
        advice,
        _weight(left),
        confidence=confidence,
    )  # fmt: skip
