"""The tables of docs/benchmark.md, written between two markers."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.scoring import Score, part, reliability


def share(pair: tuple[int, int]) -> str:
    """Return how many of how many, nothing if there are none."""
    return f"{pair[0]} of {pair[1]}" if pair[1] else ""


def gains(scores: Sequence[Any]) -> str:
    """Return how many gains of how many are right, and how many are open besides."""
    counted, undecided = share(part(run.gain_right for run in scores)), sum(run.gain_open for run in scores)
    return ", ".join(filter(None, [counted, f"{undecided} open" if undecided else ""]))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _width(scores: Sequence[Score]) -> str:
    widths = [
        run.gain[1] / run.gain[0]
        for run in scores
        if (run.gain_open or run.gain_right is not None) and run.gain and run.gain[0] > 0
    ]
    return f"{statistics.median(widths):.2f}" if widths else ""


def _overhead(scores: Sequence[Score]) -> str:
    costs = [run.overhead for run in scores if run.overhead is not None]
    return f"{statistics.median(costs):.1%}" if costs else ""


def _row(name: str, scores: Sequence[Score]) -> list[str]:
    return [
        name,
        share(part(run.right for run in scores)),
        share(part(run.also_right for run in scores)),
        str(sum(run.confidently_wrong for run in scores)) if any(run.confidence for run in scores) else "",
        share(part(run.line_right for run in scores)),
        gains(scores),
        _width(scores),
        _overhead(scores),
    ]


def classes_table(scores: Sequence[Score]) -> str:
    """Return a row for each class, and one for all."""
    groups = defaultdict(list)
    for run in scores:
        groups[run.expected].append(run)
    header = ["planted", "right", "second cause named", "confidently wrong", "line right", "gain right",
              "width of the interval", "overhead"]  # fmt: skip
    rows = [_row(kind, group) for kind, group in groups.items()]
    return markdown(header, [*rows, _row("**all**", scores)])


def problems_table(scores: Sequence[Score]) -> str:
    """Return a row for each planted problem, with the sizes together."""
    groups = defaultdict(list)
    for run in scores:
        groups[run.script, run.about, run.expected].append(run)
    header = ["script", "planted problem", "verdict", "right", "otherwise named"]
    rows = []
    for (script, about, expected), group in groups.items():
        wrong = sorted(
            {f"{run.got} ({run.confidence})" if run.confidence else run.got for run in group if not run.right}
        )
        rows.append([f"`{script}.py`", about, expected, share(part(run.right for run in group)), ", ".join(wrong)])
    return markdown(header, rows)


def reliability_table(scores: Sequence[Score]) -> str:
    """Return how many verdicts of each confidence are right, on quiet and on busy machines."""
    machines = list(dict.fromkeys(run.machine for run in scores))
    by_machine = [reliability(run for run in scores if run.machine == machine) for machine in machines]
    together = reliability(scores)
    header = ["confidence", "right", "share", *(f"{name} machine" for name in machines if len(machines) > 1)]
    rows = []
    for name, (right, count) in together.items():
        each = [share(found.get(name, (0, 0))) for found in by_machine if len(machines) > 1]
        rows.append([name, f"{right} of {count}", f"{right / count:.0%}", *each])
    return markdown(header, rows)


def runs_sentence(scores: Sequence[Score]) -> str:
    """Return how many verdicts of how many runs the tables show."""
    right, count = part(run.right for run in scores)
    wrong = sum(run.confidently_wrong for run in scores)
    runs = Counter(machine for machine, _ in {(run.machine, run.run) for run in scores})
    each = [f"{number} {'run' if number == 1 else 'runs'} on a {name} machine" for name, number in sorted(runs.items())]
    return f"{right} of {count} verdicts are right and {wrong} confidently wrong: {' and '.join(each)}."


def write(document: Path, name: str, text: str) -> None:
    """Put a text between the markers of that name in a document."""
    old = document.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(old):
        raise ValueError(f"{document} has no place for the table {name!r}: {begin} … {end}")
    document.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", old), encoding="utf-8")
