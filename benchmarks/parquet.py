"""Measure how much faster a profile is read from Parquet than from its JSON, in CPU seconds of all processes.

    python benchmarks/parquet.py [--hours 6] [--repeat 3] [--only ROW ...] [--keep FOLDER]

The job has 8 GPUs and takes 180 MB of JSON an hour. Each figure is the least of some runs, each in a process of its own,
without the imports. "rows" is a report of which the kept state is not used; the others use that of the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"
START_S = 1_700_002_800  # a full hour
RUN = """
import json, resource, sys, tempfile
from pathlib import Path
import pandas, pyarrow.parquet
from sm_profiler.analysis import PandasFrame
from sm_profiler.report import build_report
from sm_profiler.report.compare import compare
from sm_profiler.report.write import export_timeline
from sm_profiler.source import open_source
from sm_profiler.source.parquet import storage

def opened():
    return open_source(where, cache=False, progress=False)

def read_timeline():
    with tempfile.TemporaryDirectory() as folder:
        export_timeline(opened(), Path(folder) / "trace.json")

def without_state():
    storage.ParquetStorage.digest = None
    build_report(opened())

what, where = sys.argv[1:]
work = {
    "report": lambda: build_report(opened()),
    "report, rows": without_state,
    "compare": lambda: compare(build_report(opened()), build_report(opened())),
    "merge-timeline": read_timeline,
    "its rows, by the minute": lambda: sum(len(batch.events) for batch in opened().batches(unsettled=True)),
    "columns, system": lambda: opened().system(),
    "columns, events": lambda: opened().events(),
    "frame, system": lambda: PandasFrame(opened()).get_all_system_metrics(),
    "frame, events": lambda: PandasFrame(opened()).get_all_framework_metrics(),
}
if not what:
    print(json.dumps(list(work)))
    sys.exit()

def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

before = cpu()
work[what]()
print(json.dumps([cpu() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def run(what: str, where: Path) -> list:
    command = [sys.executable, "-c", RUN, what, str(where)]
    environment = os.environ | {"SM_PROFILER_CACHE": str(where.parent / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def made(folder: Path, hours: float) -> tuple[Path, Path]:
    """Make a job as JSON and as Parquet, unless they are there."""
    job, dataset = folder / f"json-{hours:g}", folder / f"parquet-{hours:g}"
    if not job.exists():
        shape = ["--gpus", 8, "--cpus", 32, "--minutes", int(60 * hours), "--start-epoch", START_S]
        subprocess.run(
            list(map(str, [sys.executable, MAKE_JOB, "--out", job, *shape])), check=True, capture_output=True
        )
    if not dataset.exists():
        command = [sys.executable, "-m", "sm_profiler", "compact", str(job), "--out", str(dataset)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stderr.strip() + "\n")
    return job, dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="ROW", help='rows of the table, as "frame, events"')
    parser.add_argument("--keep", type=Path, help="a folder for the job, which a second call reads again")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="sm-profiler-parquet-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        job, dataset = made(folder, options.hours)
        print("| | JSON, CPU s | Parquet, CPU s | times as fast | JSON, MiB | Parquet, MiB |\n" + "|---" * 6 + "|")
        for what in options.only or run("", job):
            runs = [[run(what, where) for _ in range(options.repeat)] for where in (job, dataset)]
            (json_s, json_mb), (parquet_s, parquet_mb) = map(min, runs)
            print(
                f"| {what} | {json_s:.2f} | {parquet_s:.2f} | {json_s / parquet_s:.1f} | {json_mb:.0f} | {parquet_mb:.0f} |",
                flush=True,
            )
    finally:
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
