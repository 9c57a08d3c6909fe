"""Measure the hook on a GPU: what a training step pays, and whether phases by CUDA events are those of the kernels.

    python benchmarks/gpu.py [--pairs 40] [--batch 64] [--keep FOLDER]

The network is ResNet-50 at 224 x 224 pixels in mixed precision, its batches already on the device; overhead is also that of two
stacks of small layers, whose steps consist of launches. Without a CUDA device nothing is measured, and the exit code is 0.

1. Overhead: 10 steps with the hook and 10 without it in turn, each ended by a synchronization; quartiles of the differences.
2. Phases: a training with a detailed window. The trace of torch.profiler is the truth: a phase begins on the device when what was
   launched before it has ended, and ends with the last kernel that was launched in it.
3. The report on the trace of that window.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS, WARM_STEPS, WARM_RUNS = 10, 20, 2
FIRST, LENGTH, ALL, LAST = (
    40,
    5,
    60,
    4,
)  # of the detailed window: first step, steps; steps of its training, and waits at its end
Spans = Mapping[tuple[str, int], tuple[float, float]]  # phase and step → start and end, microseconds since the epoch


def missing() -> str | None:
    """Return why nothing can be measured; None if a device is there."""
    try:
        import torch
    except ImportError:
        return "not run: PyTorch is not installed"
    return None if torch.cuda.is_available() else "not run: no CUDA device"


def resnet50(torch: Any) -> Any:
    """Return ResNet-50 without torchvision."""
    nn = torch.nn

    def block(inside: int, middle: int, stride: int) -> Any:
        outside = 4 * middle
        layers = [
            nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
            nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside),
        ]  # fmt: skip
        changes = stride != 1 or inside != outside
        short = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            if changes
            else None
        )
        return _Residual(nn.Sequential(*layers), short)

    class _Residual(nn.Module):  # type: ignore[misc, name-defined] - a class of the argument
        def __init__(self, layers: Any, short: Any) -> None:
            super().__init__()
            self.layers, self.short = layers, short or nn.Identity()

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.layers(x) + self.short(x))

    stages, inside = [], 64
    for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            stages.append(block(inside, middle, stride if number == 0 else 1))
            inside = 4 * middle
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def training(torch: Any, batch: int, device: str = "cuda", pixels: int = 224) -> Callable[[], None]:
    """Return a function that trains one step."""
    torch.manual_seed(0)
    model = resnet50(torch).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, pixels, pixels, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def small_steps(torch: Any, layers: int, device: str = "cuda") -> Callable[[], None]:
    """Return a function that trains one step of many small layers, which the host limits."""
    torch.manual_seed(0)
    body = [layer for _ in range(layers) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*body, torch.nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 256, device=device), torch.randint(0, 10, (64,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the three quartiles."""
    return [round(value, 1) for value in statistics.quantiles(values, n=4)]


def paired(run: Callable[[], float], turn: Callable[[bool], None], pairs: int) -> dict[str, list[float]]:
    """Measure pairs of runs with and without the hook, the order alternating.

    Args:
        run: runs some steps and returns the time of one, in microseconds.
        turn: switches the hook on or off.
        pairs: number of pairs.

    Returns:
        Quartiles of the step without it, and of what it adds.
    """
    base, added = [], []
    for number in range(pairs):
        times = {}
        for with_it in (number % 2 == 0, number % 2 == 1):
            turn(with_it)
            for _ in range(WARM_RUNS):  # installing the hook resets what the interpreter has specialised
                run()
            times[with_it] = run()
        base.append(times[False])
        added.append(times[True] - times[False])
    return {"step": quartiles(base), "added": quartiles(added)}


def measure_overhead(pairs: int, make: Callable[[Any], Callable[[], None]]) -> dict[str, list[float]]:
    """Measure the always-on hook.

    Args:
        pairs: number of pairs of runs.
        make: takes torch, and returns a function that trains one step.
    """
    os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": tempfile.mkdtemp()}})
    import torch

    from sm_profiler.hook import entry

    hook = entry.install()
    adapter = hook.session.adapter
    step = make(torch)
    for _ in range(WARM_STEPS):
        step()

    def run() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS * 1e6

    def turn(with_it: bool) -> None:
        adapter.remove()
        if with_it:
            adapter.install()

    try:
        return paired(run, turn, pairs)
    finally:
        hook.close()
        entry.uninstall()


def profile_window(folder: Path, batch: int) -> None:
    """Train in a process of its own, with a detailed window."""
    window = json.dumps({"StartStep": FIRST, "NumSteps": LENGTH})
    parameters = {"LocalPath": str(folder), "DetailedProfilingConfig": window}
    environment = {**os.environ, "SM_PROFILER_CONFIG": json.dumps({"ProfilingParameters": parameters})}
    subprocess.run(
        [sys.executable, "-m", "sm_profiler.hook.launch", __file__, "--train", str(batch)], env=environment, check=True
    )


def train(batch: int) -> None:
    """Train under the hook of this process."""
    import torch

    step = training(torch, batch)
    for number in range(ALL):
        step()
        if number >= ALL - LAST:
            torch.cuda.synchronize()  # the spans of the events have come back by the next step


def spans_of(events: Any, phases: Iterable[str]) -> Spans:
    """Return the spans of some phases, from a profile's events."""
    wanted = set(phases)
    chosen = events[events.phase.mask(wanted.__contains__)]
    rows = zip(
        (chosen.phase.values[code] for code in chosen.phase.codes),
        chosen.step.tolist(),
        chosen.start_us.tolist(),
        chosen.duration_us.tolist(),
        strict=True,
    )
    return {(phase, step): (start, start + duration) for phase, step, start, duration in rows}


def truth_of(trace: Any, host: tuple[float, float]) -> float | None:
    """Return how long the device took for what the host launched in a span; None if the trace does not hold it.

    Args:
        trace: a `KinetoTrace`.
        host: start and end of the phase on the host, microseconds since the epoch.
    """
    from sm_profiler.gpu_traces.callers import launch_rows

    events = trace.events
    device = events[events.on_device]
    launch = launch_rows(events, device)
    device, launch = device[launch >= 0], launch[launch >= 0]
    at = events.start_us[launch]
    start, end = (moment - trace.origin_us - trace.base_us for moment in host)
    mine, earlier = (at >= start) & (at <= end), at < start
    if not mine.any() or not earlier.any():
        return None
    begun = max(start, float(device.end_us[earlier].max()))
    return float(device.end_us[mine].max()) - begun


def compare_phases(
    trace: Any, host: Spans, by_events: Spans, names: Mapping[str, str]
) -> dict[str, list[tuple[float, float]]]:
    """Return for each phase its times by CUDA events and by kernels, in microseconds, of the steps that have both.

    Args:
        trace: the trace of the window.
        host: phases on the host.
        by_events: phases by CUDA events.
        names: phase by CUDA events → phase on the host.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for (phase, step), (start, end) in by_events.items():
        span = host.get((names[phase], step))
        truth = truth_of(trace, span) if span else None
        if truth is not None:
            found.setdefault(names[phase], []).append((end - start, truth))
    return found


def phase_table(found: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return the comparison as a table."""
    lines = [
        "| phase | steps | by CUDA events, ms (median) | by kernels, ms (median) | largest difference |",
        "|---|---|---|---|---|",
    ]
    for phase, pairs in found.items():
        measured, truth = (statistics.median(column) / 1e3 for column in zip(*pairs, strict=True))
        worst = max(abs(mine / other - 1) if other else float("inf") for mine, other in pairs)
        lines.append(f"| {phase} | {len(pairs)} | {measured:.3f} | {truth:.3f} | {100 * worst:.1f} % |")
    return "\n".join(lines if found else ["no step has both; is the window's trace there?"])


def measure_phases(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Compare the phases of a profile with the kernels of its windows' traces."""
    from sm_profiler.formats import event_names
    from sm_profiler.gpu_traces.traces import find_traces, read_trace
    from sm_profiler.source import open_source

    names = {
        event_names.DEVICE_FORWARD: event_names.FORWARD, event_names.DEVICE_BACKWARD: event_names.BACKWARD,
        event_names.DEVICE_OPTIMIZER: event_names.OPTIMIZER,
    }  # fmt: skip
    events = open_source(folder, cache=False).events()
    host, by_events = spans_of(events, names.values()), spans_of(events, names)
    found: dict[str, list[tuple[float, float]]] = {}
    storage, infos = find_traces(folder)
    for info in infos:
        trace, _ = read_trace(storage, info)
        for phase, pairs in compare_phases(trace, host, by_events, names).items():
            found.setdefault(phase, []).extend(pairs)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--keep", type=Path, help="folder for the profile of the detailed window")
    parser.add_argument("--train", type=int, metavar="BATCH", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    why_not = missing()
    if why_not:
        print(why_not)
        return 0
    if options.train:
        train(options.train)
        return 0
    import torch

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, batches of {options.batch}\n")
    networks: dict[str, Callable[[Any], Callable[[], None]]] = {
        "ResNet-50": lambda torch: training(torch, options.batch),
        "48 small layers": lambda torch: small_steps(torch, 48),
        "8 small layers": lambda torch: small_steps(torch, 8),
    }
    print("| network | µs a step without the hook (quartiles) | added by the hook |\n|---|---|---|")
    for name, make in networks.items():
        found = measure_overhead(options.pairs, make)
        print(
            f"| {name} | {' / '.join(map(str, found['step']))} | {' / '.join(map(str, found['added']))} |", flush=True
        )
    print(flush=True)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="sm-profiler-gpu-"))
    profile_window(folder, options.batch)
    print(phase_table(measure_phases(folder)), flush=True)
    from sm_profiler.report import terminal_summary
    from sm_profiler.report.recordings import report_traces

    print(f"\n{terminal_summary(report_traces(folder / 'framework'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
