"""Compare two runs: step time and its parts, each change with a confidence interval; as text and as a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from sm_profiler.errors import ConfigError
from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.printable import printable
from sm_profiler.report import parts, policy
from sm_profiler.report.formatting import duration
from sm_profiler.report.gains import Prediction, predictions
from sm_profiler.report.job_metrics import JobMetrics
from sm_profiler.report.judges import JudgeContext
from sm_profiler.report.markdown import Summary, runs_of
from sm_profiler.report.model import Report
from sm_profiler.report.page import Link, render_page
from sm_profiler.report.svg import shorten

ROUNDS = 2000  # resamples; with these, the ends of an interval vary by less than a tenth of its width
SEED = 20240229  # fixed, so that the same two runs always give the same interval
MAX_PREDICTIONS = 2  # lines of the terminal; compare.json has all
MAX_PERCENT = 10.0  # larger relative changes are shown as a factor


@attrs.frozen
class Change:
    """Change of one part of a step; times in seconds.

    Attributes:
        part: key of the part, or `parts.WHOLE`.
        before, after: mean time per step.
        change: after / before - 1; None if before is 0.
        low, high: 95 % confidence interval of `change`.
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


class HasStep(Protocol):
    """A comparison of two runs, or of two recordings."""

    @property
    def step(self) -> Change | None:
        """Change of the whole step."""


@attrs.frozen
class Comparison:
    """Changes from one run to another; pairs are before and after."""

    before: str
    after: str
    changes: tuple[Change, ...]
    sentence: str
    verdicts: tuple[str, str]
    steps: tuple[int, int]
    predictions: tuple[Prediction, ...] = ()

    @property
    def step(self) -> Change | None:
        """Change of the whole step."""
        return self.changes[0] if self.changes else None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of compare.json."""
        return {**attrs.asdict(self), "predictions": [one.as_dict() for one in self.predictions]}


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

    Intervals come from a moving-block bootstrap: blocks of consecutive steps are drawn, because neighbouring steps
    resemble each other.
    """
    a, b = _steady(before.metrics), _steady(after.metrics)
    steps = len(a[parts.WHOLE]), len(b[parts.WHOLE])
    verdicts = before.verdict.kind.value, after.verdict.kind.value
    names = before.metrics.name, after.metrics.name
    if min(steps) < policy.MIN_STEPS:
        sentence = (
            f"Too few training steps to compare: {steps[0]} and {steps[1]}, {policy.MIN_STEPS:.0f} needed in each run."
        )
        return Comparison(*names, (), sentence, verdicts, steps)
    draw = np.random.default_rng(SEED)
    keys = tuple(a)
    if not all(JudgeContext(one.metrics, {}).waits_known for one in (before, after)):
        keys = tuple(key for key in keys if key not in ("wait", "outside"))  # unknown in one of the runs
    if len({rank.on_device for one in (before, after) for rank in one.metrics.ranks}) > 1:
        keys = (parts.WHOLE,)  # phases timed by a GPU and by a host are not comparable
    changes = tuple(_change(key, a[key], b[key], draw) for key in keys if a[key].any() and len(b[key]))
    return Comparison(*names, changes, _sentence(changes), verdicts, steps, predictions(before, after))


def _steady(metrics: JobMetrics) -> dict[str, Floats]:
    """Return the times of each part after the warm-up, averaged over ranks."""
    iterations = [rank.iterations for rank in metrics.ranks if len(rank.iterations)]
    first = int(policy.WARM_UP_STEPS)
    found = {}
    for key in (parts.WHOLE, *parts.iteration_keys()):
        of_ranks = [one.of(key)[one.known | (key == parts.WHOLE)][first:] for one in iterations]
        count = min((len(values) for values in of_ranks), default=0)
        found[key] = np.mean([values[:count] for values in of_ranks], axis=0) if count else np.empty(0)
    return found


def _block_length(count: int) -> int:
    """Return the steps of a block: about the cube root of all."""
    length: int = max(round(count ** (1 / 3)), 1)
    return length


def _blocks(count: int, draw: np.random.Generator) -> Ints:
    """Draw the first steps of the blocks of each round; shape (ROUNDS, blocks)."""
    length = _block_length(count)
    return draw.integers(0, count - length + 1, (ROUNDS, -(-count // length)))


def _means(values: Floats, starts: Ints) -> Floats:
    """Return the mean of each round."""
    length = _block_length(len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[starts + length] - sums[starts]).sum(axis=1) / (starts.shape[1] * length))


def _change(key: str, a: Floats, b: Floats, draw: np.random.Generator) -> Change:
    before, after = float(a.mean()), float(b.mean())
    if before <= 0:
        return Change(key, before, after, None, None, None)
    first, second = _means(a, _blocks(len(a), draw)), _means(b, _blocks(len(b), draw))
    ratios = second[first > 0] / first[first > 0] - 1
    low, high = np.quantile(ratios, (0.025, 0.975)) if len(ratios) else (np.nan, np.nan)
    return Change(key, before, after, after / before - 1, float(low), float(high))


def _sentence(changes: tuple[Change, ...]) -> str:
    step = changes[0] if changes else None
    if step is None or step.change is None or not step.is_clear:
        return "No significant difference: the steps of both runs take equally long within the measurement error."
    slower = step.change > 0
    moved = [change for change in changes[1:] if change.is_clear and (change.after > change.before) == slower]
    cause = max(moved, key=lambda change: abs(change.after - change.before), default=None)
    why = f", mostly in: {parts.label(cause.part).lower()}" if cause is not None else ""
    interval = f"between {_signed(step.low)} and {_signed(step.high)}"
    return f"Steps are {abs(step.change):.1%} {'slower' if slower else 'faster'} ({interval}){why}.".replace("%", " %")


def _signed(value: float | None) -> str:
    return "?" if value is None else f"{value:+.1%}"


def terminal_comparison(found: Comparison) -> str:
    """Return the comparison as a table of at most twelve lines."""
    lines = [found.sentence, *(one.sentence for one in found.predictions[:MAX_PREDICTIONS])]
    for moment, name, steps, verdict in zip(
        ("before:", "after: "), (found.before, found.after), found.steps, found.verdicts, strict=True
    ):
        lines.append(f"  {moment} {shorten(printable(name), 70)} ({steps} steps, {verdict})")
    lines += ["  " + f"{row[0]:<20}{row[1]:>10}{row[2]:>10}{row[3]:>10}  {row[4]}".rstrip() for row in _rows(found)]
    return "\n".join(lines)


def render_comparison(found: Comparison, links: Sequence[Link] = ()) -> str:
    """Return the comparison as an HTML page; `links` lead to others, where a server shows them."""
    slower = found.step is not None and found.step.is_clear and (found.step.change or 0) > 0
    return render_page(
        "compare.html",
        title="Comparison - sm-profiler",
        found=found,
        lines=[one.sentence for one in found.predictions],
        rows=_rows(found),
        tables=(),
        method="means over the training steps after the warm-up; intervals from a moving-block bootstrap.",
        mood="issue" if slower else "healthy" if found.changes else "open",
        links=links,
    )


def summarize_comparison(found: Comparison) -> Summary:
    """Return the comparison for `to_markdown`."""
    head = ("per step", "before", "after", "change", "95 % interval")
    runs = runs_of((found.before, found.after), found.verdicts, found.steps)
    return Summary(found.sentence, tuple(one.sentence for one in found.predictions), runs, ((head, _rows(found)),))


def _rows(found: Comparison) -> list[tuple[str, str, str, str, str]]:
    """Return label, before, after, change and interval of each part."""
    return [
        (parts.label(one.part), duration(one.before), duration(one.after), _percent(one.change), _interval(one))
        for one in found.changes
    ]


def _percent(change: float | None) -> str:
    if change is None:
        return ""
    return f"{100 * change:+.1f} %" if change < MAX_PERCENT else f"x {change + 1:.3g}"


def _interval(one: Change) -> str:
    if one.low is None or one.high is None:
        return ""
    note = "" if one.is_clear else " (may be chance)"
    return f"{_percent(one.low)} to {_percent(one.high)}{note}"
