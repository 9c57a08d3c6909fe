"""Cost of the monitor in percent of one core, sampling in real time: `python benchmarks/monitor.py [SECONDS]`."""

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from sm_profiler.limits import Limits
from sm_profiler.monitor.sampler import Cpu, Disk, Memory, Network, Sampler, machine_sources
from sm_profiler.monitor.uploader import Uploader

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
BAR_PERCENT = 0.5  # of one core, at 500 ms
LARGE = 96  # cores, as a p4d.24xlarge has


def sampled(interval_ms: int, sources: list | None = None) -> tuple[float, int, int]:
    """Return (percent of a core, ticks, late ticks) of sampling in real time, all threads and the kernel's part included."""
    with tempfile.TemporaryDirectory() as folder:
        sources = sources or machine_sources()
        for source in sources:  # opens files, finds GPUs
            source.measure(time.monotonic())
        sampler = Sampler(Path(folder), "algo-1", interval_ms / 1000, sources)
        stop = threading.Event()
        threading.Timer(SECONDS, stop.set).start()
        cpu, began = time.process_time(), time.monotonic()
        sampler.run(stop)
        return 100 * (time.process_time() - cpu) / (time.monotonic() - began), sampler.ticks, sampler._ticker.late


def large_machine(folder: Path) -> list:
    """Return the sources with a file of 96 cores in place of /proc/stat; constant numbers cost the same."""
    real = Path("/proc/stat").read_text()
    core = next(line for line in real.splitlines() if line.startswith("cpu0 ")).removeprefix("cpu0")
    rest = real[real.index("intr") :]
    (folder / "stat").write_text("cpu" + core + "\n" + "".join(f"cpu{n}{core}\n" for n in range(LARGE)) + rest)
    limits = Limits(folder, folder / "none")
    return [Cpu(limits, folder / "stat"), Memory(limits), Disk(), Network()]


def reading(sources: list, turns: int = 300) -> float:
    """Return the milliseconds of CPU time for one reading of all sources, median."""
    taken = []
    for turn in range(turns):
        before = time.thread_time()
        for source in sources:
            source.measure(float(turn))
        taken.append(1000 * (time.thread_time() - before))
    return statistics.median(taken)


def listing(files: int) -> float:
    """Return the milliseconds for listing so many files that are all uploaded."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            path = Path(folder, f"framework/pevents/{number // 500:010}/{number}_0-algo-1_pythontimeline.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        uploader = Uploader(Path(folder), None)
        uploader._done = {info.key: (info.etag, info.size) for info in uploader.pending()}
        before = time.process_time()
        assert not uploader.pending()
        return 1000 * (time.process_time() - before)


def main() -> None:
    print(
        f"monitor, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {SECONDS:g} s each, load {os.getloadavg()[0]:.1f}"
    )
    print()
    print("| sampling | % of one core | ticks | late |")
    print("|---|---|---|---|")
    for interval in (500, 100):
        percent, ticks, late = sampled(interval)
        print(f"| this machine, {interval} ms | {percent:.2f} | {ticks} | {late} |")
    with tempfile.TemporaryDirectory() as folder:
        percent, ticks, late = sampled(500, large_machine(Path(folder)))
        print(
            f"| /proc/stat of {LARGE} cores (a file: without the kernel's part), 500 ms | {percent:.2f} | {ticks} | {late} |"
        )
    limits = Limits()
    ours = reading([Cpu(limits), Memory(limits), Disk(), Network()])
    print()
    print("| reading all sources once | ms of CPU time |")
    print("|---|---|")
    print(f"| /proc directly | {ours:.3f} |")
    print(f"| uploader: listing 10,000 uploaded files | {listing(10_000):.0f} |")
    print()
    print(f"bar: {BAR_PERCENT} % of one core at 500 ms")


if __name__ == "__main__":
    main()
