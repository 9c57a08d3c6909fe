"""Time and memory of reading traces of torch.profiler, beside HolisticTraceAnalysis on the same files.

python benchmarks/gpu_traces.py [FOLDER…] [--hta PYTHON] [--repeat 3]

Each folder holds the traces of one job. PYTHON is the interpreter of an environment with HolisticTraceAnalysis. Both read
the traces and compute the same tables: time of the GPU, idle time by reason, kernels, overlap, launches, queues, copies.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parents[1] / "tests" / "data" / "gpu_traces"
OURS = """
from sm_profiler.analysis.gpu import GpuTraces
gpu = GpuTraces(folder)
for table in ("temporal_breakdown", "idle_breakdown", "kernels", "communication_overlap", "launch_statistics", "queue_length",
              "memory_bandwidth"):
    getattr(gpu, table)()
"""
THEIRS = """
import os
from hta.trace_analysis import TraceAnalysis
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
"""
AROUND = """
import json, resource, sys, time
folder, out = sys.argv[1:]
began = time.perf_counter()
{code}
usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
json.dump({{"seconds": time.perf_counter() - began, "mib": max(usage) / 1024}}, open(out, "w"))
"""


def run(python: str, code: str, folder: Path) -> dict[str, float]:
    """Run one side in a process of its own; imports count."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "usage.json")
        command = [python, "-c", AROUND.format(code=code), str(folder), str(out)]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", type=Path, default=sorted(path for path in SAMPLES.iterdir() if path.is_dir())
    )
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    sides = [("sm-profiler", sys.executable, OURS)]
    if options.hta:
        sides.append(("HolisticTraceAnalysis", options.hta, THEIRS))
    print("| trace | reader | seconds | peak MiB |\n| --- | --- | --- | --- |")
    for folder in options.folders:
        found = {name: [] for name, *_ in sides}
        for _ in range(options.repeat):  # in turns, so that both meet the same load
            for name, python, code in sides:
                found[name].append(run(python, code, folder))
        for name, runs in found.items():
            seconds, mib = (statistics.median(one[key] for one in runs) for key in ("seconds", "mib"))
            print(f"| {folder.name} | {name} | {seconds:.2f} | {mib:.0f} |", flush=True)


if __name__ == "__main__":
    main()
