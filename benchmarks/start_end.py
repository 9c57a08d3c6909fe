"""Measure what `sm-profiler run` adds to the start and the end of a short script.

    python benchmarks/start_end.py [--pairs 7]

The script imports torch, creates an Adam optimizer and a DataLoader, and trains 60 short steps. It runs alternately by
itself and under `sm-profiler run` with more and more switched on. The script notes the time (the system's monotonic
clock) of its first line, of the end of its imports, of its first and its last step and of its last line. The table
shows the medians of the differences to the run by itself; on a busy machine only those of CPU time mean something.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import sys, time
marks = [time.monotonic()]
import torch
marks.append(time.monotonic())
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(1920, 64), torch.randint(0, 10, (1920,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)
loss = torch.nn.CrossEntropyLoss()
marks.append(time.monotonic())
for inputs, labels in loader:
    optimizer.zero_grad()
    loss(model(inputs), labels).backward()
    optimizer.step()
marks.append(time.monotonic())
open(sys.argv[1], "w").write(" ".join(map(str, marks)))
"""
PARTS = ("launch", "imports", "set-up", "60 steps", "end", "in all", "CPU time")
WINDOWS = {
    "DataloaderProfilingConfig": json.dumps({"StartStep": 7, "NumSteps": 1, "MetricsRegex": ".*"}),
    "DetailedProfilingConfig": json.dumps({"StartStep": 5, "NumSteps": 1}),
}
PYTHON = {"StartStep": 9, "NumSteps": 2, "ProfilerName": "cprofile", "cProfileTimer": "total_time"}


def configurations(folder: Path) -> dict[str, list[str]]:
    """Return what to measure: a name and the words before the script's own."""
    found: dict[str, list[str]] = {}
    for name, parameters in (
        ("steps and phases", {}),
        ("and two windows", WINDOWS),
        ("and the Python window", {**WINDOWS, "PythonProfilingConfig": json.dumps(PYTHON)}),
    ):
        config = folder / f"{name.replace(' ', '-')}.json"
        text = {"LocalPath": str(folder / "profile"), **parameters}
        config.write_text(json.dumps({"ProfilingIntervalInMilliseconds": 500, "ProfilingParameters": text}))
        words = [sys.executable, "-m", "sm_profiler", "run", "--config", str(config)]
        if not found:
            found["steps and phases, no monitor"] = [*words, "--no-monitor"]
        found[name] = words
    found["the default"] = [sys.executable, "-m", "sm_profiler", "run"]
    return found


def measure(words: list[str], script: Path, folder: Path) -> list[float]:
    """Run the script once; return the seconds of each part, of the whole, and of all processes together."""
    marks = folder / "marks"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [*words, str(script), str(marks)], cwd=folder, capture_output=True, text=True, env=environment(), check=False
    )
    ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times = [began, *map(float, marks.read_text().split()), ended]
    return [*(end - start for start, end in itertools.pairwise(times)), ended - began, cpu]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory(prefix="sm-profiler-bench-") as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        alone = [sys.executable]
        measure(alone, script, folder)  # warms the file cache
        print(f"| seconds | {' | '.join(PARTS)} |\n|---|{'---|' * len(PARTS)}")
        first = [measure(alone, script, folder) for _ in range(pairs)]
        show("by itself", first)
        for title, words in configurations(folder).items():
            measure(words, script, folder)
            added = []
            for number in range(pairs):
                runs = [measure(each, script, folder) for each in ((alone, words), (words, alone))[number % 2]]
                on, off = runs[1 - number % 2], runs[number % 2]
                added.append([a - b for a, b in zip(on, off, strict=True)])
            show(f"+ {title}", added)


def show(title: str, rows: list[list[float]]) -> None:
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    print(f"| {title} | {' | '.join(f'{value:.2f}' for value in columns)} |", flush=True)


if __name__ == "__main__":
    main()
