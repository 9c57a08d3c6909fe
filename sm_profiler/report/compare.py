"""Two runs side by side: step time and its parts, each change with an interval."""

from __future__ import annotations

import re
from typing import Any

import attrs
import numpy as np

from sm_profiler.errors import ConfigError
from sm_profiler.formats.columns import Floats
from sm_profiler.report import policy
from sm_profiler.report.job_metrics import Facts, Rank
from sm_profiler.report.judges import Case
from sm_profiler.report.model import Report

PARTS = ("length", "wait", "forward", "backward", "optimizer", "outside")
NAMES = {
    "length": "Step", "wait": "Waiting for data", "forward": "Forward", "backward": "Backward", "optimizer": "Optimizer",
    "outside": "Outside the phases",
}  # fmt: skip
ROUNDS = 2000  # resamples; the interval's ends then move by less than a tenth of its width
SEED = 20240229  # the same two runs always give the same interval


@attrs.frozen
class Change:
    """One part of a step in two runs, seconds; `low` and `high` bound the relative change with 95 % confidence.

    Attributes:
        part: step or a part of it.
        before, after: mean seconds a step.
        change: after / before - 1; None where before is 0.
        low, high: the interval of `change`.
    """

    part: str
    before: float
    after: float
    change: float | None
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """The interval excludes no change."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@attrs.frozen
class Comparison:
    """What changed from one run to another."""

    before: str
    after: str
    changes: tuple[Change, ...]
    sentence: str
    verdicts: tuple[str, str]
    steps: tuple[int, int]

    @property
    def step(self) -> Change | None:
        """The change of the whole step."""
        return self.changes[0] if self.changes else None

    def as_dict(self) -> dict[str, Any]:
        """For compare.json."""
        return attrs.asdict(self)


@attrs.frozen
class Limit:
    """`regression>5%`: fail where the step got slower by more than this, and the interval excludes chance."""

    share: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read `regression>5%`.

        Raises:
            ConfigError: anything else.
        """
        found = re.fullmatch(r"\s*regression\s*>\s*(\d+(?:\.\d+)?)\s*%\s*", text)
        if not found:
            raise ConfigError(f"--fail-on {text}: expected something like 'regression>5%'")
        return cls(float(found[1]) / 100)

    def broken_by(self, comparison: Comparison) -> bool:
        """Whether the second run is that much slower."""
        step = comparison.step
        return step is not None and step.change is not None and step.change > self.share and step.is_clear


def compare(before: Report, after: Report) -> Comparison:
    """Compare two runs by their training steps.

    Intervals come from a moving-block bootstrap: whole stretches of neighbouring steps are drawn, since steps near each
    other resemble each other.  The first steps of each run are left out.
    """
    a, b = _steady(before.facts), _steady(after.facts)
    steps = len(a["length"]), len(b["length"])
    verdicts = before.verdict.kind.value, after.verdict.kind.value
    names = before.facts.name, after.facts.name
    if min(steps) < policy.MIN_STEPS.value:
        sentence = f"Too few training steps to compare: {steps[0]} and {steps[1]}, {policy.MIN_STEPS.value:.0f} needed in each."
        return Comparison(*names, (), sentence, verdicts, steps)
    draw = np.random.default_rng(SEED)
    parts: tuple[str, ...] = PARTS
    if not all(Case(one.facts, {}).waits_known for one in (before, after)):
        parts = tuple(part for part in PARTS if part not in ("wait", "outside"))  # one run does not know them
    if len({rank.on_device for one in (before, after) for rank in one.facts.ranks}) > 1:
        parts = ("length",)  # a GPU's own phases and a host's are not the same thing
    changes = tuple(_change(part, a[part], b[part], draw) for part in parts if a[part].any() and len(b[part]))
    return Comparison(*names, changes, _sentence(changes), verdicts, steps)


def _steady(facts: Facts) -> dict[str, Floats]:
    """Parts of the training steps, mean over ranks for each turn number; warm-up steps left out."""
    ranks: list[Rank] = [rank for rank in facts.ranks if len(rank.turns)]
    if not ranks:
        return {part: np.empty(0) for part in PARTS}
    first = int(policy.WARM_UP_STEPS.value)
    found = {}
    for part in PARTS:
        of_ranks = [getattr(rank.turns, part)[rank.turns.known | (part == "length")][first:] for rank in ranks]
        count = min(len(values) for values in of_ranks)
        found[part] = np.mean([values[:count] for values in of_ranks], axis=0) if count else np.empty(0)
    return found


def _blocks(count: int, draw: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """First steps of the blocks of each round: shape (ROUNDS, blocks); a block is about the cube root of all steps long."""
    length = max(round(count ** (1 / 3)), 1)
    return draw.integers(0, count - length + 1, (ROUNDS, -(-count // length)))


def _means(values: Floats, starts: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
    """Mean of each round."""
    length = max(round(len(values) ** (1 / 3)), 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[starts + length] - sums[starts]).sum(axis=1) / (starts.shape[1] * length))


def _change(part: str, a: Floats, b: Floats, draw: np.random.Generator) -> Change:
    before, after = float(a.mean()), float(b.mean())
    if before <= 0:
        return Change(part, before, after, None, None, None)
    first, second = _means(a, _blocks(len(a), draw)), _means(b, _blocks(len(b), draw))
    ratios = second[first > 0] / first[first > 0] - 1
    low, high = np.quantile(ratios, (0.025, 0.975)) if len(ratios) else (np.nan, np.nan)
    return Change(part, before, after, after / before - 1, float(low), float(high))


def _sentence(changes: tuple[Change, ...]) -> str:
    step = changes[0]
    if step.change is None or not step.is_clear:
        return "The steps of both runs take equally long, as far as the measurements tell."
    slower = step.change > 0
    word, direction = ("slower", 1) if slower else ("faster", -1)
    moved = [change for change in changes[1:] if change.is_clear and (change.after > change.before) == slower]
    cause = max(moved, key=lambda change: (change.after - change.before) * direction, default=None)
    why = f", mostly in: {NAMES[cause.part].lower()}" if cause is not None else ""
    interval = f"between {_signed(step.low)} and {_signed(step.high)}"
    return f"Steps got {abs(step.change):.1%} {word} ({interval}){why}.".replace("%", " %")


def _signed(value: float | None) -> str:
    return "?" if value is None else f"{value:+.1%}"
