"""Turn the claims of all findings into gains, in the findings' order, so that no second is claimed twice."""

from __future__ import annotations

import math

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.gains.bootstrap import Blocks, unsteadiness
from sm_profiler.report.gains.claim import Claim
from sm_profiler.report.gains.loop_table import LoopTable, loop_table, row_keys
from sm_profiler.report.gains.models import WITHOUT_TIME, claim_of, lost_share
from sm_profiler.report.job_metrics import JobMetrics
from sm_profiler.report.judges import JudgeContext
from sm_profiler.report.judges.job import start_allowance
from sm_profiler.report.model import Finding, Gain, Interval, Verdict

NOTHING = Interval(0.0, 0.0, 0.0)
UNCHANGED = Interval(1.0, 1.0, 1.0)


def with_gains(verdict: Verdict, context: JudgeContext, per_hour: float | None = None) -> Verdict:
    """Return the verdict with the gain of each finding.

    Args:
        verdict: the verdict.
        context: what it was decided from.
        per_hour: dollars an hour for all nodes; None if unknown.
    """
    table = loop_table(context.ranks)
    loop = _Budget.of(table) if table is not None else None
    outside = _time_outside(context.metrics)
    findings = [verdict.main, *verdict.also]
    for place in _causes_first(findings):
        finding, gain = findings[place], None
        if finding.kind.is_healthy or finding.kind is Class.INCONCLUSIVE or finding.kind in WITHOUT_TIME:
            pass
        elif finding.of == "job":
            gain = _gain_of_job(finding, context.metrics, outside, per_hour)
            outside = max(outside - (gain.seconds.value if gain else 0.0), 0.0)
        elif loop is not None:
            gain = loop.gain(claim_of(finding, context, loop.table), per_hour)
        findings[place] = attrs.evolve(finding, gain=gain)
    return attrs.evolve(verdict, main=findings[0], also=tuple(findings[1:]))


def _causes_first(findings: list[Finding]) -> list[int]:
    """Return the places of the findings in their order, but causes before the symptoms that they explain."""
    kinds = {finding.kind for finding in findings}

    def depth(kind: Class, seen: frozenset[Class] = frozenset()) -> int:
        causes = [one for one in kinds - seen if kind in policy.EXPLAINS.get(one, ())]
        return 1 + max((depth(one, seen | {kind}) for one in causes), default=-1)

    return sorted(range(len(findings)), key=lambda place: depth(findings[place].kind))


@attrs.define(eq=False)
class _Budget:
    """Time of the loop that is left to be saved, by part and block of steps."""

    table: LoopTable
    blocks: Blocks
    left: Floats  # shape (parts, blocks)
    spread: float  # of a step from run to run
    claimed: float = 0.0  # share of the loop

    @classmethod
    def of(cls, table: LoopTable) -> _Budget:
        blocks = Blocks.of(table.length)
        left = blocks.sums(table.seconds) * float(policy.GAIN_MOST)
        return cls(table, blocks, left, unsteadiness(table.training[: table.steps]))

    def gain(self, claim: Claim, per_hour: float | None) -> Gain:
        """Take the claim's seconds from what is left."""
        wanted = self.blocks.sums(np.maximum(np.nan_to_num(claim.seconds), 0.0))
        seconds = self._take(wanted, claim)
        total = float(self.blocks.seconds.sum())
        value = float(seconds.sum()) / total
        # this run is as it was; the repaired one has other draws of what is left of each step
        error_below, error_above = self.blocks.error_of_mean(self.blocks.seconds - seconds)
        mean = total / len(self.table.length)
        noise = self.spread * (1 - value) if value > 0 else 0.0
        low = value - math.hypot(error_above / mean, noise, value * (1 - claim.low))
        high = value + math.hypot(error_below / mean, noise, value * (claim.high - 1))
        most = max(float(policy.GAIN_MOST) - self.claimed, value)
        self.claimed += value
        share = Interval(min(max(low, 0.0), value), value, min(max(high, value), most))
        per_step = total / self.table.steps
        return Gain(
            _times(share, per_step), share, Interval(*(1 / (1 - one) for one in attrs.astuple(share))),
            _dollars(_times(share, self.table.loop), per_hour), _times(share, self.table.loop),
        )  # fmt: skip

    def _take(self, wanted: Floats, claim: Claim) -> Floats:
        """Return the seconds of each block that were left for the claim, and subtract them."""
        taken = np.zeros_like(wanted)
        for key in claim.parts:
            part = self.left[row_keys().index(key)]
            found = np.minimum(part, wanted - taken)
            part -= found
            taken += found
        if not claim.strict:
            rest = self.left.sum(axis=0)
            share = np.where(rest > 0, np.minimum((wanted - taken) / np.where(rest > 0, rest, 1.0), 1.0), 0.0)
            share = np.maximum(share, 0.0)
            taken += rest * share
            self.left *= 1 - share
        return taken


def _time_outside(metrics: JobMetrics) -> float:
    """Return the seconds of the job outside its loop."""
    loop = metrics.loop
    inside = loop[1] - loop[0] if loop else 0.0
    return max(metrics.duration - inside, 0.0) if np.isfinite(inside) else 0.0


def _gain_of_job(finding: Finding, metrics: JobMetrics, outside: float, per_hour: float | None) -> Gain | None:
    """Return what the repair of a finding outside the loop saves; None if the job's length is unknown."""
    whole = metrics.duration
    if whole <= 0:
        return None
    if finding.kind is Class.INITIALIZATION_BOUND and metrics.initialization is not None:
        beyond = max(metrics.initialization - start_allowance(metrics), 0.0)
        factors = float(policy.START_SAVED_LEAST), float(policy.START_SAVED), 1.0
    else:
        low, value = policy.UNMODELLED[finding.confidence]
        beyond, factors = whole * lost_share(finding), (low, value, 1.0)
    seconds = Interval(*(min(beyond * factor, outside) for factor in factors))
    most = float(policy.GAIN_MOST)
    speedup = Interval(*(1 / (1 - min(one / whole, most)) for one in attrs.astuple(seconds)))
    return Gain(NOTHING, NOTHING, speedup, _dollars(seconds, per_hour), seconds, "job")


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(*(one * factor for one in attrs.astuple(interval)))


def _dollars(seconds: Interval, per_hour: float | None) -> Interval | None:
    return _times(seconds, per_hour / 3600) if per_hour is not None and math.isfinite(per_hour) else None
