"""Measure reports of a long job: from JSON and Parquet, in one process and with several, and what compact costs.

    python benchmarks/scale.py [--hours 8 | --rows 100e6] [--nodes 1] [--gpus 8] [--job FOLDER] [--workers 1,2]
        [--parts 4,8,16] [--no-parquet]

The job is made hour by hour, in as many processes as there are processors, and deleted at the end. 100 million rows are
12 GB: `--rows 100e6 --nodes 8 --no-parquet --parts 8`. CPU seconds of this process are those that more workers do not
shorten.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"
START_S = 1_700_000_040
EVENTS_OF_A_STEP = 8
RUN = """
import json, resource, sys, time
from sm_profiler.report import build_report
from sm_profiler.metrics.scaling import folding, part
from sm_profiler.source import open_source
where, executor, parts = sys.argv[1], sys.argv[2], int(sys.argv[3])
crossed, parts_s = [], []
decode = type(part.fold_part).decode
def decoded(function, data):
    answer = decode(function, data)
    if function is part.fold_part:
        crossed.append(len(data))
        parts_s.append(answer.cpu_s)
    return answer
type(part.fold_part).decode = decoded
folding.PARTS_PER_WORKER = parts or folding.PARTS_PER_WORKER
started = time.perf_counter()
report = build_report(open_source(where, cache=False, progress=False), executor=executor or None)
seconds = time.perf_counter() - started
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
steps = sum(len(rank.steps) for rank in report.metrics.ranks)
print(json.dumps({"s": seconds, "own_mb": used[0].ru_maxrss / 1024, "worker_mb": used[1].ru_maxrss / 1024,
                  "cpu_s": sum(one.ru_utime + one.ru_stime for one in used),
                  "own_s": used[0].ru_utime + used[0].ru_stime, "parts": len(crossed),
                  "crossed_mb": sum(crossed) / 1e6, "parts_s": parts_s, "rows": report.metrics.system.rows, "steps": steps}))
"""


def make(folder: Path, options: argparse.Namespace) -> Path:
    """Make a job of some hours; each hour is a process of make_job."""
    job = folder / "job"

    def hour(number: int) -> None:
        part = folder / f"hour-{number}"
        shape = ["--nodes", options.nodes, "--gpus", options.gpus, "--cpus", options.cpus]
        shape += ["--steps-per-second", options.steps_per_second, "--minutes", 60, "--seed", number]
        command = [sys.executable, MAKE_JOB, "--out", part, "--start-epoch", START_S + 3600 * number, *shape]
        subprocess.run(
            [*map(str, command), *(["--no-end-marker"] * (number < options.hours - 1))],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for file in part.rglob("*.*"):
            if file.is_file():
                target = job / file.relative_to(part)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
        shutil.rmtree(part)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(hour, range(options.hours)))
    return job


def rows_per_hour(options: argparse.Namespace) -> float:
    """Return the measurements and events of an hour: twice a second, and of each step of each GPU."""
    measured = 3600 * 2 * (options.cpus + 7 * options.gpus)
    return options.nodes * (measured + 3600 * options.steps_per_second * options.gpus * EVENTS_OF_A_STEP)


def measure(where: Path, executor: str = "", parts: int = 0) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(where), executor, str(parts)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def longest_path(found: dict, workers: int) -> float:
    """Return the processor seconds that follow on each other: this process's own, and those of the busiest worker.

    On idle processors a run takes about as long; measured seconds mean little on processors that are busy. What this
    process does while the workers run counts, too.
    """
    loads = [0.0] * max(workers, 1)
    for seconds in sorted(found["parts_s"], reverse=True):
        loads[loads.index(min(loads))] += seconds
    return found["own_s"] + max(loads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=int, default=8)
    parser.add_argument("--rows", type=float, help="make as many hours as have about so many rows")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--cpus", type=int, default=32)
    parser.add_argument("--steps-per-second", type=float, default=4)
    parser.add_argument("--job", type=Path, help="a profile to read instead of a synthetic one")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--parts", default="", help="parts per worker, one run each with the most workers")
    parser.add_argument("--no-parquet", action="store_true")
    parser.add_argument("--folder", help="where the job is made (default: the temporary folder)")
    options = parser.parse_args()
    if options.rows:
        options.hours = max(round(options.rows / rows_per_hour(options)), 2)
    with tempfile.TemporaryDirectory(prefix="sm-profiler-scale-", dir=options.folder) as name:
        folder = Path(name)
        job = options.job or make(folder, options)
        size = sum(file.stat().st_size for file in job.rglob("*") if file.is_file())
        print(f"{size / 1e6:,.0f} MB of JSON")
        sources = {"JSON": job}
        if not options.no_parquet:
            sources["Parquet"] = folder / "parquet"
            command = [sys.executable, "-m", "sm_profiler", "compact", str(job), "--out", str(folder / "parquet")]
            print(subprocess.run(command, capture_output=True, text=True, check=True).stderr.strip())
        print(
            "\n| read | seconds | CPU seconds | of this process | longest path | MiB | largest helper, MiB | parts |"
            " MB from the workers |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        counts = sorted(map(int, options.workers.split(",")))
        times = {}
        for label, where in sources.items():
            runs = [("one process", "", 0), *((f"local:{count}", f"local:{count}", 0) for count in counts)]
            if where == job:
                runs += [
                    (f"local:{counts[-1]}, {each} parts each", f"local:{counts[-1]}", int(each))
                    for each in filter(None, options.parts.split(","))
                ]
            for kind, executor, parts in runs:
                found = measure(where, executor, parts)
                found["path_s"] = longest_path(found, int(executor.partition(":")[2] or 1))
                times[label, kind] = found
                print(
                    f"| {label}, {kind} | {found['s']:.1f} | {found['cpu_s']:.1f} | {found['own_s']:.1f} |"
                    f" {found['path_s']:.1f} |"
                    f" {found['own_mb']:.0f} | {found['worker_mb']:.0f} | {found['parts'] or 1} | {found['crossed_mb']:.1f} |",
                    flush=True,
                )
        print(f"\n{found['rows']:,} measurements, {found['steps']:,} steps")
        for label in sources:
            first, last = (times[label, f"local:{count}"] for count in (counts[0], counts[-1]))
            print(
                f"{label}: {counts[-1]} workers are {first['s'] / last['s']:.2f} times as fast as {counts[0]},"
                f" and {first['path_s'] / last['path_s']:.2f} times by the longest path"
            )


if __name__ == "__main__":
    main()
