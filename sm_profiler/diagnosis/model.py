"""Content of a report: evidence, findings, the verdict, and the report itself."""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler._version import __version__
from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.ledger import Totals
from sm_profiler.formats.event_names import PROFILING
from sm_profiler.formatting import in_unit, percent
from sm_profiler.metrics.hang import Hang, find_hang
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.metrics.startup import costs_as_dict, start_parts

SCHEMA_VERSION = "1.0"
_COMPARED = {  # `Evidence.held` → words around the threshold
    "good from": "good: {} or more",
    "used from": "in use: {} or more",
    "judged from": "at least {} needed",
    "others": "other ranks: {}",
    "before": "{} before",
}


@attrs.frozen
class Evidence:
    """One measured number behind a finding.

    Attributes:
        metric: name of the measurement.
        value: number or text, in `unit`.
        threshold: number it was compared with, in the same unit, or None.
        where: rank or node it was measured at; "" for the whole job.
        unit: `share` (0 to 1), `s`, `ms`, `percent`, `steps`, …; "" for counts and texts.
        held: meaning of the threshold: `limit` (good up to it), `good from`, `used from`, `judged from`, `usually`,
            `others` (the other ranks' value), `before` (the value before a change), `±` (the value's standard error).
    """

    metric: str
    value: float | str
    threshold: float | None = None
    where: str = ""
    unit: str = ""
    held: str = "limit"

    @property
    def compared(self) -> str:
        """Text of the threshold; "" without one."""
        if self.threshold is None:
            return ""
        number = in_unit(self.threshold, self.unit)
        return _COMPARED.get(self.held, f"{self.held} {{}}").format(number)

    def as_dict(self) -> dict[str, Any]:
        """Return the object of report.json."""
        return attrs.asdict(self)


@attrs.frozen
class Location:
    """A line of code that a finding points to.

    Attributes:
        file: path as the training process saw it.
        line: number of the line, from 1.
        function: function that contains it.
        share: part of the time lost to the finding that was spent there, 0 to 1.
        phase: part of the loop in which it was seen; "" if unknown.
        rank: process that it was seen in, `algo-1-0`; "" for all.
        source: text of the line as it ran; "" if unknown.
    """

    file: str
    line: int
    function: str
    share: float
    phase: str = ""
    rank: str = ""
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the object of report.json."""
        return {**attrs.asdict(self), "share": round(self.share, 4)}


@attrs.frozen
class Interval:
    """An estimate and the range that the truth probably lies in."""

    low: float
    value: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return the object of report.json."""
        return {name: round(value, 6) for name, value in attrs.asdict(self).items()}


@attrs.frozen
class Gain:
    """Time and money that the repair of a finding saves.

    Attributes:
        seconds_per_step: seconds of a training step.
        share_of_loop: part of the loop, 0 to 1.
        speedup: factor by which the loop becomes faster, or the job.
        usd: dollars for the whole job; None if its price is unknown.
        seconds: seconds of the whole job.
        usd_is_rough: the price behind `usd` is estimated.
        of: what the speedup refers to: `loop`, `job` for time that is lost outside the loop, or `steps` for some steps of it.
    """

    seconds_per_step: Interval
    share_of_loop: Interval
    speedup: Interval
    usd: Interval | None = None
    seconds: Interval = Interval(0.0, 0.0, 0.0)
    of: str = "loop"
    usd_is_rough: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the object of report.json."""
        return {
            "seconds_per_step": self.seconds_per_step.as_dict(),
            "share_of_loop": self.share_of_loop.as_dict(),
            "speedup": self.speedup.as_dict(),
            "usd": self.usd and self.usd.as_dict(),
            "seconds": self.seconds.as_dict(),
            "of": self.of,
        }


@attrs.frozen
class Finding:
    """One diagnosed cause.

    Attributes:
        kind: class of the verdict if this finding leads.
        headline: one sentence.
        evidence: numbers behind it, strongest first.
        next_step: advice, one or two sentences.
        share_of_time: lost share of the time, 0 to 1.
        of: the time it is a share of: `loop` or `job`.
        confidence: low, medium or high.
        where: lines of code that it points to, the most expensive first; at most five.
        gain: what its repair saves; None if that is not known.
        label: name on the page; that of the class unless the judge sets another.
        ranks: names of the ranks that cause it; empty if all do, or if that is unknown.
        stage: pipeline stage that causes it; "" if none does.
        doubt: why the confidence is not higher, in a few words; "" if it is high, or if no reason is known.
        larger_batch: its repair is a larger batch, and its gain that of one `limits.BATCH_LARGER` times as large.
    """

    kind: Class
    headline: str
    evidence: tuple[Evidence, ...]
    next_step: str
    share_of_time: float
    of: str = "loop"
    confidence: str = "medium"
    where: tuple[Location, ...] = ()
    gain: Gain | None = None
    label: str = attrs.field(default=attrs.Factory(lambda self: self.kind.label, takes_self=True))
    ranks: tuple[str, ...] = ()
    stage: str = ""
    doubt: str = ""
    larger_batch: bool = False

    def __attrs_post_init__(self) -> None:
        """Take the reason from a `Confidence`."""
        if isinstance(self.confidence, Confidence):
            object.__setattr__(self, "doubt", self.confidence.reason)
            object.__setattr__(self, "confidence", str(self.confidence))

    @property
    def confidence_text(self) -> str:
        """The confidence with its reason: `medium confidence: only 60 steps`."""
        return f"{self.confidence} confidence{f': {self.doubt}' if self.doubt else ''}"

    @property
    def is_open(self) -> bool:
        """True if it names neither a problem nor health."""
        return self.kind is Class.INCONCLUSIVE or (self.kind is Class.BALANCED and self.label != self.kind.label)

    def as_dict(self) -> dict[str, Any]:
        """Return the object of report.json."""
        return {
            "class": self.kind.value,
            "headline": self.headline,
            "evidence": [one.as_dict() for one in self.evidence],
            "next_step": self.next_step,
            "share_of_time": round(self.share_of_time, 4),
            "share_of": self.of,
            "confidence": self.confidence,
            "confidence_reason": self.doubt,
            "where": [one.as_dict() for one in self.where],
            "gain": self.gain and self.gain.as_dict(),
            "ranks": list(self.ranks),
            "stage": self.stage,
        }


@attrs.frozen
class Verdict:
    """The leading finding, the others, and what could not be judged."""

    main: Finding
    also: tuple[Finding, ...] = ()
    not_judged: tuple[tuple[str, str], ...] = ()  # subject and reason
    shared_wait: float = 0.0  # share of the loop in which other programs kept the training waiting for a core

    @property
    def kind(self) -> Class:
        """The verdict's class."""
        return self.main.kind

    def as_dict(self) -> dict[str, Any]:
        """Return the object of report.json."""
        also = [finding.as_dict() for finding in self.also]
        missing = [{"what": what, "why": why} for what, why in self.not_judged]
        return {
            **self.main.as_dict(),
            "also": also,
            "not_judged": missing,
            "shared_wait": round(self.shared_wait, 4),
        }


@attrs.frozen
class Report:
    """Content of report.json, the page, the notebook and the terminal summary; holds no open file.

    Attributes:
        metrics: metrics of the job.
        verdict: the verdict.
        rules: rule → its report object.
        broken: rule, fold or judge → error with which it failed.
        quality: data that could not be read, and collectors that the hook switched off.
        cost: estimated cost of the lost time; None if the instance type is unknown.
        source: location of the profile.
        generated: time at which the report was made.
        link: address of its page, for messages; "" if that is unknown.
        gpu_traces: what traces of torch.profiler show of each rank; see `report.gpu.tables`.
        ledger: where the time of each rank went; None without steps.
    """

    metrics: JobMetrics
    verdict: Verdict
    rules: dict[str, dict[str, Any]]
    broken: dict[str, str] = attrs.field(factory=dict)
    quality: dict[str, Any] = attrs.field(factory=dict)
    cost: dict[str, Any] | None = None
    source: str = ""
    generated: str = ""
    link: str = attrs.field(default="", kw_only=True)
    gpu_traces: tuple[dict[str, Any], ...] = ()
    ledger: Totals | None = None

    @property
    def hang(self) -> Hang | None:
        """The processes whose steps stopped, with their stacks; None if the training went on."""
        return find_hang(self.metrics)

    @property
    def profiling_cost(self) -> str:
        """The hook's own time, as text."""
        share = self.metrics.overhead
        return (
            "not recorded"
            if share is None
            else f"{100 * share:.2g} % of the training loop, measured by the hook itself"
        )

    @property
    def profiling_alarm(self) -> str | None:
        """Advice about a profiler that slowed the job noticeably; None if it did not."""
        share = self.metrics.overhead or 0.0
        if not share >= limits.PROFILING_COST:
            return None
        text = f"Profiling cost {100 * share:.2g} % of the training loop."
        if PROFILING not in self.metrics.records:
            return text
        return f"{text} In a longer job, the share of its windows is smaller; leave out windows that you do not need."

    @property
    def load_alarm(self) -> str | None:
        """A warning that other programs stretched all times; None if they did not, or if the headline has it."""
        main, share = self.verdict.main, self.verdict.shared_wait
        if share < limits.NOTICEABLE or main.kind is Class.BALANCED:
            return None
        return (
            f"Other programs kept the training waiting for a CPU core {percent(share)} of the loop. On an idle machine, all times "
            "are shorter, and their shares may differ."
        )

    @property
    def damage_alarm(self) -> str | None:
        """Data that could not be read, or written, of a job that is over; None if nothing is missing."""
        damage = self.quality.get("damage")
        return damage["sentence"] if damage and not self.metrics.running else None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of report.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "generated": self.generated,
            "source": self.source,
            "job": {
                **self.metrics.as_dict(),
                "startup": [part.as_dict() for part in start_parts(self.metrics)],
                **costs_as_dict(self.metrics, self.cost["per_hour"] if self.cost else None),
            },
            "end": self.metrics.ending.as_dict(),
            "verdict": self.verdict.as_dict(),
            "hang": hang.as_dict() if (hang := self.hang) else None,
            "profiling_cost": self.profiling_cost,
            "rules": self.rules,
            "broken_rules": self.broken,
            "data_quality": self.quality,
            "cost": self.cost,
            "gpu_traces": list(self.gpu_traces),
            "ledger": self.ledger and self.ledger.as_dict(),
        }
