"""Speed and memory of reading profiler output into columns and frames, compared with smdebug 1.0.34.

    python benchmarks/reading.py [--job FOLDER] [--quick] [--repeat N]

Without a folder, a synthetic job is generated: 2 nodes, 16 GPUs, one hour (1.67 million measurements, 5.52 million events),
or 6 minutes of it with --quick. Every figure is the best of N runs (smdebug: one run), each in a process of its own; memory
is the peak of that process plus that of its largest helper.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[1]
MAKE_JOB = ROOT / "tests" / "tools" / "make_job.py"
OLD = ROOT / ".envs" / "smdebug" / "bin" / "python"
OPTIONS = ["--nodes", "2", "--gpus", "8", "--cpus", "46", "--steps-per-second", "12"]

SCRIPT = """
import json, resource, sys, time
{setup}
def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
before, started = cpu(), time.perf_counter()
rows = {call}
seconds = time.perf_counter() - started
print(json.dumps([rows, seconds, cpu() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
SOURCE = "from sm_profiler.source import open_source\nsource = open_source(sys.argv[1], cache={cache}, processes={processes})"
FRAME = "from sm_profiler.analysis import PandasFrame\nfrom sm_profiler.source import open_source"
FLOOR = """
import gc, glob
gc.disable()
from sm_profiler.formats import system_reader, trace_reader
def decode(pattern, decode):
    return sum(len(decode(open(path, "rb").read())) for path in glob.glob(sys.argv[1] + pattern, recursive=True))
"""
OLD_FRAME = """
import logging, warnings; logging.disable(50); warnings.simplefilter("ignore")
from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame
frame = PandasFrame(sys.argv[1])
"""
LOOP = "started = time.perf_counter(); x = 0\nfor i in range(20_000_000): x += i\nprint(time.perf_counter() - started)"


@attrs.frozen
class Run:
    """Costs of one run: rows, seconds, CPU seconds, and MiB of the process plus its largest helper."""

    rows: int
    seconds: float
    cpu: float
    mebibytes: float


def measure(python: Path | str, setup: str, call: str, job: Path, repeat: int, **environment: str) -> Run:
    """Return the fastest of several runs."""
    script = SCRIPT.format(setup=setup, call=call)
    runs = []
    for _ in range(repeat):
        process = subprocess.Popen(
            [python, "-c", script, job], env=os.environ | environment, stdout=subprocess.PIPE, text=True
        )
        helper = largest_helper(process)
        said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        rows, seconds, cpu, own = json.loads(said.splitlines()[-1])
        runs.append(Run(rows, seconds, cpu, own + helper))
    return min(runs, key=lambda run: run.seconds)


def largest_helper(process: subprocess.Popen[str]) -> float:
    """MiB at most of the largest process that this one has started, watched until it ends.

    What the kernel reports of ended children (ru_maxrss) counts the parent's memory at their start as theirs, and so does
    what it shows of one that has not begun its program: so the last value of each counts.
    """
    peaks: dict[str, int] = {}
    while process.poll() is None:
        with suppress(OSError):
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                peak = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{child}/status").read_text())
                peaks[child] = int(peak[1]) if peak else peaks.get(child, 0)
        time.sleep(0.02)
    return max(peaks.values(), default=0) / 1024


def loops(count: int) -> float:
    """Seconds for so many pure Python loops at the same time."""
    started = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, "-c", "import time\n" + LOOP], stdout=subprocess.DEVNULL)
        for _ in range(count)
    ]
    for process in processes:
        process.wait()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job", type=Path, help="a profiler output to read instead of a synthetic one")
    parser.add_argument("--quick", action="store_true", help="6 minutes of a job instead of an hour")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sm-profiler-bench-"))
    try:
        job = options.job or folder / "job"
        if not options.job:
            command = [sys.executable, MAKE_JOB, "--out", job, *OPTIONS, "--minutes", "6" if options.quick else "60"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report(job, folder, options.repeat)
    finally:
        shutil.rmtree(folder)


def report(job: Path, folder: Path, repeat: int) -> None:
    cache = {"SM_PROFILER_CACHE": str(folder / "cache")}
    two, single = (SOURCE.format(cache=False, processes=count) for count in (2, 1))
    kept = SOURCE.format(cache=True, processes=None)
    rows: dict[tuple[str, str], Run] = {}
    for name, part, frame in (("system metrics", "system", "system"), ("trace events", "events", "framework")):
        if OLD.exists():
            rows[name, "smdebug 1.0.34"] = measure(OLD, OLD_FRAME, f"len(frame.get_all_{frame}_metrics())", job, 1)
        call = f"len(PandasFrame(open_source(sys.argv[1], cache=False)).get_all_{frame}_metrics())"
        rows[name, "PandasFrame"] = measure(sys.executable, FRAME, call, job, repeat)
        call = f"len(PandasFrame(sys.argv[1]).get_all_{frame}_metrics())"
        rows[name, "PandasFrame, keeping a copy"] = measure(sys.executable, FRAME, call, job, 1, **cache)
        rows[name, "PandasFrame, second time"] = measure(sys.executable, FRAME, call, job, repeat, **cache)
        call = f"len(source.{part}())"
        rows[name, "columns, 1 process"] = measure(sys.executable, single, call, job, repeat)
        rows[name, "columns, 2 processes"] = measure(sys.executable, two, call, job, repeat)
        rows[name, "columns, second time"] = measure(sys.executable, kept, call, job, repeat, **cache)
        decoder = "system_reader._DECODER.decode_lines" if part == "system" else "trace_reader._ARRAY.decode"
        pattern = "/system/**/*.json" if part == "system" else "/framework/**/*.json"
        call = f"decode({pattern!r}, {decoder})"
        rows[name, "the floor: read and tokenise, 1 process"] = measure(sys.executable, FLOOR, call, job, repeat)
    print("| data | read by | seconds | of processors | MiB | times as fast as smdebug | part of its memory |")
    print("|---|---|---|---|---|---|---|")
    for (name, how), run in rows.items():
        old = rows.get((name, "smdebug 1.0.34"))
        ratios = f"{old.seconds / run.seconds:.1f} | 1/{old.mebibytes / run.mebibytes:.1f}" if old else "- | -"
        print(f"| {name} | {how} | {run.seconds:.2f} | {run.cpu:.2f} | {run.mebibytes:,.0f} | {ratios} |")
    counts = ", ".join(f"{rows[name, 'PandasFrame'].rows:,} {name}" for name in ("system metrics", "trace events"))
    print(f"\nRows: {counts}.")
    print(scaling(job, max(repeat, 3)))


def scaling(job: Path, rounds: int) -> str:
    """Return the gain of a second process, and the gain for a pure Python loop, measured in turns as the speed varies."""
    ours, loop = [], []
    single, two = (SOURCE.format(cache=False, processes=count) for count in (1, 2))
    for _ in range(rounds):
        alone, both = (
            measure(sys.executable, setup, "len(source.events())", job, 1).seconds for setup in (single, two)
        )
        ours.append(alone / both)
        loop.append(2 * loops(1) / loops(2))
    gain, bound = statistics.median(ours), statistics.median(loop)
    return f"From 1 to 2 processes: {gain:.2f} times as fast; a pure Python loop: {bound:.2f} times ({gain / bound:.2f} of it)."


if __name__ == "__main__":
    main()
