"""Measure what `sm-profiler run` costs eleven kinds of training loops, in its default configuration.

    python benchmarks/pairs.py [--quick] [--pairs 5] [--kinds cells,samples] [--core 1]

Each kind runs twice at the same time on one core, plain and under `sm-profiler run`: what else the machine does slows
both alike. Neither waits for the other, since a pause would be time of the training for the hook, whose budgets are
shares of that. On a single core NumPy's and torch's libraries start no threads, and C's allocator and locks are faster
in a process that never had a second one; so the plain run has a thread that waits for ever, as it would with more cores.
Costs are CPU time of the training process, by blocks of a few steps. Columns, medians of the pairs:

- step: CPU time of a step without the profiler;
- windows: what the profiled run takes more in its first part, in which the windows lie, besides the cost after it;
- after: by how much the median block after the first part is longer;
- paired: by how much the whole run is longer, with windows, as a share of it;
- stated: what the report of that run states as profiling cost, of the same CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "pairs" / "script.py"
KINDS = ("cells", "samples", "tiny", "evaluations", "workers", "trainer", "lightning", "keras", "jax", "ranks", "long")
ENVIRONMENTS = {"trainer": "libraries", "lightning": "libraries", "keras": "frameworks", "jax": "frameworks"}
LONG = 3  # times as many blocks of the long one
FIRST_S = 3.0  # CPU time of the plain run in which the windows of the other lie
STEPS_A_BLOCK = {"tiny": 60, "evaluations": 20, "workers": 20, "lightning": 10, "keras": 20, "jax": 60, "ranks": 10}
USUAL_STEPS = 3
GOALS = "goals: windows at most 0.5 s, after at most 1 %, stated within 2 points of paired"


class Run:
    """One of the two runs of a pair."""

    def __init__(self, kind: str, blocks: int, folder: Path, core: int, words: Sequence[str]) -> None:
        folder.mkdir()
        os.mkfifo(folder / "go")
        (folder / "done").touch()
        python = python_of(kind)
        script = [str(SCRIPT), kind, str(blocks), str(STEPS_A_BLOCK.get(kind, USUAL_STEPS))]
        if kind == "ranks":
            launch = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *script]
            command = [str(python), *words, "--", *launch] if words else launch
        else:
            command = [str(python), *words, *script]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                ["taskset", "-c", str(core), *command], cwd=folder, stdout=log, stderr=log, env=environment(folder)
            )
        self._folder = folder
        self.times: list[float] = []  # CPU time of the process when the first block began, and at the end of each

    def await_ready(self) -> None:
        """Wait for its first block."""
        while not (self._folder / "done").stat().st_size:
            self._check()

    def go(self) -> None:
        """Let it run all blocks."""
        (self._folder / "go").write_text("\n")

    def finish(self) -> None:
        """Wait until it has ended."""
        while self._process.poll() is None:
            self._check()
        self._check()
        self.times = [float(line) for line in (self._folder / "done").read_text().splitlines()]

    def _check(self) -> None:
        if self._process.poll():
            raise SystemExit((self._folder / "log").read_text())
        time.sleep(0.05)


def python_of(kind: str) -> Path:
    return ROOT / ".envs" / ENVIRONMENTS.get(kind, "dev") / "bin" / "python"


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SM_PROFILER", "SMPROFILER"))}
    quiet = {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    return {**kept, **quiet, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PAIR": str(folder)}


def measure(kind: str, blocks: int, core: int, *, alone: bool) -> dict[str, float]:
    """Run a pair; return its row."""
    os.environ.pop("PAIR_THREAD", None)
    with tempfile.TemporaryDirectory(prefix="sm-profiler-pair-") as name:
        folder = Path(name)
        profile = folder / "profile"
        profiled = ["-m", "sm_profiler", "run", "--out", str(profile)]
        other = Run(kind, blocks, folder / "profiled", core, profiled)
        if not alone:
            os.environ["PAIR_THREAD"] = "1"
        plain = Run(kind, blocks, folder / "plain", core, [])
        for act in (Run.await_ready, Run.go, Run.finish):
            act(plain)
            act(other)
        stated = stated_seconds(profile, folder)
    spent = [[end - start for start, end in pairwise(run.times)] for run in (plain, other)]
    first = next((at for at, end in enumerate(plain.times[1:]) if end - plain.times[0] > FIRST_S), blocks // 3)
    after = statistics.median(b / a for a, b in zip(*(times[first:] for times in spent), strict=True)) - 1
    starts = [sum(times[:first]) for times in spent]
    windows = starts[1] - starts[0] * (1 + after)
    total = [sum(times) for times in spent]
    return {
        "step": statistics.median(spent[0]),
        "windows": windows,
        "after": after,
        "paired": (total[1] - total[0]) / total[1],
        "stated": stated / total[1],
        "seconds": total[0],
    }


def stated_seconds(profile: Path, folder: Path) -> float:
    """Return the seconds that the report counts as the profiler's."""
    subprocess.run(
        [sys.executable, "-m", "sm_profiler", "report", str(profile), "--out", str(folder / "report")],
        check=True, capture_output=True, env=environment(folder),
    )  # fmt: skip
    job = json.loads((folder / "report" / "report.json").read_text())["job"]
    rank = job["ranks"][0]
    return float(job["profiler_overhead"]) * (rank["loop_s"] + rank["excluded_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short pair of each kind")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=400, help="of each run")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--alone", action="store_true", help="the plain run has no second thread")
    options = parser.parse_args()
    pairs, blocks = (1, 150) if options.quick else (options.pairs, options.blocks)
    print(
        "| kind | step, ms | windows, s | after, % | paired, % | stated, % | seconds of a run |\n|---|---|---|---|---|---|---|"
    )
    for kind in options.kinds.split(","):
        if not python_of(kind).exists():
            print(f"| {kind} | not run: no {python_of(kind).relative_to(ROOT)} |")
            continue
        rows = [
            measure(kind, blocks * (LONG if kind == "long" else 1), options.core, alone=options.alone)
            for _ in range(pairs)
        ]
        middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        step_ms = 1e3 * middle["step"] / STEPS_A_BLOCK.get(kind, USUAL_STEPS)
        percent = {name: 100 * middle[name] for name in ("after", "paired", "stated")}
        each = ", ".join(f"{100 * after:.1f}" for after in sorted(row["after"] for row in rows))
        print(
            f"| {kind} | {step_ms:.2f} | {middle['windows']:.2f} | {percent['after']:.1f} ({each}) | "
            f"{percent['paired']:.1f} | {percent['stated']:.1f} | {middle['seconds']:.0f} |",
            flush=True,
        )
    print(f"\n{GOALS}")


if __name__ == "__main__":
    main()
