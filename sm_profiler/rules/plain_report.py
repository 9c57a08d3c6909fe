"""The report of last resort: a page without pictures, for when there is nothing to draw or drawing failed."""

from __future__ import annotations

import html
import json
from pathlib import Path

from sm_profiler.rules.engine import RuleResults

REPORT = "profiler-report.html"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Profiler report</title>
<style>:root {{color-scheme: light dark; font-family: sans-serif}} body {{max-width: 50em; margin: 2em auto; padding: 0 1em}}
td, th {{text-align: left; padding: .2em 1em .2em 0; vertical-align: top}}</style></head>
<body><h1>Profiler report</h1>
<p>{what}</p>
{table}
</body></html>
"""


def write_plain_report(folder: Path, rule: str, why: str, results: RuleResults | None = None) -> None:
    """Write profiler-report.html and report.json; neither replaces a drawn report that stands there already."""
    folder.mkdir(parents=True, exist_ok=True)
    results = results or RuleResults({})
    rows = [
        f"<tr><td>{html.escape(name)}</td><td>{result['RuleTriggered']}</td><td>{result['Datapoints']}</td></tr>"
        for name, result in results.results.items()
    ]
    rows += [
        f"<tr><td>{html.escape(name)}</td><td colspan=2>not evaluated: {html.escape(broken)}</td></tr>"
        for name, broken in results.broken.items()
    ]
    head = "<tr><th scope=col>Rule</th><th scope=col>times fired</th><th scope=col>data points</th></tr>"
    table = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    what = f"{html.escape(rule)}: {html.escape(why)}" if why else f"{html.escape(rule)}: evaluated."
    page = folder / REPORT
    if not page.exists() or _is_plain(page) or not why:
        page.write_text(PAGE.format(what=what, table=table), "utf-8")
        verdict = {"class": "INCONCLUSIVE", "headline": why or "The rules were evaluated; no report was drawn."}
        content = {"verdict": verdict, "rule": rule, "rules": results.results, "broken": results.broken}
        (folder / "report.json").write_text(json.dumps(content) + "\n", "utf-8")


def _is_plain(page: Path) -> bool:
    with page.open(encoding="utf-8", errors="replace") as opened:
        return "<title>Profiler report</title>\n<style>:root" in opened.read(1000)
