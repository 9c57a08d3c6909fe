"""Measure the cost of a detailed window against torch.profiler alone, from its start to the end of the step after it.

    python benchmarks/detailed.py [--pairs 8]

The network is convolutional, at about 60 ms a step on one core, with a window of five steps; every run is a process of its
own, both kinds alternating.  torch.profiler alone: start, five steps, stop and export_chrome_trace on the training thread.
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
from pathlib import Path

FIRST, LENGTH, STEPS = 10, 5, 30


def train(kind: str, folder: str) -> float:
    """Train, and return the seconds from the start of step FIRST to the end of the step after the window."""
    if kind == "hook":
        window = json.dumps({"StartStep": FIRST, "NumSteps": LENGTH})
        parameters = {"LocalPath": folder, "DetailedProfilingConfig": window}
        os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": parameters})
    import torch
    from torch import nn

    from sm_profiler.hook import entry

    torch.set_num_threads(1)
    hook = entry.install() if kind == "hook" else None
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(16, 3, 48, 48), torch.randint(0, 10, (16,))
    loader = torch.utils.data.DataLoader([(images, labels)] * STEPS, batch_size=None)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if kind == "torch" else None
    begun = ended = 0.0
    for step, (inputs, targets) in enumerate(loader):
        if step == FIRST:
            begun = time.perf_counter()
            if profiler:
                profiler.start()
        if step == FIRST + LENGTH and profiler:
            profiler.stop()
            profiler.export_chrome_trace(f"{folder}/trace.json.gz")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step == FIRST + LENGTH:
            ended = time.perf_counter()
    if hook:
        hook.close()
        assert list(Path(folder).glob("framework/pytorch/detailed_profiling/*/*/*.trace.json.gz"))
    return ended - begun


def seconds_of(kind: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--inside", kind, folder], capture_output=True, text=True, check=True
        )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(train(*options.inside))
        return
    kinds = ("plain", "torch", "hook")
    found = [{kind: seconds_of(kind) for kind in kinds} for _ in range(options.pairs)]
    print(
        "| five steps, and the step after them | seconds (median) | beside torch.profiler alone (quartiles) |\n|---|---|---|"
    )
    for kind, name in zip(
        kinds, ("not profiled", "torch.profiler alone", "sm-profiler's detailed window"), strict=True
    ):
        ratios = [round(row[kind] / row["torch"], 2) for row in found]
        middle = [round(part, 2) for part in statistics.quantiles(ratios, n=4)]
        print(f"| {name} | {statistics.median(row[kind] for row in found):.3f} | {' / '.join(map(str, middle))} |")


if __name__ == "__main__":
    main()
