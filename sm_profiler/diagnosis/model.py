"""Content of a report: evidence, findings, the verdict, and the report itself.

The `msgspec.Struct`s are records of report.json as well (`report.report_json`): fields are added, with a default, and never
renamed.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import attrs
import msgspec
from msgspec.structs import force_setattr

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.ledger import Totals
from sm_profiler.formats.event_names import PROFILING
from sm_profiler.formatting import duration, in_unit, percent, percent_of_cost, plural
from sm_profiler.metrics.hang import Hang, find_hang
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.metrics.record_fold import Records
from sm_profiler.source import FileQuality

# How far the ratio of two runs of the same training lies from 1 by chance.
_TWO_RUNS = NormalDist().inv_cdf((1 + limits.INTERVAL) / 2) * math.sqrt(2) * limits.REPEAT
_COMPARED = {  # `Evidence.held` → words around the threshold
    "good from": "good: {} or more",
    "used from": "in use: {} or more",
    "judged from": "at least {} needed",
    "others": "other ranks: {}",
    "before": "{} before",
}


class Evidence(msgspec.Struct, frozen=True):
    """One measured number behind a finding.

    Attributes:
        metric: name of the measurement.
        value: number or text, in `unit`; null if it is not finite.
        threshold: number it was compared with, in the same unit, or null.
        where: rank or node it was measured at; empty for the whole job.
        unit: `share` (0 to 1), `s`, `ms`, `percent`, `steps`, …; empty for counts and texts.
        held: meaning of the threshold: `limit` (good up to it), `good from`, `used from`, `judged from`, `usually`,
            `others` (the other ranks' value), `before` (the value before a change), `±` (the value's standard error).
    """

    metric: str
    value: float | str | None
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


class Location(msgspec.Struct, frozen=True):
    """A line of code that a finding points to.

    Attributes:
        file: path as the training process saw it.
        line: number of the line, from 1.
        function: function that contains it.
        share: part of the time lost to the finding that was spent there, 0 to 1; 0 if only the definition of what takes it
            is known.
        phase: part of the loop in which it was seen; empty if unknown.
        rank: process that it was seen in, `algo-1-0`; empty for all.
        source: text of the line as it ran; empty if unknown.
        samples: number of samples that show it; 0 if it was timed, or if that is unknown.
    """

    file: str
    line: int
    function: str
    share: float
    phase: str = ""
    rank: str = ""
    source: str = ""
    samples: int = 0


class Interval(msgspec.Struct, frozen=True):
    """An estimate and the range that the truth probably lies in."""

    low: float
    value: float
    high: float

    def times(self, factor: float) -> Interval:
        """Return a multiple of it."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    @property
    def speedup(self) -> Interval:
        """The factor by which a run without these shares of its time is faster than another run with them.

        Two runs differ by chance, too. That does not take away more than half of what is certain.
        """
        low, value, high = (1 / (1 - part) for part in (self.low, self.value, self.high))
        slower, faster = (math.exp(math.hypot(_TWO_RUNS, math.log(one))) for one in (value / low, high / value))
        least = 1 + (low - 1) * limits.MAJORITY
        return Interval(max(value / slower, least), value, min(value * faster, 1 / (1 - limits.MOST_SAVED)))


class Gain(msgspec.Struct, frozen=True):
    """Time and money that the repair of a finding saves.

    Attributes:
        seconds_per_step: seconds of a training step.
        share_of_loop: part of the loop, 0 to 1.
        speedup: factor by which the loop becomes faster, or the job.
        usd: dollars for the whole job; null if its price is unknown.
        seconds: seconds of the whole job.
        of: what the speedup refers to: `loop`, `job` for time that is lost outside the loop, or `steps` for some steps of it.
        usd_is_rough: the price behind `usd` is estimated.
    """

    seconds_per_step: Interval
    share_of_loop: Interval
    speedup: Interval
    usd: Interval | None = None
    seconds: Interval = Interval(0.0, 0.0, 0.0)
    of: str = "loop"
    usd_is_rough: bool = False

    @classmethod
    def of_share(cls, saved: Interval, step: float, whole: float, part: float = 1.0, of: str = "loop") -> Gain:
        """Return the gain of a repair that saves a share of some steps.

        Args:
            saved: the share.
            step: seconds of a step, on average over all steps.
            whole: seconds of all steps.
            part: share of the time of all steps that those of `saved` take.
            of: what the speedup refers to.
        """
        return cls(saved.times(part * step), saved.times(part), saved.speedup, None, saved.times(part * whole), of)


class Finding(msgspec.Struct, frozen=True):
    """One diagnosed cause.

    Attributes:
        kind: class of the verdict if this finding leads.
        headline: one sentence.
        evidence: numbers behind it, strongest first.
        next_step: advice, one or two sentences.
        share_of_time: lost share of the time, 0 to 1; 0 for memory that grows, which costs none until the job dies.
        of: the time it is a share of: `loop` or `job`.
        confidence: low, medium or high.
        where: lines of code that it points to, the most expensive first; at most five.
        gain: what its repair saves; null if that is not known.
        label: name on the page; that of the class unless the judge sets another.
        ranks: names of the ranks that cause it; empty if all do, or if that is unknown.
        stage: pipeline stage that causes it; empty if none does.
        doubt: why the confidence is not higher, in a few words; empty if it is high, or if no reason is known.
        larger_batch: its repair is a larger batch, and its gain that of a much larger batch.
        steps: numbers of the first and the last step in which it happens; null for all steps, or if that is unknown.
    """

    kind: Class = msgspec.field(name="class")
    headline: str
    evidence: tuple[Evidence, ...] = ()
    next_step: str = ""
    share_of_time: float = 0.0
    of: str = msgspec.field(name="share_of", default="loop")
    confidence: str = "medium"
    where: tuple[Location, ...] = ()
    gain: Gain | None = None
    label: str = ""
    ranks: tuple[str, ...] = ()
    stage: str = ""
    doubt: str = msgspec.field(name="confidence_reason", default="")
    larger_batch: bool = False
    steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Fill in the label, and take the reason from a `Confidence`."""
        if not self.label:
            force_setattr(self, "label", self.kind.label)
        if isinstance(self.confidence, Confidence):
            force_setattr(self, "doubt", self.confidence.reason)
            force_setattr(self, "confidence", str(self.confidence))

    @property
    def confidence_text(self) -> str:
        """The confidence with its reason: `medium confidence: only 60 steps`."""
        return f"{self.confidence} confidence{f': {self.doubt}' if self.doubt else ''}"

    @property
    def is_end(self) -> bool:
        """True if it is how the job ended: its ranks differ in steps, or one died."""
        return self.of == "job" and self.kind in (Class.DEAD_RANK, Class.UNEQUAL_STEPS)

    @property
    def is_open(self) -> bool:
        """True if it names neither a problem nor health."""
        return self.kind is Class.INCONCLUSIVE or (self.kind is Class.BALANCED and self.label != self.kind.label)


@attrs.frozen
class Verdict:
    """The leading finding, the others, and what could not be judged."""

    main: Finding
    also: tuple[Finding, ...] = ()
    not_judged: tuple[tuple[str, str], ...] = ()  # subject and reason
    shared_wait: float = 0.0  # share of the loop in which other programs kept the training waiting for a core

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that name a problem, the leading one first."""
        found = (self.main, *self.also)
        return tuple(finding for finding in found if not (finding.kind.is_healthy or finding.is_open))

    @property
    def kind(self) -> Class:
        """The verdict's class."""
        return self.main.kind


class DamagedFiles(msgspec.Struct, frozen=True):
    """Files that are damaged or cut off, events that a failing disk did not take, and what is therefore missing.

    Attributes:
        files: number of files.
        sentence: all of this as text.
        doubt: the reason for a lower confidence.
    """

    files: int
    sentence: str
    doubt: str


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Data that could not be read, and collectors that the hook switched off.

    Attributes:
        sentence: the summary.
        files: number of files.
        states: state of a file → number of files.
        lost: records that could not be read.
        rows: files that were not read completely, the most lost records first.
        damage: null if no file is damaged.
        more: files that are not in `rows`.
        collectors: one line for each collector in an unusual state.
    """

    sentence: str
    files: int
    states: dict[str, int]
    lost: int
    rows: tuple[FileQuality, ...]
    damage: DamagedFiles | None = None
    more: int
    collectors: tuple[str, ...]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the job and of its losses, estimated from a dated price table.

    Attributes:
        instance_type: types of the instances, joined by ` + `.
        nodes: number of instances.
        per_hour: dollars for all instances.
        lost_per_hour: `lost_usd` for each billed hour.
        lost_usd: what is lost of the job so far: what the repair of each finding saves; all if the job failed.
        prices: origin of the prices.
        price_estimated: no list price of one of the types is known.
        smaller_instance: a cheaper type that would do; null if there is none.
        estimate: always true.
        sentence: all of this as text.
    """

    instance_type: str
    nodes: int
    per_hour: float
    lost_per_hour: float
    lost_usd: float
    prices: str
    price_estimated: bool = False
    smaller_instance: str | None = None
    estimate: bool = True
    sentence: str


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
        gpu_traces: what traces of torch.profiler show of each rank; see `gpu_traces.step_view.describe`.
        ledger: where the time of each rank went; None without steps.
    """

    metrics: JobMetrics
    verdict: Verdict
    rules: dict[str, dict[str, Any]]
    broken: dict[str, str]
    quality: Quality
    cost: Cost | None = None
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
        if share is None:
            return "not recorded"
        text = f"{percent_of_cost(share)} of the training loop, measured by the hook itself{self._parts_of_cost}"
        return f"{text}; the run is too short to show the share in a longer one" if self.is_short_for_cost else text

    @property
    def cost_of_windows(self) -> float | None:
        """The share of the loop that the hook spent on its windows, which a longer job does not repeat; None without windows."""
        own = self.metrics.records.get(PROFILING, Records())  # of any job that the hook recorded, a few moments
        return self.metrics.windows_cost if any(one.args.kind == "window" for one in own.longest) else None

    @property
    def _parts_of_cost(self) -> str:
        share, windows = self.metrics.overhead or 0.0, self.cost_of_windows
        if windows is None:
            return ""
        return f": {percent_of_cost(windows)} for its windows, and {percent_of_cost(max(share - windows, 0.0))} for the rest"

    @property
    def is_short_for_cost(self) -> bool:
        """True if the profiler's windows and other work take most of the loop, as they do of a few steps only."""
        loops = [rank.excluded / (rank.loop + rank.excluded) for rank in self.metrics.ranks if rank.loop > 0]
        return max([self.metrics.overhead or 0.0, *loops]) >= limits.MAJORITY

    @property
    def profiling_alarm(self) -> str | None:
        """Advice about a profiler that slowed the job noticeably; None if it did not."""
        share = self.metrics.overhead or 0.0
        if not share >= limits.FLOOR:  # a job that the profiler slows by more is not the job that was to be judged
            return None
        if self.is_short_for_cost:
            return (
                f"Profiling cost {percent_of_cost(share)} of the training loop. The run is too short to show the share in a longer "
                "one: the profiler's own work takes most of it."
            )
        text = f"Profiling cost {percent_of_cost(share)} of the training loop{self._parts_of_cost}."
        if self.cost_of_windows is None:
            return text
        return f"{text} A longer job pays no more for windows, and a smaller share for the rest, as its first steps are recorded more closely. Leave out windows that you do not need."

    @property
    def left_out_alarm(self) -> str | None:
        """A warning that a part of the loop is not judged because the profiler may have disturbed it; None if that is little."""
        ranks = [rank for rank in self.metrics.ranks if rank.left_out and rank.loop > 0]
        rank = max(ranks, key=lambda rank: rank.excluded / (rank.loop + rank.excluded), default=None)
        if rank is None or rank.excluded < limits.SHOWN * (rank.loop + rank.excluded):
            return None
        of = f" of {rank.name}" if len(self.metrics.ranks) > 1 else ""
        return (
            f"Left out: {duration(rank.excluded)} of {duration(rank.loop + rank.excluded)}{of} ({rank.left_out:,} of "
            f"{plural(rank.train_steps, 'step')}) in or beside the profiler's windows, which may disturb them; shares are those "
            "of the rest."
        )

    @property
    def switched_off_alarm(self) -> str | None:
        """A warning that the configuration switched the profiler off for a while; None if it did not."""
        rank = max(self.metrics.ranks, key=lambda rank: rank.attempts.off_s, default=None)
        if rank is None or not rank.attempts.off_s:
            return None
        after = [plural(int(rank.train[:at].sum()), "recorded step") for at in rank.attempts.breaks]
        is_known = rank.attempts.count == 1 and rank.judged is None and len(after) <= limits.REPEATS
        where = f", after {' and '.join(after)}" if is_known else ""
        whole = duration(rank.loop + rank.excluded + rank.attempts.off_s)
        return (
            f"The profiler was switched off for {duration(rank.attempts.off_s)} of {whole}{where}: the steps of that time are not "
            "in the report."
        )

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
        damage = self.quality.damage
        return damage.sentence if damage and not self.metrics.running else None
