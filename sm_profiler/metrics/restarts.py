"""Costs of a job's interruptions: steps done again since the last checkpoint; and the seconds that are billed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler.formats.event_names import SAVE
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
    saves = metrics.records.get(SAVE)
    if not saves or saves.count != len(saves.longest):  # the last ones might be missing
        return None
    found = [one for rank in metrics.ranks if (one := _of_rank(rank, saves.longest)) is not None]
    return max(found, key=lambda one: one.seconds, default=None)


def _of_rank(rank: Rank, saves: tuple[Record, ...]) -> Repeated | None:
    rows = rank.steps
    steps, seconds, known = 0, 0.0, False
    for number, at in enumerate(rank.attempts.breaks):
        begin = rank.attempts.breaks[number - 1] if number else 0
        ended = float(rows.end[at - 1]) / 1e6
        saved = max((one.end for one in saves if one.end <= ended), default=None)
        if saved is None:
            continue
        known = True
        since = max(saved, float(rows.start[begin]) / 1e6)
        of_attempt = slice(begin, at)
        again = (rows.start[of_attempt] / 1e6 >= since) & (rows.mode[of_attempt] == TRAIN)
        count = int(again.sum())
        if rank.judged is not None and at > begin:  # these rows are a sample of all steps
            count = round(count * rank.all_steps / max(len(rows), 1))
        steps, seconds = steps + count, seconds + max(ended - since, 0.0)
    return Repeated(steps, seconds) if known else None


@attrs.frozen
class Billed:
    """Seconds of training, and how many of them are billed; spot instances bill a part."""

    spot: bool
    training_s: float
    billable_s: float

    def as_dict(self) -> dict[str, Any]:
        """Return the object of report.json."""
        return {"spot": self.spot, "training_s": self.training_s, "billable_s": self.billable_s}


def billed_time(description: Mapping[str, Any]) -> Billed | None:
    """Return the bill of a job that ended; None if its description has none."""
    training, billable = (_seconds(description.get(f"{kind}TimeInSeconds")) for kind in ("Training", "Billable"))
    if training is None or billable is None:
        return None
    return Billed(description.get("EnableManagedSpotTraining") is True, training, billable)


def _seconds(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and 0 <= value <= LONGEST_S else None  # type: ignore[operator, arg-type]


def unstored_attempts(metrics: JobMetrics) -> str:
    """Return that attempts have no steps, as a part of a sentence; "" if all have some."""
    found = [str(number) for number in metrics.attempts_without_steps]
    if not found:
        return ""
    named = f"attempt {found[0]}" if len(found) == 1 else f"attempts {', '.join(found[:-1])} and {found[-1]}"
    return f"steps of {named} are not stored"


def costs_as_dict(metrics: JobMetrics, hourly: float | None) -> dict[str, Any]:
    """Return the parts of report.json's `job` about interruptions, instances and the bill; none that is unknown."""
    found: dict[str, Any] = {}
    count, down_s = metrics.interruptions
    if count:
        repeated = repeated_work(metrics)
        found["interruptions"] = {
            "count": count,
            "down_s": round(down_s, 3),
            "repeated_steps": repeated and repeated.steps,
            "repeated_s": repeated and round(repeated.seconds, 3),
            "attempts_without_steps": list(metrics.attempts_without_steps),
            "repeated_usd": round(repeated.seconds * hourly / 3600, 4) if repeated and hourly is not None else None,
        }
    types = metrics.node_types
    if len(types) > 1:
        found["instance_types"] = types
    billed = billed_time(metrics.description)
    if billed is not None:
        found["billed"] = billed.as_dict()
    return found
