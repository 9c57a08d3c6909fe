"""Convert an exported torch.profiler trace to the job's files: the compressed trace, and its operators as events.

Runs as a separate process beside the training, `python -m sm_profiler.hook.convert`, with its order as JSON on standard
input (see `conversion`).
"""

from __future__ import annotations

import gzip
import json
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sm_profiler.formats.event_names import CPU_OPERATORS, gpu_operators
from sm_profiler.formats.layout import DETAILED_TRACE_SUFFIX, detailed_folder, metadata_path
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook.conversion import carry_out, write_events

GPU_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}


def operators(trace: Mapping[str, Any], steps: list[tuple[int, int]], pid: int) -> Iterator[TraceEvent]:
    """Yield the operators and kernels of a trace as events.

    Args:
        trace: an export of torch.profiler.
        steps: number and start (microseconds since the epoch) of each step, in order; the number of the last is -1 and marks the end.
        pid: the profiled process.
    """
    base_us = int(trace.get("baseTimeNanoseconds", 0)) / 1000
    starts = [start for _, start in steps]
    for event in trace.get("traceEvents", ()):
        category = event.get("cat")
        if event.get("ph") != "X" or not (category == "cpu_op" or category in GPU_KINDS):
            continue
        start_us = int(base_us + float(event["ts"]))
        place = bisect_right(starts, start_us) - 1
        step = steps[place][0] if place >= 0 else -1
        device = event.get("args", {}).get("device") if category in GPU_KINDS else None
        phase = CPU_OPERATORS if device is None else gpu_operators(device)
        args: dict[str, Any] = {"pid": pid, "tid": event.get("tid"), "device": "cpu" if device is None else device}
        if step >= 0:
            args["step_num"] = step
        duration_us = round(float(event.get("dur", 0)))
        yield TraceEvent(phase, str(event.get("name", "")), start_us, duration_us, json.dumps(args))


def convert(order: Mapping[str, Any]) -> None:
    """Write the files of an order, and remove the raw trace.

    Raises:
        OSError: a file cannot be read or written.
    """
    raw, root = Path(order["trace"]), Path(order["root"])
    steps = [(int(number), int(start)) for number, start in order["steps"]]
    start_us, end_us = steps[0][1], steps[-1][1]
    try:
        folder = root / detailed_folder("pytorch", start_us, int(order["first_step"]))
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{order['source']}{DETAILED_TRACE_SUFFIX}"
        temporary = target.with_name(target.name + ".tmp")
        with raw.open("rb") as plain, gzip.open(temporary, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(plain, packed)
        temporary.rename(target)
        (root / metadata_path("pytorch", order["source"], start_us, end_us, int(order["first_step"]))).touch()
        writer = TraceWriter(root, order["source"], close_seconds=float("inf"))
        write_events(writer, operators(json.loads(raw.read_bytes()), steps, int(order["pid"])), order)
    finally:
        raw.unlink(missing_ok=True)


if __name__ == "__main__":
    carry_out(convert)
