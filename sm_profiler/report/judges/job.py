"""The job around the training steps: initialization, evaluation, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Facts
from sm_profiler.report.judges.judge_context import Case, confidence, duration, percent, size
from sm_profiler.report.model import Evidence, Finding

if TYPE_CHECKING:
    from sm_profiler.formats.columns import Floats


def start_allowance(facts: Facts) -> float:
    """Seconds before the first step that nobody is told about.

    Where the hook says how long the framework's import took, building a model may take as long again: both are slow on a
    slow or busy machine.
    """
    if facts.loading is None:
        return (policy.INIT_ALLOWANCE_GPU_S if facts.gpus else policy.INIT_ALLOWANCE_S).value
    loading = min(facts.loading, policy.INIT_LOADING_S.value)
    device = policy.INIT_DEVICE_S.value if facts.gpus else 0.0
    return loading + max(loading, policy.INIT_MODEL_S.value) + device


def judge_initialization(case: Case) -> Finding | None:
    """Long before the first step, measured against the whole job."""
    facts = case.facts
    before, whole = facts.initialization, facts.duration
    if before is None or whole <= 0:
        return None
    allowance = start_allowance(facts)
    excess = (before - allowance) / whole
    if excess < policy.INITIALIZATION.value:
        return None
    share = before / whole
    return Finding(
        Class.INITIALIZATION_BOUND,
        f"The first training step begins after {duration(before)}: {percent(share)} of the job passes before it.",
        (
            Evidence("job time before the first step", round(share, 4), policy.INITIALIZATION.value, unit="share"),
            Evidence("initialization", round(before, 2), allowance, unit="s"),
        ),
        "Stream the data instead of downloading it first (FastFile mode, FSx), cache what is prepared at every start (tokenised or "
        "decoded data, compiled kernels), and build model and dataset in parallel.",
        share,
        of="job",
        confidence="high"
        if excess >= policy.CLEARLY.value * policy.INITIALIZATION.value and not facts.running
        else "medium",
        weight=excess * policy.INIT_WEIGHT.value,
    )


def judge_evaluation(case: Case) -> Finding | None:
    """Evaluation takes a large part of the loop."""
    share = case.facts.average_share("evaluation")
    if share < policy.EVALUATION.value:
        return None
    seconds = float(np.mean([rank.slices["evaluation"] for rank in case.facts.ranks]))
    return Finding(
        Class.EVALUATION_BOUND,
        f"Evaluation takes {percent(share)} of the training loop ({duration(seconds)}).",
        (Evidence("time in evaluation", round(share, 4), policy.EVALUATION.value, unit="share"),),
        "Evaluate less often or on a fixed sample, with a larger batch (no gradients are kept) under torch.inference_mode(), or in a "
        "job of its own on checkpoints.",
        share,
        confidence=confidence(case, share, policy.EVALUATION.value),
    )


@attrs.frozen
class Growth:
    """A line through memory over time."""

    start: float
    end: float
    slope: float  # a second
    error: float  # standard error of the slope
    late: float  # slope of the second half


def fit_growth(seconds: Floats, values: Floats) -> Growth | None:
    """Fit a line behind the first tenth (warming up); None with too few samples.

    The error counts neighbouring samples as one where their residuals resemble each other (lag-one correlation).
    """
    keep = seconds >= seconds[0] + 0.1 * (seconds[-1] - seconds[0]) if len(seconds) else np.zeros(0, np.bool_)
    x, y = seconds[keep] - seconds[0] if len(seconds) else seconds, values[keep]
    if len(x) < policy.GROWTH_SAMPLES.value or np.ptp(x) <= 0:
        return None
    slope, at_zero = np.polyfit(x, y, 1)
    rest = y - (slope * x + at_zero)
    spread = float((rest**2).sum())
    alike = max(float((rest[1:] * rest[:-1]).sum() / spread), 0.0) if spread > 0 else 0.0
    repeats = (1 + alike) / max(1 - alike, 0.05)  # so many neighbouring samples tell as much as one
    error = float(np.sqrt(spread / (len(x) - 2) / ((x - x.mean()) ** 2).sum() * repeats))
    half = len(x) // 2
    late = float(np.polyfit(x[half:], y[half:], 1)[0]) if len(x) - half >= 3 else float(slope)  # noqa: PLR2004 - what the number means stands in the line
    return Growth(float(slope * x[0] + at_zero), float(slope * x[-1] + at_zero), float(slope), error, late)


def judge_memory(case: Case) -> Finding | None:
    """Host or GPU memory grows steadily."""
    return _process_memory(case) or _gpu_memory(case) or _host_memory(case)


def _is_steady(growth: Growth) -> bool:
    significant = growth.slope > policy.GROWTH_SIGMAS.value * growth.error
    return significant and growth.late >= policy.GROWTH_LATE.value * growth.slope


def _inside_loop(case: Case, seconds: Floats, values: Floats) -> tuple[Floats, Floats]:
    span = case.facts.loop
    if span is None:
        return seconds, values
    rows = (seconds >= span[0]) & (seconds <= span[1])
    return seconds[rows], values[rows]


def _process_memory(case: Case) -> Finding | None:
    worst: tuple[Growth, str] | None = None
    for name, (seconds, values) in case.facts.memory.items():
        growth = fit_growth(*_inside_loop(case, seconds, values))
        if growth is None or not _is_steady(growth):
            continue
        gained = growth.end - growth.start
        if gained < max(policy.GROWTH_BYTES.value, policy.GROWTH_SHARE.value * growth.start):
            continue
        if worst is None or growth.slope > worst[0].slope:
            worst = growth, name
    if worst is None:
        return None
    growth, name = worst
    rate = growth.slope * 60
    per_step = growth.slope / case.facts.steps_per_second if case.facts.steps_per_second else None
    left = _exhaustion(case, growth)
    until = f"; at this rate it is used up in {duration(left)}" if left else ""
    evidence = [
        Evidence(
            "resident memory gained in the loop",
            round(growth.end - growth.start),
            policy.GROWTH_BYTES.value,
            name,
            "bytes",
        ),
        Evidence("growth a minute", round(rate), round(growth.error * 60), name, "bytes", "±"),
    ]
    if per_step is not None:
        evidence.append(Evidence("growth a step", round(per_step), None, name, "bytes"))
    if left:
        evidence.append(Evidence("time to exhaustion", round(left), None, name, "s"))
    return Finding(
        Class.MEMORY_GROWTH,
        f"The training process's memory grows by {size(rate)} a minute (± {size(growth.error * 60)}){until}.",
        tuple(evidence),
        "Look for tensors kept from step to step: losses appended to a list without .item() or .detach(), growing caches, histories "
        "in callbacks. tracemalloc, or torch.cuda.memory_summary() on a GPU, names the holder.",
        _weight(left),
        confidence=confidence(case, growth.slope, policy.GROWTH_SIGMAS.value * growth.error),
    )


def _weight(left: float | None) -> float:
    """Against what other findings lose: everything where the job will die soon."""
    return 1.0 if left is not None and left < policy.FATAL_S.value else policy.GROWTH_WEIGHT.value


def _exhaustion(case: Case, growth: Growth) -> float | None:
    """Seconds until the node's memory is used up, from its used percent and this process's bytes."""
    total = next((float(one["memory_total"]) for one in case.facts.metadata if one.get("memory_total")), None)
    used = case.facts.mean_of("memory")
    if total is None or used is None or growth.slope <= 0:
        return None
    return max(total * (1 - used / 100), 0.0) / growth.slope


def _gpu_memory(case: Case) -> Finding | None:
    for (node, device), data in case.facts.system.of("gpu_memory").items():
        filled = data.count > 0
        seconds, values = _inside_loop(case, data.seconds[filled], data.mean[filled])
        growth = fit_growth(seconds, values)
        if (
            growth is None
            or growth.end - growth.start < policy.GPU_GROWTH.value
            or growth.slope <= policy.GROWTH_SIGMAS.value * growth.error
        ):
            continue
        low_again = float(np.mean(values[-max(len(values) // 10, 1) :])) < growth.start + policy.GPU_GROWTH.value
        if low_again:
            continue
        left = max(100 - growth.end, 0.0) / growth.slope
        return Finding(
            Class.MEMORY_GROWTH,
            f"Memory of {device} on {node} grows by {growth.slope * 60:.2g} percent points a minute; it is full in {duration(left)}.",
            (
                Evidence("GPU memory gained in the loop", round(growth.end - growth.start, 1), policy.GPU_GROWTH.value, f"{node} {device}", "percent"),
                Evidence("growth a minute", round(growth.slope * 60, 3), round(growth.error * 60, 3), f"{node} {device}", "percent", "±"),
                Evidence("time to exhaustion", round(left), None, f"{node} {device}", "s"),
            ),
            "Look for tensors on the GPU kept from step to step (losses without .detach(), outputs collected for metrics); if the "
            "growth is meant (longer sequences), take an instance with more GPU memory before it fails.",
            _weight(left),
            confidence=confidence(case, growth.end - growth.start, policy.GPU_GROWTH.value),
        )  # fmt: skip
    return None


def _host_memory(case: Case) -> Finding | None:
    for (node, _), data in case.facts.system.of("memory").items():
        filled = data.count > 0
        growth = fit_growth(*_inside_loop(case, data.seconds[filled], data.mean[filled]))
        if growth is None or not _is_steady(growth) or growth.end - growth.start < policy.HOST_GROWTH.value:
            continue
        left = max(100 - growth.end, 0.0) / growth.slope
        return Finding(
            Class.MEMORY_GROWTH,
            f"Memory of {node} grows by {growth.slope * 60:.2g} percent points a minute; it is full in {duration(left)}.",
            (
                Evidence(
                    "memory gained in the loop",
                    round(growth.end - growth.start, 1),
                    policy.HOST_GROWTH.value,
                    node,
                    "percent",
                ),
                Evidence(
                    "growth a minute", round(growth.slope * 60, 3), round(growth.error * 60, 3), node, "percent", "±"
                ),
                Evidence("time to exhaustion", round(left), None, node, "s"),
            ),
            "Look for objects kept from step to step in the training process or its loader workers: histories, caches, losses "
            "without .item(), Python lists in a dataset that forked workers copy page by page.",
            _weight(left),
            confidence="medium",
        )
    return None
