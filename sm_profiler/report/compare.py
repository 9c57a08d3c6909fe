"""Compare two runs: step time and its parts, each change with a confidence interval; as text and as a page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import Blocks
from sm_profiler.diagnosis.model import Finding, Gain, Interval, Report
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.ledger import row_keys
from sm_profiler.diagnosis.profile.loop import Loop, loop_of_parts
from sm_profiler.errors import ConfigError
from sm_profiler.formats import recorded
from sm_profiler.formats.columns import Floats
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.printable import printable
from sm_profiler.render.page import Link, render_page
from sm_profiler.render.words import Summary, factors, runs_of
from sm_profiler.report.report_json import plain


@attrs.frozen
class Prediction:
    """The predicted speedup of a repair, and the measured one.

    Attributes:
        findings: classes of the earlier run's findings that the prediction is about.
        repaired: the later run hardly has them, if at all.
        predicted: speedup of the loop by their gains.
        measured: how many times as fast the later run is, by the numbers of the comparison; None if it still has them,
            or if other programs delayed a run too much to show it.
    """

    findings: tuple[str, ...]
    repaired: bool
    predicted: Interval
    measured: Interval | None

    @property
    def held(self) -> bool | None:
        """True if the measured value is in the predicted range, as both are shown; None without one."""
        if self.measured is None:
            return None
        digits = 1 if self.predicted.high - self.predicted.low >= DIGITS_FROM else 2
        low, value, high = (
            round(one, digits) for one in (self.predicted.low, self.measured.value, self.predicted.high)
        )
        return low <= value <= high

    @property
    def sentence(self) -> str:
        names = " and ".join(self.findings)
        if self.measured is None and self.repaired:
            return f"Repairing {names}: predicted {factors(self.predicted)} times as fast, which times with this load of other programs do not test."
        if self.measured is None:
            is_are = "is" if len(self.findings) == 1 else "are"
            return f"{names} {is_are} still found: predicted {factors(self.predicted)} times as fast once repaired."
        end = ""
        if self.measured.low <= 1 <= self.measured.high:
            end = ", which may be chance"
        elif not self.held:
            end = f", {'less' if self.measured.value < self.predicted.low else 'more'} than predicted"
        return f"Repairing {names}: predicted {factors(self.predicted)} times as fast, measured {factors(_point(self.measured.value))}{end}."

    def as_dict(self) -> dict[str, Any]:
        """Return the object of compare.json."""
        return {**plain(self), "held": self.held, "sentence": self.sentence}


def predictions(before: Report, after: Report, measured: Interval | None) -> tuple[Prediction, ...]:
    """Return the predictions of a run: for the findings that the next one hardly has, and for each that is left.

    What is gone was not repaired if the next run is slower, and is not known to be if a new cause accounts for it that
    the run is not as fast as predicted: that one may hide the other.
    """
    left = {finding.kind: finding.gain for finding in (after.verdict.main, *after.verdict.also)}

    def is_gone(finding: Finding, gain: Gain) -> bool:
        if finding.kind not in left:
            return True
        now = left[finding.kind]
        return now is not None and now.seconds_per_step.value <= HARDLY * gain.seconds_per_step.value

    known = [
        (finding, finding.gain)
        for finding in (before.verdict.main, *before.verdict.also)
        if finding.gain is not None and finding.gain.of == "loop" and finding.gain.speedup.high > 1
    ]
    gone = [pair for pair in known if is_gone(*pair)]
    found = [_prediction([pair], measured, repaired=False) for pair in known if pair not in gone]
    if gone and (measured is None or measured.high >= 1):
        repaired = _prediction(gone, measured, repaired=True)
        if measured is None:
            return (repaired, *found)
        before_that = {finding.kind for finding in (before.verdict.main, *before.verdict.also)}
        new = sum(_share(gain) for kind, gain in left.items() if kind not in before_that) / measured.value
        hidden = new > HARDLY * sum(_share(gain) for _, gain in gone)
        if not hidden or measured.value >= repaired.predicted.low:
            return (repaired, *found)
    return tuple(found)


def _share(gain: Gain | None) -> float:
    """Return what a repair saves of the loop; 0 if it is not about that."""
    return gain.share_of_loop.value if gain is not None and gain.of == "loop" else 0.0


def _prediction(group: list[tuple[Finding, Gain]], measured: Interval | None, *, repaired: bool) -> Prediction:
    """Combine the gains of some findings: their shares of the loop add up."""
    shares = [gain.share_of_loop for _, gain in group]
    value = sum(one.value for one in shares)
    low = max(value - math.hypot(*(one.value - one.low for one in shares)), 0.0)
    high = min(value + math.hypot(*(one.high - one.value for one in shares)), max(value, 0.99))
    predicted = Interval(low, value, high).speedup
    findings = tuple(finding.kind.value for finding, _ in group)
    return Prediction(findings, repaired, predicted, measured if repaired else None)


def compute_seconds(metrics: JobMetrics) -> float | None:
    """Return the mean seconds of a training step without waiting for data; None if unknown."""
    table = loop_of_parts(Case(metrics, {}).ranks)
    if table is None:
        return None
    return float((table.training - table.of_activity("wait")).sum()) / table.steps or None


def _point(value: float) -> Interval:
    return Interval(value, value, value)


HARDLY = 0.2  # of what a repair saved; if it still saves less, it was made
DIGITS_FROM = 0.15  # narrower ranges of factors are shown with two decimals
MAX_PREDICTIONS = 2  # lines of the terminal; compare.json has all
FACTOR_FROM = 2.0  # larger changes are worded as a factor
SAME_BATCH = 0.02  # an epoch's last, smaller batch makes the mean of equal batches differ by less
LOAD_FROM = 0.01  # of the loop; less of other programs' load changes no result
NEGLIGIBLE = 0.001  # of a step; smaller parts have no row
LOOP = "loop"  # in place of the key of a part: the step with its evaluation
AROUND = "around"  # in place of the keys of `_AROUND`: what is outside the phases, if waits for data are not known
OTHERS = "others"  # in place of the key of a part: what other programs add to `LOOP`
ELAPSED = "elapsed"  # in place of the key of a part: `LOOP` as the clock shows it, with `OTHERS`
STEP, SAMPLE = "step", "sample"
_AROUND = ("wait", "outside")
_NOTHING_S = 1e-9  # below what clocks resolve: what rounding leaves of a difference
_LABELS = {
    LOOP: "Step with evaluation",
    AROUND: "Data and other code",
    OTHERS: "Waiting for a core",
    ELAPSED: "By the clock",
}


@attrs.frozen
class Change:
    """Change of one part of a step; times in seconds.

    Attributes:
        part: key of the part, `parts.WHOLE`, `LOOP`, `AROUND`, `OTHERS` or `ELAPSED`.
        before, after: mean time per step or sample, without the load of other programs, which is in `OTHERS`.
        change: after / before - 1; None if before is 0 but for rounding.
        low, high: 95 % confidence interval of `change`; it covers the change with and without that load.
    """

    part: str
    before: float
    after: float
    change: float | None
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def sentence(self) -> str:
        """The change: `take 37 % less time (31 to 42 %)`, `are 5.0 times as fast (4.5 to 5.6)`."""
        ratio, low, high = (1 + (one or 0.0) for one in (self.change, self.low, self.high))
        if ratio >= FACTOR_FROM:
            return f"take {_factor(ratio)} times as long ({_factor(low)} to {_factor(high)})"
        if high > 0 and ratio <= 1 / FACTOR_FROM:
            fastest = _factor(1 / low) if low > 0 else "more"
            return f"are {_factor(1 / ratio)} times as fast ({_factor(1 / high)} to {fastest})"
        less = ratio < 1
        ends = sorted(1 - one if less else one - 1 for one in (low, high))
        interval = f"{_short(ends[0])} to {_short(ends[1])} %"
        return f"take {_short(abs(ratio - 1))} % {'less' if less else 'more'} time ({interval})"


class HasStep(Protocol):
    """A comparison of two runs, or of two recordings."""

    @property
    def step(self) -> Change | None:
        """Change of the whole step."""

    @property
    def sentence(self) -> str:
        """The summary."""


@attrs.frozen
class Comparison:
    """Changes from one run to another; pairs are before and after.

    Attributes:
        before, after: names of the runs.
        changes: the whole first; empty if the runs are not comparable, which `sentence` explains.
        sentence: the summary.
        verdicts: their classes.
        steps: their training steps after the warm-up.
        predictions: what the first run's report predicted, and what came.
        per: `step`, or `sample` if the runs have batches of different sizes.
        samples: samples that a step of all ranks trains; None if unknown.
        others: share of the loop in which other programs kept the training waiting for a core.
        elapsed: the step with its evaluation and these waits, as the clock shows it; None if there are hardly any.
        notes: what is new, and how the times were made comparable.
        measured: the times by the clock of runs that are not comparable because of other programs; without changes.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    sentence: str
    verdicts: tuple[str, str]
    steps: tuple[int, int]
    predictions: tuple[Prediction, ...] = ()
    per: str = STEP
    samples: tuple[float | None, float | None] = (None, None)
    others: tuple[float, float] = (0.0, 0.0)
    elapsed: Change | None = None
    notes: tuple[str, ...] = ()
    measured: tuple[Change, ...] = ()

    @property
    def step(self) -> Change | None:
        """Change of the whole step, with its evaluation and without the load of other programs."""
        return self.changes[0] if self.changes else None

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentences below the summary."""
        return (*(one.sentence for one in self.predictions), *self.notes)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of compare.json."""
        return {**attrs.asdict(self), "predictions": [each.as_dict() for each in self.predictions]}


@attrs.frozen
class RegressionLimit:
    """Largest accepted slowdown of a step, as a share."""

    share: float

    @classmethod
    def parse(cls, text: str) -> RegressionLimit:
        """Read `regression>5%`.

        Raises:
            ConfigError: the text has another form.
        """
        found = re.fullmatch(r"\s*regression\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
        if not found:
            raise ConfigError(f"--fail-on {text}: expected a limit such as 'regression>5%'")
        return cls(float(found[1]) / 100)

    def is_exceeded_by(self, comparison: HasStep) -> bool:
        """Return whether the second run is slower by more than the limit, and not by chance."""
        step = comparison.step
        return step is not None and step.change is not None and step.change > self.share and step.is_clear


def compare(before: Report, after: Report) -> Comparison:
    """Compare two runs by their training steps after the warm-up.

    Times are those of a sample if the batch sizes differ. Time in which other programs kept the training waiting for a
    core is taken out, and the summary states the time with it, too. A run that noticeably waited can only be called the
    faster one: other programs stop its other threads, too, which nothing counts. Intervals come from a bootstrap: blocks
    of consecutive steps are drawn, because neighbouring steps resemble each other.
    """
    metrics = before.metrics, after.metrics
    contexts = Case(metrics[0], {}), Case(metrics[1], {})
    tables = loop_of_parts(contexts[0].ranks), loop_of_parts(contexts[1].ranks)
    names = metrics[0].name, metrics[1].name
    verdicts = before.verdict.kind.value, after.verdict.kind.value
    others = contexts[0].shared_wait, contexts[1].shared_wait
    samples = _samples(*metrics)
    per = STEP if None in samples or _alike(*samples) else SAMPLE

    def result(changes: tuple[Change, ...], sentence: str, **more: Any) -> Comparison:
        steps = tuple(max((len(rank.iterations) for rank in one.ranks), default=0) for one in metrics)
        steps = tuple(table.steps if table else count for table, count in zip(tables, steps, strict=True))
        return Comparison(
            *names, changes, sentence, verdicts, (steps[0], steps[1]), per=per, samples=samples, others=others, **more
        )

    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        few = result((), "")
        sentence = (
            f"Too few training steps to compare: {few.steps[0]} and {few.steps[1]} after the first ones, more than "
            f"{thresholds.MIN_STEPS:.0f} are needed. Let each run make at least 100 steps."
        )
        return attrs.evolve(few, sentence=sentence)
    keys = _common_keys(contexts)
    evaluated = any(table.of_activity("evaluation").any() for table in known)
    draw = np.random.default_rng(limits.SEED)
    each = [
        _times(table, keys, count if per == SAMPLE else 1.0, draw) for table, count in zip(known, samples, strict=True)
    ]
    shown = [key for key in each[0] if (key != LOOP or evaluated) and _is_worth_a_row(key, *each)]
    by_clock, heavy = _change(LOOP, each[0][LOOP], each[1][LOOP], (1.0, 1.0)), max(others) >= limits.NOTICEABLE
    if not _in_spite_of_load(by_clock, others):
        measured = tuple(Change(key, each[0][key].mean, each[1][key].mean, None, None, None) for key in shown)
        untested = predictions(before, after, None)
        notes = _batch_notes(per, samples, metrics)
        return result((), _refusal(others), predictions=untested, measured=measured, notes=notes)
    loaded = max(others) >= LOAD_FROM
    own = (1 - others[0], 1 - others[1]) if loaded else (1.0, 1.0)
    changes = tuple(_certain_change(key, each[0][key], each[1][key], own) for key in shown)
    elapsed = None
    if loaded:
        waited = [times[LOOP].mean * share for times, share in zip(each, others, strict=True)]
        changes += (Change(OTHERS, waited[0], waited[1], None, None, None),)
        elapsed = attrs.evolve(by_clock, part=ELAPSED)
    step = changes[0] if changes else None
    found: tuple[Prediction, ...] = ()
    if step is not None and step.change is not None:
        found = predictions(before, after, None if heavy else _speedup(step))
    notes = (
        *_new_notes(before, after),
        *_script_notes(*metrics),
        *_batch_notes(per, samples, metrics),
        *_load_notes(others, contexts),
    )
    return result(changes, _sentence(changes, per, elapsed), predictions=found, elapsed=elapsed, notes=notes)


def _samples(before: JobMetrics, after: JobMetrics) -> tuple[float | None, float | None]:
    """Return the samples of a step of all ranks: by the loaders' batch sizes, else by the models' inputs."""
    for sizes in (
        (before.batch_size, after.batch_size),
        (before.samples_per_step, after.samples_per_step),
    ):
        if sizes[0] and sizes[1]:
            return sizes[0] * len(before.ranks), sizes[1] * len(after.ranks)
    return None, None


def _alike(one: float | None, two: float | None) -> bool:
    return one is not None and two is not None and abs(one - two) <= SAME_BATCH * max(one, two)


def _common_keys(contexts: Sequence[Case]) -> tuple[str, ...]:
    """Return the parts that both runs recorded in the same way; waiting for data may be one with what surrounds it."""
    if len({rank.on_device for context in contexts for rank in context.metrics.ranks}) > 1:
        return ("evaluation",)  # phases timed by a GPU and by a host are not comparable
    if all(context.waits_known for context in contexts):
        return row_keys()
    return (AROUND, *(key for key in row_keys() if key not in _AROUND))


@attrs.frozen(eq=False)
class _Time:
    """Mean time of a step or sample, and that of each round of the bootstrap."""

    mean: float
    rounds: Floats


def _times(table: Loop, keys: Sequence[str], samples: float | None, draw: np.random.Generator) -> dict[str, _Time]:
    """Return the time of a step or sample: of the loop, the step and each part.

    Evaluations are drawn among themselves, since their number does not depend on chance.
    """
    scale = 1 / table.steps / (samples or 1.0)
    found = {}
    for key in (parts.WHOLE, *keys):
        activities = _AROUND if key == AROUND else (key,)
        rows = table.training if key == parts.WHOLE else np.sum([table.of_activity(one) for one in activities], axis=0)
        drawn = rows[rows > 0] if key == "evaluation" else rows
        blocks = Blocks.of(drawn, draw) if len(drawn) else None
        rounds = blocks.means(blocks.seconds) * len(drawn) if blocks else np.zeros(limits.ROUNDS)
        found[key] = _Time(float(rows.sum()) * scale, rounds * scale)
    step, evaluation = found[parts.WHOLE], found["evaluation"]
    return {LOOP: _Time(step.mean + evaluation.mean, step.rounds + evaluation.rounds), **found}


def _is_worth_a_row(key: str, before: dict[str, _Time], after: dict[str, _Time]) -> bool:
    return any(times[key].mean > NEGLIGIBLE * times[LOOP].mean for times in (before, after))


def _change(key: str, a: _Time, b: _Time, own: tuple[float, float]) -> Change:
    """Compare two times; `own` are the shares of them without the load of other programs."""
    before, after, load = a.mean * own[0], b.mean * own[1], own[1] / own[0]
    if before < _NOTHING_S:
        return Change(key, before, after, None, None, None)
    ratios = b.rounds[a.rounds > 0] / a.rounds[a.rounds > 0]
    low, high = np.quantile(ratios, (0.025, 0.975)) if len(ratios) else (np.nan, np.nan)
    low, high = low * min(load, 1.0), high * max(load, 1.0)
    return Change(key, before, after, after / before - 1, float(low) - 1, float(high) - 1)


def _certain_change(key: str, a: _Time, b: _Time, own: tuple[float, float]) -> Change:
    """Compare two times, without a change if the load of other programs may be all of it."""
    found = _change(key, a, b, own)
    if _in_spite_of_load(_change(key, a, b, (1.0, 1.0)), (1 - own[0], 1 - own[1])):
        return found
    return Change(key, found.before, found.after, None, None, None)


def _in_spite_of_load(by_clock: Change, others: tuple[float, float]) -> bool:
    """Return whether the load of other programs is not noticeable, or can only have made the change smaller."""
    slower = others[1 if (by_clock.change or 0.0) > 0 else 0]
    return max(others) < limits.NOTICEABLE or (by_clock.is_clear and slower < limits.NOTICEABLE)


def _speedup(step: Change) -> Interval:
    """Return how many times as fast the second run is."""
    value, low, high = (1 / max(1 + (one or 0.0), 1e-9) for one in (step.change, step.high, step.low))
    return Interval(low, value, high)


def _refusal(others: tuple[float, float]) -> str:
    """Return why runs that waited for other programs are not compared."""
    waits = [
        f"{percent(share)} of the loop {moment}"
        for share, moment in zip(others, ("before", "after"), strict=True) if share >= limits.NOTICEABLE
    ]  # fmt: skip
    again = "both runs" if len(waits) > 1 else "that run"
    return (
        f"Not comparable: other programs kept the training's main thread waiting for a CPU core {' and '.join(waits)}. How long its "
        f"other threads waited is not recorded, so the load may be why the slower run is slower. Repeat {again} while the machine is "
        "less busy."
    )


def _new_notes(before: Report, after: Report) -> tuple[str, ...]:
    """Return what the second run has and the first one had not, each as its report states it."""
    known = {finding.kind for finding in before.verdict.findings}
    new = [one for one in after.verdict.findings if one.kind not in known]
    return tuple(f"New is {one.kind.value}: {one.headline}" for one in new[:MAX_PREDICTIONS])


def _script_notes(before: JobMetrics, after: JobMetrics) -> tuple[str, ...]:
    one, two = _script(before), _script(after)
    return (f"The scripts differ: {one} and {two}.",) * bool(one and two and one != two)


def _script(metrics: JobMetrics) -> str:
    """Return the file of the outermost function around the steps; "" if it was not recorded."""
    frames = next((one.args.frames for one in metrics.recorded(recorded.Loop).longest if one.args.frames), ())
    return printable(frames[0][0].rpartition("/")[2]) if frames else ""


def _batch_notes(
    per: str, samples: tuple[float | None, float | None], metrics: tuple[JobMetrics, JobMetrics]
) -> tuple[str, ...]:
    if per == SAMPLE:
        return (
            f"A step trains {samples[0]:,.4g} samples before and {samples[1]:,.4g} after, so times are per sample.",
        )
    if samples[0] is not None:
        return ()
    ranks = len(metrics[0].ranks), len(metrics[1].ranks)
    of_ranks = "" if ranks[0] == ranks[1] else f" of {ranks[0]} ranks before and {ranks[1]} after"
    return (f"Batch sizes unknown: steps{of_ranks} are compared.",)


def _load_notes(others: tuple[float, float], contexts: Sequence[Case]) -> tuple[str, ...]:
    if max(others) < LOAD_FROM:
        short = [moment for moment, case in zip(("before", "after"), contexts, strict=True) if case.load_doubt]
        runs = "Both runs were" if len(short) > 1 else f"The run {''.join(short)} was"
        return (f"{runs} too short to show whether other programs used the cores, which also changes times.",) * bool(
            short
        )
    before, after = (percent(share) for share in others)
    text = (
        f"Other programs kept the training waiting for a CPU core {before} of the loop before and {after} after. The times "
        "of the parts are without these waits, which have their own row; the intervals are wider by them."
    )
    return (text,)


def _sentence(changes: tuple[Change, ...], per: str, elapsed: Change | None) -> str:
    """Return the summary; what the clock shows comes first, since that is what a user waits for and pays."""
    own = _own_sentence(changes, per)
    if elapsed is None or elapsed.change is None:
        return own
    if not elapsed.is_clear:
        change = "no more than chance explains"
    else:
        change = f"{_short(abs(elapsed.change))} % {'more' if elapsed.change > 0 else 'less'}"
        if elapsed.change >= FACTOR_FROM - 1:
            change = f"{_factor(elapsed.change + 1)} times as long"
    return (
        f"With waits for a core, {per}s take {duration(elapsed.before)} before and {duration(elapsed.after)} after, {change}. "
        f"Without those for other programs: {own[0].lower()}{own[1:]}"
    )


def _own_sentence(changes: tuple[Change, ...], per: str) -> str:
    """Return the summary of the times without the load of other programs."""
    step = changes[0] if changes else None
    if step is None or step.change is None or not step.is_clear:
        return f"No significant difference: the {per}s of both runs differ by no more than chance explains."
    slower = step.change > 0
    moved = [
        change for change in changes
        if change.part not in (LOOP, parts.WHOLE) and change.is_clear and (change.after > change.before) == slower
    ]  # fmt: skip
    cause = max(moved, key=lambda change: abs(change.after - change.before), default=None)
    why = f", mostly in: {_label(cause.part).lower()}" if cause is not None else ""
    subject = f"{per.capitalize()}s with their evaluation" if step.part == LOOP else f"{per.capitalize()}s"
    return f"{subject} {step.sentence}{why}."


def _factor(value: float) -> str:
    """Format a factor: `5.0`, `12`."""
    return f"{value:.1f}" if round(value, 1) < 10 else f"{value:,.0f}"  # digits shown


def _short(share: float) -> str:
    """Format a share without its unit: `36.7`, `31`."""
    return f"{100 * share:.1f}".removesuffix(".0")


def terminal_comparison(found: Comparison) -> str:
    """Return the comparison as a table of a dozen lines."""
    lines = [found.sentence, *(one.sentence for one in found.predictions[:MAX_PREDICTIONS]), *found.notes]
    for moment, name, steps, verdict in zip(
        ("before:", "after: "), (found.before, found.after), found.steps, found.verdicts, strict=True
    ):
        lines.append(f"  {moment} {shorten(printable(name), 70)} ({steps} steps, {verdict})")
    if found.changes or found.measured:
        lines.append(f"  {'per ' + found.per:<22}{'before':>10}{'after':>10}{'change':>11}  95 % interval")
    lines += ["  " + f"{row[0]:<22} {row[1]:>9} {row[2]:>9} {row[3]:>10}  {row[4]}".rstrip() for row in _rows(found)]
    return "\n".join(lines)


def render_comparison(found: Comparison, links: Sequence[Link] = ()) -> str:
    """Return the comparison as an HTML page; `links` lead to others, where a server shows them."""
    slower, delayed = (
        one is not None and one.is_clear and (one.change or 0) > 0 for one in (found.step, found.elapsed)
    )
    return render_page(
        "compare.html",
        title="Comparison - sm-profiler",
        found=found,
        per=found.per,
        lines=found.lines,
        rows=_rows(found),
        tables=(),
        method="means over the training steps after the warm-up; intervals from a block bootstrap.",
        mood="issue" if slower else "healthy" if found.changes and not delayed else "open",
        links=links,
    )


def summarize_comparison(found: Comparison) -> Summary:
    """Return the comparison for `to_markdown`."""
    head = (f"per {found.per}", "before", "after", "change", "95 % interval")
    runs = runs_of((found.before, found.after), found.verdicts, found.steps)
    return Summary(found.sentence, found.lines, runs, ((head, _rows(found)),))


def _rows(found: Comparison) -> list[tuple[str, str, str, str, str]]:
    """Return label, before, after, change and interval of each part."""
    return [
        (_label(one.part), duration(one.before), duration(one.after), _percent(one.change), _interval(one))
        for one in (*(found.changes or found.measured), *([found.elapsed] if found.elapsed else []))
    ]


def _label(part: str) -> str:
    return _LABELS.get(part) or parts.label(part)


def _percent(change: float | None) -> str:
    if change is None:
        return ""
    if change >= FACTOR_FROM - 1:
        return f"{_factor(change + 1)} times"
    shown = f"{100 * change:+.1f} %"
    return shown if shown[1:] != "0.0 %" else shown[1:]  # what is rounded to nothing has no sign


def _interval(one: Change) -> str:
    if one.low is None or one.high is None:
        return ""
    low, high = _percent(one.low), _percent(one.high)
    if low.partition(" ")[2] == high.partition(" ")[2]:
        low = low.partition(" ")[0]
    return f"{low} to {high}{'' if one.is_clear else ' (may be chance)'}"
