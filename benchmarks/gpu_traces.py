"""Time and memory of reading traces of torch.profiler, beside HolisticTraceAnalysis on the same files.

python benchmarks/gpu_traces.py [FOLDER…] [--hta PYTHON] [--repeat 3]
python benchmarks/gpu_traces.py FOLDER --grow 1000 [--gzip] [--hta PYTHON]

Each folder holds the traces of one job. PYTHON is the interpreter of an environment with HolisticTraceAnalysis. Both read
the traces and compute the same tables: time of the GPU, idle time by reason, kernels, overlap, launches, queues, copies.
Their processes take turns. Times and memory are those of the whole process, imports included, and those beyond the
imports. With --grow a folder's trace is repeated until its text has so many megabytes: later steps of one long recording.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[1] / "tests" / "data" / "gpu_traces"
ENOUGH = 10, 5  # so many times as fast, and so much less memory, are aimed at
AROUND = """
import json, os, resource, sys, time
folder, out, began = sys.argv[1], sys.argv[2], float(sys.argv[3])
def memory():
    own, children = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(own, children)
{imports}
imported, with_imports, cpu = time.time(), memory(), sum(os.times()[:4])
{work}
found = {{"whole_s": time.time() - began, "own_s": time.time() - imported, "cpu_s": sum(os.times()[:4]), "own_cpu_s": sum(os.times()[:4]) - cpu,
         "whole_mib": memory(), "own_mib": memory() - with_imports}}
json.dump(found, open(out, "w"))
"""
TABLES = """
for table in ("temporal_breakdown", "idle_breakdown", "kernels", "communication_overlap", "launch_statistics", "queue_length",
              "memory_bandwidth"):
"""
SIDES = {
    "columns": (
        "from sm_profiler.analysis.gpu import GpuTraces",
        f"gpu = GpuTraces(folder){TABLES}    gpu.columns(table)",
    ),
    "DataFrames": (
        "from sm_profiler.analysis.gpu import GpuTraces\nimport pandas",
        f"gpu = GpuTraces(folder){TABLES}    getattr(gpu, table)()",
    ),
    "HolisticTraceAnalysis": (
        "from hta.trace_analysis import TraceAnalysis",
        """
names = sorted(name for name in os.listdir(folder) if name.endswith((".json", ".json.gz")) and name != "hta.json")
hta = TraceAnalysis(trace_files={number: os.path.join(folder, name) for number, name in enumerate(names)}, trace_dir=folder)
ranks = list(range(len(names)))
hta.get_temporal_breakdown(visualize=False)
for rank in ranks:
    hta.get_idle_time_breakdown(ranks=[rank], visualize=False)
hta.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
hta.get_comm_comp_overlap(visualize=False)
hta.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
hta.get_queue_length_summary(ranks=ranks)
hta.get_memory_bw_summary(ranks=ranks)
""",
    ),
}


def run(python: str, side: str, folder: Path) -> dict[str, float]:
    """Run one side in a process of its own."""
    imports, work = SIDES[side]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "usage.json")
        command = [python, "-c", AROUND.format(imports=imports, work=work), str(folder), str(out), str(time.time())]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(out.read_text())


def text_of(folder: Path) -> int:
    """Return the length of the traces' text."""
    return sum(
        sum(len(block) for block in unpacked(path)) for path in folder.iterdir()
        if path.name.endswith((".json", ".json.gz")) and path.name != "hta.json"
    )  # fmt: skip


def unpacked(path: Path) -> Iterator[bytes]:
    """Yield the text of a trace."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def grow(source: Path, target: Path, megabytes: int) -> None:
    """Write a trace of so many megabytes that repeats one in time, each time with correlations of its own."""
    document = json.loads(b"".join(unpacked(source)))
    events = document.pop("traceEvents")
    times = [event["ts"] for event in events if event.get("ph") == "X"]
    lasts = max(times) - min(times) + 1000
    offset = 1 + max(event.get("args", {}).get("correlation", 0) for event in events)
    written = number = 0
    with gzip.open(target, "wb", 6) if target.suffix == ".gz" else target.open("wb") as file:
        file.write(json.dumps(document)[:-1].encode() + b', "traceEvents": [\n')
        while written < megabytes * 1_000_000:
            chosen = [
                moved(event, number * lasts, number * offset) for event in events if number == 0 or event["ph"] != "M"
            ]
            text = ",\n".join(json.dumps(event, indent=1) for event in chosen).encode()
            file.write((b",\n" if number else b"") + text)
            written += len(text)
            number += 1
        file.write(b"\n]}\n")


def moved(event: dict[str, Any], by_us: float, by_number: int) -> dict[str, Any]:
    """Return an event at a later time."""
    arguments = dict(event.get("args", {}))
    for name in ("correlation", "Sequence number"):
        if isinstance(arguments.get(name), int):
            arguments[name] += by_number
    found = {**event, "ts": event.get("ts", 0) + by_us, "args": arguments}
    return {**found, "id": event["id"] + by_number} if isinstance(event.get("id"), int) else found


def measured(folder: Path, sides: dict[str, str], repeat: int) -> None:
    """Print one row a side, and what the columns are to HolisticTraceAnalysis."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(repeat):  # in turns, so that both meet the same load
        for side, python in sides.items():
            found[side].append(run(python, side, folder))
    size = text_of(folder) / 1e6
    medians = {
        side: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for side, runs in found.items()
    }
    for side, cost in medians.items():
        print(
            f"| {folder.name}, {size:.0f} MB | {side} | {cost['whole_s']:.2f} | {cost['own_s']:.2f} | {cost['cpu_s']:.2f} "
            f"| {cost['own_cpu_s']:.2f} "
            f"| {cost['whole_mib']:.0f} | {cost['own_mib']:.0f} |",
            flush=True,
        )
    theirs = medians.get("HolisticTraceAnalysis")
    if theirs:
        ours = medians["columns"]
        parts = []
        for key, text, least in (
            ("whole_s", "time", ENOUGH[0]), ("own_s", "time beyond imports", ENOUGH[0]),
            ("cpu_s", "CPU time", ENOUGH[0]), ("own_cpu_s", "CPU time beyond imports", ENOUGH[0]),
            ("whole_mib", "memory", ENOUGH[1]), ("own_mib", "memory beyond imports", ENOUGH[1]),
        ):  # fmt: skip
            ratio = theirs[key] / ours[key] if ours[key] else float("inf")
            parts.append(f"{text} 1/{ratio:.1f} ({'meets' if ratio >= least else 'misses'} 1/{least})")
        print(f"|  | columns to theirs: {', '.join(parts)} | | | | | | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", type=Path, default=sorted(path for path in SAMPLES.iterdir() if path.is_dir())
    )
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--grow", type=int, metavar="MEGABYTES")
    parser.add_argument("--gzip", action="store_true", help="write the grown trace with gzip")
    options = parser.parse_args()
    sides = {"columns": sys.executable, "DataFrames": sys.executable}
    if options.hta:
        sides["HolisticTraceAnalysis"] = options.hta
    print("| trace | reader | seconds | beyond imports | CPU s | beyond imports | peak MiB | beyond imports |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for folder in options.folders:
        if not options.grow:
            measured(folder, sides, options.repeat)
            continue
        source = next(path for path in sorted(folder.iterdir()) if path.name.startswith("rank"))
        with tempfile.TemporaryDirectory() as scratch:
            grown = Path(scratch, f"{folder.name} grown")
            grown.mkdir()
            grow(source, grown / ("rank0.json.gz" if options.gzip else "rank0.json"), options.grow)
            measured(grown, sides, options.repeat)


if __name__ == "__main__":
    main()
