"""How fast profiler output becomes columns and frames, and how fast smdebug 1.0.34 does the same.

    python benchmarks/reading.py [--job FOLDER] [--quick] [--repeat N]

Without a folder a synthetic job is made: 2 nodes, 16 GPUs, one hour (1.67 million measurements, 5.52 million events), or with
--quick 6 minutes of it.  Every figure is the best of N runs (smdebug: one run), each in a process of its own; memory is the
peak of that process plus, where it has any, of its largest helper.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKE_JOB = ROOT / "tests" / "tools" / "make_job.py"
OLD = ROOT / ".envs" / "smdebug" / "bin" / "python"
OPTIONS = ["--nodes", "2", "--gpus", "8", "--cpus", "46", "--steps-per-second", "12"]

RUN = """
import json, resource, sys, time
{setup}
started = time.perf_counter()
rows = {call}
seconds = time.perf_counter() - started
peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([rows, seconds, peak / 1024]))
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


def measure(
    python: Path | str, setup: str, call: str, job: Path, repeat: int, **environment: str
) -> tuple[int, float, float]:
    """Rows, seconds and MiB of the fastest of several runs."""
    script = RUN.format(setup=setup, call=call)
    runs = []
    for _ in range(repeat):
        done = subprocess.run(
            [python, "-c", script, job], env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    rows, seconds, mebibytes = min(runs, key=lambda run: run[1])
    return rows, seconds, mebibytes


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
    two, one = (SOURCE.format(cache=False, processes=count) for count in (2, 1))
    kept = SOURCE.format(cache=True, processes=None)
    rows = {}
    for name, part, frame in (("system metrics", "system", "system"), ("trace events", "events", "framework")):
        rows[name, "columns, 2 processes"] = measure(sys.executable, two, f"len(source.{part}())", job, repeat)
        rows[name, "columns, 1 process"] = measure(sys.executable, one, f"len(source.{part}())", job, repeat)
        call = f"len(PandasFrame(open_source(sys.argv[1], cache=False)).get_all_{frame}_metrics())"
        rows[name, "PandasFrame"] = measure(sys.executable, FRAME, call, job, repeat)
        measure(sys.executable, kept, f"len(source.{part}())", job, 1, **cache)
        rows[name, "columns, second time (copy)"] = measure(
            sys.executable, kept, f"len(source.{part}())", job, repeat, **cache
        )
        call = f"len(PandasFrame(sys.argv[1]).get_all_{frame}_metrics())"
        rows[name, "PandasFrame, second time (copy)"] = measure(sys.executable, FRAME, call, job, repeat, **cache)
        decoder = "system_reader._DECODER.decode_lines" if part == "system" else "trace_reader._ARRAY.decode"
        pattern = "/system/**/*.json" if part == "system" else "/framework/**/*.json"
        rows[name, "floor: read and tokenise, 1 process"] = measure(
            sys.executable, FLOOR, f"decode({pattern!r}, {decoder})", job, repeat
        )
        if OLD.exists():
            rows[name, "smdebug 1.0.34"] = measure(OLD, OLD_FRAME, f"len(frame.get_all_{frame}_metrics())", job, 1)
    print(
        "| data | read by | rows | seconds | MiB | times as fast as smdebug | part of its memory |\n|---|---|---|---|---|---|---|"
    )
    for (name, how), (count, seconds, mebibytes) in rows.items():
        old = rows.get((name, "smdebug 1.0.34"))
        ratios = f"{old[1] / seconds:.1f} | 1/{old[2] / mebibytes:.1f}" if old else "- | -"
        print(f"| {name} | {how} | {count:,} | {seconds:.2f} | {mebibytes:,.0f} | {ratios} |")
    pairs = [(loops(1), loops(2)) for _ in range(repeat)]
    loop = max(2 * alone / both for alone, both in pairs)
    ours = rows["trace events", "columns, 1 process"][1] / rows["trace events", "columns, 2 processes"][1]
    print(
        f"\nFrom 1 to 2 processes: {ours:.2f} times as fast; a pure Python loop: {loop:.2f} times ({ours / loop:.2f} of it)."
    )


if __name__ == "__main__":
    main()
