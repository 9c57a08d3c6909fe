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
    table, metrics = loop_table(context.ranks), context.metrics
    loop = _Budget.of(table) if table is not None else None
    findings = [verdict.main, *verdict.also]
    left = metrics.duration  # seconds of the job that no finding has claimed
    for place in _in_order(findings):
        finding, gain = findings[place], None
        if finding.kind.is_healthy or finding.kind is Class.INCONCLUSIVE or finding.kind in WITHOUT_TIME:
            pass
        elif finding.of == "job":
            gain = _gain_of_job(finding, metrics, left, per_hour)
        elif loop is not None:
            gain = loop.gain(claim_of(finding, context, loop.table), per_hour)
        findings[place] = attrs.evolve(finding, gain=gain)
        left = max(left - (gain.seconds.value if gain else 0.0), 0.0)
    return attrs.evolve(verdict, main=findings[0], also=tuple(findings[1:]))


def _in_order(findings: list[Finding]) -> list[int]:
    """Return the places of the findings in the order of their claims.

    It is that of the verdict, but causes come before the symptoms that they explain, and time of the loop before time of
    the job, which may contain it.
    """

    def causes(finding: Finding) -> list[Finding]:
        kind = finding.kind
        return [one for one in findings if kind in policy.EXPLAINS.get(one.kind, ()) or kind in one.explains]

    def depth(finding: Finding, seen: frozenset[Class] = frozenset()) -> int:
        above = [one for one in causes(finding) if one.kind not in seen | {finding.kind}]
        return 1 + max((depth(one, seen | {finding.kind}) for one in above), default=-1)

    return sorted(range(len(findings)), key=lambda place: (findings[place].of == "job", depth(findings[place])))


@attrs.define(eq=False)
class _Budget:
    """Time of the loop that is left to be saved, by part and block of steps."""

    table: LoopTable
    blocks: Blocks
    whole: Floats  # shape (parts, blocks)
    left: Floats  # of it
    spread: float  # of a step from run to run
    claimed: float = 0.0  # share of the loop

    @classmethod
    def of(cls, table: LoopTable) -> _Budget:
        blocks = Blocks.of(table.length)
        whole = blocks.sums(table.seconds) * float(policy.GAIN_MOST)
        return cls(table, blocks, whole, whole.copy(), unsteadiness(table.training[: table.steps]))

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
        taken, held = np.zeros_like(wanted), np.zeros_like(wanted)
        for key in claim.parts:
            part = self.left[row_keys().index(key)]
            held += self.whole[row_keys().index(key)]
            found = np.minimum(part, wanted - taken)
            part -= found
            taken += found
        if not claim.strict:  # what these parts never held lies in others; what is claimed already does not
            beyond, rest = np.maximum(wanted - held, 0.0), self.left.sum(axis=0)
            share = np.where(rest > 0, np.minimum(beyond / np.where(rest > 0, rest, 1.0), 1.0), 0.0)
            taken += rest * share
            self.left *= 1 - share
        return taken


def _gain_of_job(finding: Finding, metrics: JobMetrics, left: float, per_hour: float | None) -> Gain | None:
    """Return what the repair of a finding about the whole job saves; None if the job's length is unknown."""
    whole = metrics.duration
    if whole <= 0:
        return None
    if finding.kind is Class.INITIALIZATION_BOUND and metrics.initialization is not None:
        beyond = max(metrics.initialization - start_allowance(metrics), 0.0)
        factors = float(policy.START_SAVED_LEAST), float(policy.START_SAVED), 1.0
    else:
        low, value = policy.UNMODELLED[finding.confidence]
        beyond, factors = whole * lost_share(finding), (low, value, 1.0)
    seconds = Interval(*(min(beyond * factor, left) for factor in factors))
    most = float(policy.GAIN_MOST)
    speedup = Interval(*(1 / (1 - min(one / whole, most)) for one in attrs.astuple(seconds)))
    return Gain(NOTHING, NOTHING, speedup, _dollars(seconds, per_hour), seconds, "job")


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(*(one * factor for one in attrs.astuple(interval)))


def _dollars(seconds: Interval, per_hour: float | None) -> Interval | None:
    return _times(seconds, per_hour / 3600) if per_hour is not None and math.isfinite(per_hour) else None
