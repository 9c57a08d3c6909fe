"""Work and memory of the live page: of each new minute of a job, of a report, and of a server with many viewers.

python benchmarks/serve.py [--minutes 60] [--nodes 8] [--gpus 8] [--jobs 10] [--viewers 20]

A synthetic job is read minute by minute, as its files come. CPU seconds are those of one process; they hardly depend on
what else the machine does. The job is then opened by a server that is started twice. Afterwards `sm-profiler serve`
shows other jobs to viewers that poll all of them. `--minutes 1440` makes a day of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.client import HTTPResponse
from pathlib import Path

from sm_profiler.report.page import page_parts
from sm_profiler.serve.jobs import find_shown
from sm_profiler.serve.reading import JobReader

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"


def minute_of(path: Path) -> int:
    """Return the minute in a file's name."""
    return int(path.name.partition("_")[0].partition(".")[0][:10]) // 60


def grow(job: Path, to: Path) -> None:
    """Read a job minute by minute, and print the work."""
    files = sorted(job.rglob("*.json"), key=lambda path: (minute_of(path), path.name))
    reader, reads, reports = JobReader(str(to)), [], []
    minutes = sorted({minute_of(path) for path in files})
    marks = {minutes[len(minutes) * part // 4 - 1] for part in (1, 2, 3, 4)}
    at = 0
    for minute in minutes:
        while at < len(files) and minute_of(files[at]) == minute:
            target = to / files[at].relative_to(job)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files[at], target)
            at += 1
        before = time.process_time()
        reader.read()
        reads.append(time.process_time() - before)
        if minute in marks:
            before = time.process_time()
            report = reader.report()
            middle = time.process_time()
            size = sum(map(len, page_parts(report).values()))
            reports.append((len(reads), middle - before, time.process_time() - middle, size))
    quarter = max(len(reads) // 4, 1)
    first, last = statistics.median(reads[:quarter]), statistics.median(reads[-quarter:])
    print(f"new minute: {1e3 * first:.0f} ms of CPU in the first quarter of the job, {1e3 * last:.0f} ms in the last")
    for length, computed, rendered, size in reports:
        print(f"report after {length} minutes: {computed:.2f} s of CPU, its page {rendered:.2f} s, {size / 1e3:.0f} kB")


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
            waiting = {job for job in waiting if b'"verdict"' not in opened(f"{address}jobs/{job}/updates").read()}
            time.sleep(0.5)
        streams = [opened(f"{address}jobs/{jobs[number % len(jobs)]}/events") for number in range(viewers)]
        used = cpu_of(server.pid)
        time.sleep(10)
        print(
            f"{len(jobs)} jobs, {viewers} viewers: {memory_of(server.pid):.0f} MB, {10 * (cpu_of(server.pid) - used):.1f} % of a core"
        )
        print(
            f"first answer of a job's page: {1e3 * statistics.median(first):.0f} ms, at most {1e3 * max(first):.0f} ms"
        )
        for stream in streams:
            stream.close()
        server.terminate()


def open_again(folder: Path, cache: Path) -> None:
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
            size = len(opened(f"{address}jobs/{job.id}").read())
            answered = time.perf_counter() - began
            while b'"state":"running"' not in opened(f"{address}jobs/{job.id}/updates").read():
                time.sleep(0.5)
            read = time.perf_counter() - began
            print(
                f"{attempt} start: page of {size / 1e3:.0f} kB after {answered:.2f} s, all files read after {read:.1f} s"
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
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("minutes", 60), ("nodes", 8), ("gpus", 8), ("jobs", 10), ("viewers", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        job, served = Path(scratch, "job"), Path(scratch, "served")
        command = [
            sys.executable,
            str(MAKE_JOB),
            "--out",
            str(job),
            "--no-end-marker",
            "--minutes",
            str(options.minutes),
        ]
        subprocess.run(
            [*command, "--nodes", str(options.nodes), "--gpus", str(options.gpus)], check=True, capture_output=True
        )
        print(f"{options.minutes} minutes on {options.nodes} nodes with {options.gpus} GPUs each")
        grow(job, Path(scratch, "growing"))
        open_again(Path(scratch, "growing"), Path(scratch, "cache"))
        for number in range(options.jobs):
            small = [*command, "--minutes", "10", "--gpus", "2"]
            small[small.index(str(job))] = str(served / f"job-{number}")
            subprocess.run(small, check=True, capture_output=True)
        serve(served, options.viewers)


if __name__ == "__main__":
    main()
