"""Run scripts of strangers: plain, repaired, and under sm-profiler.

python -m benchmarks.strangers                           the open part
python -m benchmarks.strangers --cases fraud,forecast    scripts by name
python -m benchmarks.strangers --plain --json times.json    without the profiler
python -m benchmarks.strangers --times times.json        with the plain and repaired times of an earlier run
python -m benchmarks.strangers --keep folder             and keep the profiles
python -m benchmarks.strangers --judge folder            judge them again, with the code as it is now
python -m benchmarks.strangers --sealed                  the sealed part, once, at a release
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.diagnosis.adapters import Diagnosis, FailedRunError, Named, Ours, execute, interpreter
from benchmarks.diagnosis.keeping import keep, kept, profile_in
from benchmarks.diagnosis.manifest import NEAR
from benchmarks.diagnosis.scoring import inside, part, spread_of
from benchmarks.diagnosis.table import gains, markdown, share
from benchmarks.strangers.truth import Stranger, strangers
from sm_profiler.diagnosis.limits import MOST_SAVED
from sm_profiler.diagnosis.model import Interval

TOOK = re.compile(r"training took ([\d.]+) s")


def _times(found: float | Sequence[float] | None) -> tuple[float, ...]:
    return tuple(found) if isinstance(found, list | tuple) else () if found is None else (found,)


@attrs.frozen
class Row:
    """One script: its times, and what of the diagnosis is right; None if there is nothing to judge.

    A gain is open, and neither right nor wrong, if its interval holds only a part of what was measured.
    """

    name: str
    framework: str
    expected: tuple[str, ...]
    plain: tuple[float, ...] = attrs.field(converter=_times)
    repaired: tuple[float, ...] = attrs.field(default=(), converter=_times)
    load: float = 0.0
    got: str = ""
    confidence: str = ""
    named: tuple[str, ...] = ()
    right: bool | None = None
    also_right: bool | None = None
    confidently_wrong: bool = False
    line: str = ""
    line_right: bool | None = None
    gain: tuple[float, float] | None = None
    gain_right: bool | None = None
    gain_open: bool = False
    error: str = ""

    @property
    def speedups(self) -> list[float]:
        """Return how much faster the repaired variant is than the plain one that ran before it, of each pair."""
        return [plain / repaired for plain, repaired in zip(self.plain, self.repaired, strict=False)]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers", description=__doc__.splitlines()[0])
    parser.add_argument("--sealed", action="store_true", help="the sealed part instead of the open one")
    parser.add_argument("--cases", default="", help="names of scripts, separated by commas")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plain", action="store_true", help="only the plain and the repaired variant, no profiler")
    what.add_argument("--keep", type=Path, metavar="FOLDER", help="keep each script's profile and its times")
    what.add_argument("--judge", type=Path, metavar="FOLDER", help="judge kept profiles again instead of running")
    parser.add_argument("--pairs", type=int, default=3, help="plain and repaired runs of each script, in turn")
    parser.add_argument("--times", type=Path, help="take plain and repaired times from the --json of an earlier run")
    parser.add_argument("--json", type=Path, help="write the rows to this file, after every script")
    return parser.parse_args()


def command(script: Path, stranger: Stranger) -> list[str]:
    if stranger.ranks == 1:
        return [str(script)]
    python = interpreter(stranger.path)
    return [
        "--",
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(stranger.ranks),
        str(script),
    ]


def copied(stranger: Stranger, folder: Path) -> Path:
    """Return a copy of the script in an empty folder, with a name that hints at nothing."""
    folder.mkdir()
    return Path(shutil.copy(stranger.path, folder / "train.py"))


def seconds(stranger: Stranger, folder: Path, **variables: str) -> float:
    """Run a script without a profiler; return what is measured of it."""
    words, started = command(copied(stranger, folder), stranger), time.monotonic()
    printed = execute([interpreter(stranger.path), *words] if stranger.ranks == 1 else words[1:], folder, **variables)
    if stranger.measured == "job":
        return time.monotonic() - started
    return float(TOOK.findall(printed)[-1])


def profiled(stranger: Stranger, folder: Path) -> str:
    """Run a script under `sm-profiler run`; return why it failed, or nothing."""
    words = command(copied(stranger, folder), stranger)
    try:
        execute([interpreter(stranger.path), "-m", "sm_profiler", "run", *words], folder)
    except (FailedRunError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


def line_right(stranger: Stranger, found: Named) -> bool:
    numbers = [number for lines in stranger.lines().values() for number in lines]
    place = found.places[0] if found.places else None
    return place is not None and place.file.endswith("train.py") and any(abs(place.line - n) <= NEAR for n in numbers)


def together(found: Sequence[Named]) -> tuple[float, float] | None:
    """Return the speedup of all these repairs: the shares of the loop that they save add up, and their errors are independent."""
    gains = [each for each in found if each.speedup]
    shares = [each.saved for each in gains if each.saved and each.saved[1] > 0]  # a start has none of the loop
    if len(shares) <= 1:
        return gains[0].speedup if gains else None
    value = sum(one[1] for one in shares)
    below, above = (math.hypot(*(one[1] - one[end] for one in shares)) for end in (0, 2))
    speedup = Interval(*(min(part, MOST_SAVED) for part in (value - below, value, value + above))).speedup
    return speedup.low, speedup.high


def judged(stranger: Stranger, row: Row, diagnosis: Diagnosis) -> Row:
    """Return the row with what is right in the diagnosis."""
    main, every = diagnosis.main, (diagnosis.main, *diagnosis.also)
    leads = (*stranger.expected, *stranger.also)
    right = main.kind in leads
    found = [named for named in every if named.kind in leads and not stranger.healthy]
    both = stranger.also and all(
        any(named.kind in group for named in every) for group in (stranger.expected, stranger.also)
    )
    # The repaired variant repairs both of two problems: if one is named alone, its gain cannot be compared.
    gain = None if stranger.also and not both else together(found)
    spread = spread_of(row.speedups, row.load)
    return attrs.evolve(
        row,
        got=main.kind,
        confidence=main.confidence,
        named=tuple(named.kind for named in diagnosis.also),
        right=right,
        also_right=bool(both) if stranger.also else None,
        confidently_wrong=main.confidence == "high" and not right,
        line=f"{found[0].places[0].file.rsplit('/', 1)[-1]}:{found[0].places[0].line}"
        if found and found[0].places
        else "",
        line_right=line_right(stranger, found[0]) if found and stranger.guilty else None,
        gain=gain,
        gain_right=inside(gain, spread) if gain and spread else None,
        gain_open=bool(gain and spread) and inside(gain, spread) is None,
    )


def run(stranger: Stranger, args: argparse.Namespace, times: dict[str, dict]) -> Row:
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        root = Path(name)
        if stranger.name in times:
            known = times[stranger.name]
            row = Row(stranger.name, stranger.framework, stranger.expected, known["plain"], known["repaired"])
        else:
            plain, repaired = [], []
            for turn in range(1 if stranger.healthy else args.pairs):
                plain.append(seconds(stranger, root / f"plain{turn}"))
                if not stranger.healthy:
                    repaired.append(seconds(stranger, root / f"repaired{turn}", REPAIRED="1"))
            row = Row(stranger.name, stranger.framework, stranger.expected, plain, repaired, os.getloadavg()[0])
        if args.plain:
            return row
        failed = profiled(stranger, root / "profiled")
        if args.keep:
            measured = {"plain": row.plain, "repaired": row.repaired}
            keep(root / "profiled", folder=args.keep / stranger.name, failed=failed, **measured)
        return diagnosed(stranger, row, root / "profiled", failed)


def diagnosed(stranger: Stranger, row: Row, folder: Path, failed: str) -> Row:
    """Return the row with what the report of a run names, unless the run failed."""
    if not failed:
        try:
            return judged(stranger, row, Ours().read(profile_in(folder)))
        except (OSError, ValueError, KeyError) as error:
            failed = str(error)
    return attrs.evolve(row, got="FAILED", right=False, error=failed)


def judge_again(stranger: Stranger, folder: Path, facts: dict[str, Any]) -> Row:
    """Judge the profile of a kept run by the present code."""
    load = facts["load_average"][0]
    row = Row(stranger.name, stranger.framework, stranger.expected, facts["plain"], facts["repaired"], load)
    return diagnosed(stranger, row, folder, facts["failed"])


def _range(speedups: Sequence[float]) -> str:
    """Return the smallest and the largest of some speedups, once if they are shown as the same."""
    ends = (f"{of(speedups):.2f}" for of in (min, max) if speedups)
    return " to ".join(dict.fromkeys(ends))


def table(rows: Sequence[Row]) -> str:
    """Return the rows and their totals."""
    mark = {None: "", True: "yes", False: "no"}
    header = ["script", "framework", "expected", "named", "right", "both named", "confidently wrong", "line right",
              "true gain", "predicted", "inside"]  # fmt: skip
    lines = [
        [
            f"`{row.name}`",
            row.framework,
            " or ".join(row.expected),
            " + ".join([f"{row.got} ({row.confidence})" if row.confidence else row.got, *row.named]),
            mark[row.right],
            mark[row.also_right],
            "yes" if row.confidently_wrong else "",
            " ".join(filter(None, [mark[row.line_right], row.line])),
            _range(row.speedups),
            f"{row.gain[0]:.2f} to {row.gain[1]:.2f}" if row.gain else "",
            "open" if row.gain_open else mark[row.gain_right],
        ]
        for row in rows
    ]
    widths = [row.gain[1] / row.gain[0] for row in rows if row.gain]
    total = ["**all**", "", "", "", share(part(row.right for row in rows)), share(part(row.also_right for row in rows)),
             str(sum(row.confidently_wrong for row in rows)), share(part(row.line_right for row in rows)), "",
             f"median width {statistics.median(widths):.2f}" if widths else "",
             gains(rows)]  # fmt: skip
    return markdown(header, [*lines, total])


def main() -> None:
    args = options()
    names = [name for name in args.cases.split(",") if name]
    chosen = [stranger for stranger in strangers(sealed=args.sealed) if not names or stranger.name in names]
    if unknown := set(names) - {stranger.name for stranger in chosen}:
        sys.exit(f"no such scripts: {', '.join(sorted(unknown))}")
    times = {row["name"]: row for row in json.loads(args.times.read_text())} if args.times else {}
    again = {folder.name: facts for folder, facts in kept(args.judge).items()} if args.judge else {}
    rows: list[Row] = []
    for stranger in chosen:
        if args.judge and stranger.name not in again:
            continue
        try:
            rows.append(
                judge_again(stranger, args.judge / stranger.name, again[stranger.name])
                if again
                else run(stranger, args, times)
            )
        except (FailedRunError, subprocess.TimeoutExpired) as error:
            print(f"{stranger.name} fails by itself and is left out: {error}", file=sys.stderr)
            continue
        print(
            f"{rows[-1].name}: {rows[-1].got or 'runs'}"
            + (f", {statistics.median(rows[-1].plain):.1f} s plain" if rows[-1].plain else ""),
            file=sys.stderr,
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps([attrs.asdict(row) for row in rows], indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
