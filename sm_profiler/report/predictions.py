"""Compare what the repairs of one run were predicted to save with what the next run shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.diagnosis.judges import JudgeContext
from sm_profiler.diagnosis.loop_table import loop_table
from sm_profiler.diagnosis.model import Finding, Gain, Interval, Report
from sm_profiler.render.gain_text import factors

if TYPE_CHECKING:
    from sm_profiler.metrics.job_metrics import JobMetrics


@attrs.frozen
class Prediction:
    """The predicted speedup of a repair, and the measured one.

    Attributes:
        findings: classes of the earlier run's findings that the prediction is about.
        repaired: the later run no longer has them.
        predicted: speedup of the loop by their gains.
        measured: how many times as fast the later run is, by the numbers of the comparison; None if it still has them.
    """

    findings: tuple[str, ...]
    repaired: bool
    predicted: Interval
    measured: Interval | None

    @property
    def held(self) -> bool | None:
        """True if the measured value is in the predicted range; None without one."""
        return None if self.measured is None else self.predicted.low <= self.measured.value <= self.predicted.high

    @property
    def sentence(self) -> str:
        """The prediction and what came of it."""
        names = " and ".join(self.findings)
        if self.measured is None:
            is_are = "is" if len(self.findings) == 1 else "are"
            return f"{names} {is_are} still found: predicted {factors(self.predicted)} times as fast once repaired."
        end = (
            ""
            if self.held
            else ", less than predicted"
            if self.measured.value < self.predicted.low
            else ", more than predicted"
        )
        return f"Repairing {names}: predicted {factors(self.predicted)} times as fast, measured {factors(_point(self.measured.value))}{end}."

    def as_dict(self) -> dict[str, Any]:
        """Return the object of compare.json."""
        return {**attrs.asdict(self), "held": self.held, "sentence": self.sentence}


def predictions(before: Report, after: Report, measured: Interval) -> tuple[Prediction, ...]:
    """Return the predictions of a run: for the findings that the next one no longer has, and for each that is left.

    Args:
        before: the run whose report made the predictions.
        after: the next run.
        measured: how many times as fast the next run is.
    """
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
    findings = tuple(finding.kind.value for finding, _ in group)
    return Prediction(findings, repaired, predicted, measured if repaired else None)


def compute_seconds(metrics: JobMetrics) -> float | None:
    """Return the mean seconds of a training step without waiting for data; None if unknown."""
    table = loop_table(JudgeContext(metrics, {}).ranks)
    if table is None:
        return None
    return float((table.training - table.of("wait")).sum()) / table.steps or None


def _point(value: float) -> Interval:
    return Interval(value, value, value)
