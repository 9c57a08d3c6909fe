"""What a report is made of: evidence, findings, the verdict, and the report itself."""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Facts

SCHEMA_VERSION = "1.0"


CONFIDENCES = ("low", "medium", "high")


@attrs.frozen
class Evidence:
    """One measured number behind a finding.

    Attributes:
        metric: what was measured, in words.
        value: the number (or text), in `unit`.
        threshold: what it was held against, in the same unit; None where nothing was.
        where: rank, node or phase it was measured at; "" for the whole job.
        unit: `share` (0 to 1), `s`, `ms`, `percent`, `steps` … ; "" for counts and texts.
        held: what the threshold is to the value: `limit` (good up to it), `good from`, `judged from`, `usually`,
            `others` (what the other ranks take), `±` (the value's standard error).
    """

    metric: str
    value: float | str
    threshold: float | None = None
    where: str = ""
    unit: str = ""
    held: str = "limit"

    def as_dict(self) -> dict[str, Any]:
        """As it stands in report.json."""
        return attrs.asdict(self)


@attrs.frozen
class Finding:
    """What one judge found.

    Attributes:
        kind: the class of verdict it would be.
        headline: one sentence.
        evidence: the numbers behind it, strongest first.
        next_step: what to do now, one or two sentences.
        share_of_time: the part of the time it names that is lost, 0 to 1.
        of: what that is a share of: `loop` or `job`.
        confidence: low, medium or high.
        weight: how it is ranked among the findings of its tier (lost share, unless the judge knows better).
    """

    kind: Class
    headline: str
    evidence: tuple[Evidence, ...]
    next_step: str
    share_of_time: float
    of: str = "loop"
    confidence: str = "medium"
    weight: float = attrs.field(default=attrs.Factory(lambda self: self.share_of_time, takes_self=True))

    def as_dict(self) -> dict[str, Any]:
        """As it stands in report.json."""
        return {
            "class": self.kind.value,
            "headline": self.headline,
            "evidence": [one.as_dict() for one in self.evidence],
            "next_step": self.next_step,
            "share_of_time": round(self.share_of_time, 4),
            "share_of": self.of,
            "confidence": self.confidence,
        }


@attrs.frozen
class Verdict:
    """The one answer, and what else was seen."""

    main: Finding
    also: tuple[Finding, ...] = ()
    not_judged: tuple[tuple[str, str], ...] = ()  # what, why

    @property
    def kind(self) -> Class:
        """The verdict's class."""
        return self.main.kind

    def as_dict(self) -> dict[str, Any]:
        """As it stands in report.json."""
        also = [finding.as_dict() for finding in self.also]
        missing = [{"what": what, "why": why} for what, why in self.not_judged]
        return {**self.main.as_dict(), "also": also, "not_judged": missing}


@attrs.frozen
class Report:
    """Everything that the writers (JSON, HTML, notebook, terminal) need; no file is open behind it.

    Attributes:
        facts: what was measured.
        verdict: what it means.
        rules: rule name → report object of the rule.
        broken: rule name → why the rule itself failed.
        quality: what could not be read, and what the hook switched off.
        cost: what the lost time costs, or None where the instance type is not known.
        source: where the profile lies, for the notebook and the page's foot.
    """

    facts: Facts
    verdict: Verdict
    rules: dict[str, dict[str, Any]]
    broken: dict[str, str] = attrs.field(factory=dict)
    quality: dict[str, Any] = attrs.field(factory=dict)
    cost: dict[str, Any] | None = None
    source: str = ""
    generated: str = ""

    @property
    def profiling_cost(self) -> str:
        """What the hook says it took, in words."""
        share = self.facts.overhead
        return "not recorded" if share is None else f"{100 * share:.2g} % of the training loop, by the hook's own clock"

    def as_dict(self) -> dict[str, Any]:
        """The content of report.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "generated": self.generated,
            "source": self.source,
            "job": self.facts.as_dict(),
            "verdict": self.verdict.as_dict(),
            "profiling_cost": self.profiling_cost,
            "rules": self.rules,
            "broken_rules": self.broken,
            "data_quality": self.quality,
            "cost": self.cost,
        }
