"""Work and memory of the live page: of each new minute of a job, of a report, and of a server with many viewers.

    python benchmarks/serve.py [--hours 1] [--gpus 64] [--formats json,parquet] [--jobs 10] [--viewers 20] [--keep FOLDER]

A made job is read minute by minute, as its files come, up to and after an hour's quarters; of a longer one, its first
hours are read at once. CPU seconds are those of one process and of the helpers it started; they hardly depend on what
else the machine does. The job is then opened by a server that is started twice, and again as a profile in Parquet.
Afterwards `sm-profiler serve` shows it with smaller jobs to viewers that follow all of them. `--hours 24 --keep /tmp/live`
makes a day of it, of 2 GB, which a second call reads again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.client import HTTPResponse
from pathlib import Path

from sm_profiler.render.page import page_parts
from sm_profiler.serve.jobs import find_shown
from sm_profiler.serve.reading import JobReader

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"
GPUS = 8  # of a node
NEW_MINUTES = 60  # read one by one, at the end of the job
SPARSE = ["--interval-ms", "5000", "--steps-per-second", "0.25", "--modules", "1"]  # a day of 64 GPUs: 2 GB


def minute_of(path: Path) -> int:
    """Return the minute in a file's name."""
    return int(path.name.partition("_")[0].partition(".")[0][:10]) // 60


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def grow(job: Path, to: Path) -> None:
    """Read a job's first part at once and its last hour minute by minute, and print the work."""
    by_minute: dict[int, list[Path]] = {}
    for path in job.rglob("*.json"):
        by_minute.setdefault(minute_of(path), []).append(path)
    minutes = sorted(by_minute)
    late = minutes[-min(NEW_MINUTES, len(minutes) // 2) :]
    shutil.rmtree(to, ignore_errors=True)
    for minute in minutes[: -len(late)]:
        link(job, to, by_minute[minute])
    reader, reads, reports = JobReader(str(to)), [], []
    before = cpu_s()
    reader.read()
    print(
        f"first {len(minutes) - len(late)} minutes: {cpu_s() - before:.1f} s of CPU, {reader.files:,} files", flush=True
    )
    marks = {late[len(late) * part // 4 - 1] for part in (1, 2, 3, 4)}
    for minute in late:
        link(job, to, by_minute[minute])
        before = cpu_s()
        reader.read()
        reads.append(cpu_s() - before)
        if minute in marks:
            before = cpu_s()
            report = reader.report()
            middle = cpu_s()
            size = sum(map(len, page_parts(report).values()))
            reports.append((minutes.index(minute) + 1, middle - before, cpu_s() - middle, size))
    print(f"new minute of {len(by_minute[late[0]])} files: {1e3 * statistics.median(reads):.0f} ms of CPU", flush=True)
    for length, computed, rendered, size in reports:
        print(f"report after {length} minutes: {computed:.2f} s of CPU, its page {rendered:.2f} s, {size / 1e3:.0f} kB")
    with_open_files(job, to, by_minute[late[-1]], reader)
    print(f"memory of this process: {memory_of(os.getpid()):.0f} MB")


def with_open_files(job: Path, to: Path, files: list[Path], reader: JobReader) -> None:
    """Rewrite the last minute as files that are still written, and print the work of showing them."""
    for path in files:
        target = to / path.relative_to(job)
        if "pevents" not in path.parts:
            opened = target.with_name(f"{target.name}.tmp")
        else:
            time_us, _, rest = path.stem.partition("_")
            source, _, kind = rest.partition("_")
            opened = to / "framework" / "pevents" / f"{source}_{kind}_1_0_{time_us}.json.tmp"
        shutil.copyfile(path, opened)
    before = cpu_s()
    reader.read()
    middle = cpu_s()
    page_parts(reader.report())
    print(f"with {len(files)} open files: {1e3 * (middle - before):.0f} ms to notice, {cpu_s() - middle:.2f} s to show")
    for opened in to.rglob("*.tmp"):
        opened.unlink()


def link(job: Path, to: Path, files: list[Path]) -> None:
    """Link files of a job."""
    for path in files:
        target = to / path.relative_to(job)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)


def serve(folder: Path, viewers: int) -> None:
    """Show jobs to viewers, and print the server's memory and work."""
    command = [sys.executable, "-m", "sm_profiler", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        jobs = [found.id for found in find_shown(str(folder))]
        first = []
        for job in jobs:
            began = time.perf_counter()
            opened(f"{address}jobs/{job}").read()
            first.append(time.perf_counter() - began)
        waiting = set(jobs)
        while waiting:
            waiting = {
                job for job in waiting if b'"state":"running"' not in opened(f"{address}jobs/{job}/updates").read()
            }
            time.sleep(0.5)
        for number in range(viewers):
            threading.Thread(target=view, args=(f"{address}jobs/{jobs[number % len(jobs)]}",), daemon=True).start()
        used = cpu_of(server.pid)
        time.sleep(10)
        print(
            f"{len(jobs)} jobs, {viewers} viewers: {memory_of(server.pid):.0f} MB, {10 * (cpu_of(server.pid) - used):.1f} % of a core"
        )
        print(
            f"first answer of a job's page: {1e3 * statistics.median(first):.0f} ms, at most {1e3 * max(first):.0f} ms"
        )
        server.terminate()


def view(page: str) -> None:
    """Follow a job as its page does, until the server ends."""
    version = ""
    with contextlib.suppress(OSError):
        while True:
            version = json.load(opened(f"{page}/updates?since={version}"))["version"]


def open_again(folder: Path, cache: Path, label: str) -> None:
    """Show a job, start the server anew, and print how soon its page is there."""
    environment = {**os.environ, "SM_PROFILER_CACHE": str(cache)}
    command = [sys.executable, "-m", "sm_profiler", "serve", str(folder), "--port", "0"]
    (job,) = find_shown(str(folder))
    for attempt in ("first", "second"):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            began = time.perf_counter()
            page = opened(f"{address}jobs/{job.id}").read()
            answered = time.perf_counter() - began
            while not any(
                state in opened(f"{address}jobs/{job.id}/updates").read()
                for state in (b'"state":"running"', b'"state":"ended"')
            ):
                time.sleep(0.5)
            read = time.perf_counter() - began
            print(
                f"{label}, {attempt} start: page of {len(page) / 1e3:.0f} kB after {answered:.2f} s, "
                f"all read after {read:.1f} s, {cpu_of(server.pid):.1f} s of CPU, {memory_of(server.pid):.0f} MB",
                flush=True,
            )
            server.terminate()


def opened(url: str) -> HTTPResponse:
    """Return the answer of the server that was started here."""
    answer: HTTPResponse = urllib.request.urlopen(url)  # noqa: S310 - the address that it printed
    return answer


def memory_of(pid: int) -> float:
    """Return the resident megabytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and of those it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def make(folder: Path, *options: str) -> None:
    """Make a job unless it is there."""
    if not folder.exists():
        command = [sys.executable, str(MAKE_JOB), "--out", str(folder), "--no-end-marker", *options]
        subprocess.run(command, check=True, capture_output=True)


def measure(scratch: Path, options: argparse.Namespace) -> None:
    """Measure in a folder."""
    nodes, gpus = -(-options.gpus // GPUS), min(options.gpus, GPUS)
    minutes = round(60 * options.hours)
    job = scratch / f"job-{minutes}-{options.gpus}"
    make(job, "--minutes", str(minutes), "--nodes", str(nodes), "--gpus", str(gpus), *SPARSE)
    print(f"{minutes} minutes on {nodes} nodes with {gpus} GPUs each", flush=True)
    if "json" in options.formats:
        grow(job, scratch / "growing")
        open_again(scratch / "growing", scratch / f"pages-{os.getpid()}", "JSON")
    if "parquet" in options.formats:
        columns = scratch / f"parquet-{minutes}-{options.gpus}"
        if not columns.exists():
            command = [sys.executable, "-m", "sm_profiler", "compact", str(job), "--out", str(columns)]
            subprocess.run(command, check=True, capture_output=True)
        open_again(columns, scratch / f"pages-of-parquet-{os.getpid()}", "Parquet")
    served = scratch / "served"
    shutil.rmtree(served, ignore_errors=True)
    for number in range(1, options.jobs):
        make(served / f"job-{number}", "--minutes", "10", "--gpus", "2")
    if options.jobs:
        shutil.copytree(job, served / "large", copy_function=os.link)
        serve(served, options.viewers)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1)
    for name, default in (("gpus", 64), ("jobs", 10), ("viewers", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--formats", default="json,parquet")
    parser.add_argument("--keep", type=Path, help="a folder for the jobs, which a second call reads again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        measure(folder, options)


if __name__ == "__main__":
    main()
