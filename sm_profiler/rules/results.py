"""Results of rules: typed inside the process, JSON objects in files and reports, and a plain page without a report."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.formatting import strict_json

REPORTS = "profiler-reports"
MAX_SHOWN_BYTES = 1_000_000  # of a user's rule
MAX_SHOWN_DEPTH = 100

REPORT = "profiler-report.html"
MARK = "<title>Profiler report</title>\n<style>:root"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Profiler report</title>
<style>:root {{color-scheme: light dark; font-family: sans-serif}} body {{max-width: 50em; margin: 2em auto; padding: 0 1em}}
td, th {{text-align: left; padding: .2em 1em .2em 0; vertical-align: top}}</style></head>
<body><h1>Profiler report</h1>
<p>{summary}</p>
{table}
</body></html>
"""


@attrs.frozen
class RuleResult:
    """Result of one rule for the windows evaluated so far.

    Attributes:
        triggered: number of evaluations that met the condition (of windows, GPUs, pairs or processes, by rule).
        violations: number of observations behind them.
        datapoints: number of observations evaluated.
        details: the evidence, as a report shows it under `Details`.
        parameters: name → value, in the order of the report.
        not_evaluated: why the rule could not be evaluated; None if it could.
        written: the report as a user's rule wrote it; None for a built-in rule.
    """

    triggered: int
    violations: int
    datapoints: int
    details: Mapping[str, Any]
    parameters: Mapping[str, object]
    not_evaluated: str | None = None
    written: Mapping[str, Any] | None = None

    @property
    def fired(self) -> bool:
        """True if the condition was met."""
        return self.triggered > 0

    def as_dict(self) -> dict[str, Any]:
        """Return the report object, as `profiler-reports/<Rule>.json` holds it."""
        if self.written is not None:
            return dict(self.written)
        details = dict(self.details)
        if self.not_evaluated is not None:
            details["not_evaluated"] = self.not_evaluated
        return {
            "RuleTriggered": self.triggered,
            "Violations": self.violations,
            "Details": details,
            "Datapoints": self.datapoints,
            "RuleParameters": "\n".join(f"{name}:{value}" for name, value in self.parameters.items()),
        }


@attrs.frozen
class RuleResults:
    """Results of all rules.

    Attributes:
        results: rule name → result.
        broken: rule name → one line about the error that stopped it.
    """

    results: dict[str, RuleResult]
    broken: dict[str, str] = attrs.field(factory=dict)

    @property
    def fired(self) -> list[str]:
        """Names of the rules that fired, in the order in which they run."""
        return [name for name, result in self.results.items() if result.fired]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return rule name → report object."""
        return {name: result.as_dict() for name, result in self.results.items()}


def read_own_result(folder: Path, rule: str) -> RuleResult | None:
    """Return the result that a user's rule wrote; None if it has not the form of a report, or is too large or deep for a page."""
    try:
        with (folder / REPORTS / f"{rule}.json").open("rb") as opened:
            found = json.loads(opened.read(MAX_SHOWN_BYTES))
        counts = [found[key] for key in ("RuleTriggered", "Violations", "Datapoints")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(count, int) for count in counts) or not isinstance(found.get("Details"), dict):
        return None
    if not _is_flat(found, MAX_SHOWN_DEPTH):
        return None
    triggered, violations, datapoints = map(int, counts)
    report = {**found, "RuleParameters": str(found.get("RuleParameters", ""))}
    return RuleResult(triggered, violations, datapoints, {}, {}, written=report)


def _is_flat(value: object, most: int) -> bool:
    """Return whether lists and objects are nested at most so many times."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(most > 0 and _is_flat(each, most - 1) for each in inner)


def write_rule_reports(reports: Mapping[str, Mapping[str, Any]], target: Any) -> list[str]:
    """Write `profiler-reports/<Rule>.json` for each rule, one line each.

    Args:
        reports: rule name → report object (`RuleResults.as_dict()`).
        target: a folder, or a storage (`write(key, data)`).

    Returns:
        The keys written, relative to `target`.
    """
    written = []
    for name, report in reports.items():
        key = f"{REPORTS}/{name}.json"
        data = (strict_json(report) + "\n").encode()
        if hasattr(target, "write"):
            target.write(key, data)
        else:
            path = Path(target, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        written.append(key)
    return written


@attrs.define
class KeyOrder:
    """Order of first appearance of keys, over several versions of the same details.

    The service updated one object in place for the whole job.
    """

    _keys: dict[str, None] = attrs.field(factory=dict)

    def add(self, keys: Iterable[str]) -> None:
        """Append the keys that have not appeared before."""
        self._keys.update(dict.fromkeys(keys))

    def apply(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """Return the details with their keys in this order; keys that never appeared are left out."""
        return {key: details[key] for key in self._keys if key in details}


def write_plain_report(folder: Path, rule: str, reason: str, results: RuleResults | None = None) -> None:
    """Write profiler-report.html and report.json, unless the folder has a rendered report and `reason` is set.

    Args:
        folder: the output folder; created if missing.
        rule: name of the rule that decides the status.
        reason: why there is no rendered report; "" if none was requested.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = results or RuleResults({})
    rows = [
        f"<tr><td>{html.escape(name)}</td><td>{result.triggered}</td><td>{result.datapoints}</td></tr>"
        for name, result in results.results.items()
    ]
    rows += [
        f"<tr><td>{html.escape(name)}</td><td colspan=2>not evaluated: {html.escape(broken)}</td></tr>"
        for name, broken in results.broken.items()
    ]
    head = "<tr><th scope=col>Rule</th><th scope=col>times fired</th><th scope=col>data points</th></tr>"
    table = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    summary = f"{html.escape(rule)}: {html.escape(reason or 'evaluated.')}"
    page = folder / REPORT
    if not reason or not page.exists() or _is_plain(page):
        text = PAGE.format(summary=summary, table=table)
        page.write_text(text, "utf-8", errors="replace")
        verdict = {"class": "INCONCLUSIVE", "headline": reason or "The rules were evaluated; no report was rendered."}
        content = {"verdict": verdict, "rule": rule, "rules": results.as_dict(), "broken": results.broken}
        (folder / "report.json").write_text(strict_json(content) + "\n", "utf-8")


def _is_plain(page: Path) -> bool:
    with page.open(encoding="utf-8", errors="replace") as opened:
        return MARK in opened.read(1000)
