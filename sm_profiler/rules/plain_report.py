"""The fallback report: a plain page for a job without data, or if the report cannot be rendered."""

from __future__ import annotations

import html
import json
from pathlib import Path

from sm_profiler.rules.results import RuleResults

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


def write_plain_report(folder: Path, rule: str, reason: str, results: RuleResults | None = None) -> None:
    """Write profiler-report.html and report.json, unless the folder has a rendered report and `reason` is set.

    Args:
        folder: the output folder; created if missing.
        rule: name of the rule that decides the status.
        reason: why there is no rendered report; "" if none was requested.
        results: results of the rules so far.
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
        (folder / "report.json").write_text(json.dumps(content) + "\n", "utf-8")


def _is_plain(page: Path) -> bool:
    with page.open(encoding="utf-8", errors="replace") as opened:
        return MARK in opened.read(1000)
