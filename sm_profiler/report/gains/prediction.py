"""Compare what the repairs of one run were predicted to save with what the next run shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.report.gains.bootstrap import Blocks
from sm_profiler.report.gains.loop_table import LoopTable, loop_table
from sm_profiler.report.gains.wording import factors
from sm_profiler.report.judges import JudgeContext
from sm_profiler.report.model import Finding, Gain, Interval, Report

if TYPE_CHECKING:
    from sm_profiler.report.job_metrics import JobMetrics


@attrs.frozen
class Prediction:
    """The predicted speedup of a repair, and the measured one.

    Attributes:
        findings: classes of the earlier run's findings that the prediction is about.
        repaired: the later run no longer has them.
        predicted: speedup of the loop by their gains.
        measured: how much faster the later run is for each step, or for each sample if the batch sizes differ.
    """

    findings: tuple[str, ...]
    repaired: bool
    predicted: Interval
    measured: Interval

    @property
    def held(self) -> bool:
        """True if the measured value is in the predicted range."""
        return self.predicted.low <= self.measured.value <= self.predicted.high

    @property
    def sentence(self) -> str:
        """The prediction and what came of it."""
        names, measured = " and ".join(self.findings), factors(_point(self.measured.value))
        if not self.repaired:
            is_are = "is" if len(self.findings) == 1 else "are"
            return f"{names} {is_are} still found: predicted {factors(self.predicted)} times as fast once repaired, measured {measured}."
        end = (
            ""
            if self.held
            else ", slower than predicted"
            if self.measured.value < self.predicted.low
            else ", faster than predicted"
        )
        return f"Repairing {names}: predicted {factors(self.predicted)} times as fast, measured {measured}{end}."

    def as_dict(self) -> dict[str, Any]:
        """Return the object of compare.json."""
        return {**attrs.asdict(self), "held": self.held, "sentence": self.sentence}


def predictions(before: Report, after: Report) -> tuple[Prediction, ...]:
    """Return the predictions of a run: for the findings that the next one no longer has, and for each that is left."""
    measured = measured_speedup(before.metrics, after.metrics)
    if measured is None:
        return ()
    left = {finding.kind for finding in (after.verdict.main, *after.verdict.also)}
    known = [
        (finding, finding.gain)
        for finding in (before.verdict.main, *before.verdict.also)
        if finding.gain is not None and finding.gain.of == "loop" and finding.gain.speedup.high > 1
    ]
    gone = [pair for pair in known if pair[0].kind not in left]
    groups = ([gone] if gone else []) + [[pair] for pair in known if pair not in gone]
    return tuple(_prediction(group, measured, repaired=group is gone) for group in groups)


def _prediction(group: list[tuple[Finding, Gain]], measured: Interval, *, repaired: bool) -> Prediction:
    """Combine the gains of some findings: their shares of the loop add up."""
    shares = [gain.share_of_loop for _, gain in group]
    value = sum(one.value for one in shares)
    low = max(value - math.hypot(*(one.value - one.low for one in shares)), 0.0)
    high = min(value + math.hypot(*(one.high - one.value for one in shares)), max(value, 0.99))
    predicted = Interval(*(1 / (1 - one) for one in (low, value, high)))
    return Prediction(tuple(finding.kind.value for finding, _ in group), repaired, predicted, measured)


def measured_speedup(before: JobMetrics, after: JobMetrics) -> Interval | None:
    """Return how much less time the loop takes for a step after the warm-up, with its evaluation; None if unknown."""
    tables = [loop_table(JudgeContext(one, {}).ranks) for one in (before, after)]
    if tables[0] is None or tables[1] is None:
        return None
    work = 1.0
    if before.batch_size and after.batch_size:
        work = after.batch_size * len(after.ranks) / (before.batch_size * len(before.ranks))
    (first, low_a, high_a), (second, low_b, high_b) = (_seconds_per_step(one) for one in tables if one is not None)
    if min(first, second) <= 0:
        return None
    value = work * first / second
    below, above = math.hypot(low_a / first, high_b / second), math.hypot(high_a / first, low_b / second)
    return Interval(value * max(1 - below, 0.0), value, value * (1 + above)) if math.isfinite(value) else None


def compute_seconds(metrics: JobMetrics) -> float | None:
    """Return the mean seconds of a training step without waiting for data; None if unknown."""
    table = loop_table(JudgeContext(metrics, {}).ranks)
    if table is None:
        return None
    return float((table.training - table.of("wait")).sum()) / table.steps or None


def _seconds_per_step(table: LoopTable) -> tuple[float, float, float]:
    """Return the mean seconds of a step, and how far below and above it the truth may lie."""
    blocks = Blocks.of(table.length)
    value, (below, above) = table.total / table.steps, blocks.error_of_mean(blocks.seconds)
    return value, below, above


def _point(value: float) -> Interval:
    return Interval(value, value, value)
