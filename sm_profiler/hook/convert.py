"""Conversions that are too slow for a training process: each runs as a separate process at low priority.

The process is `python -m sm_profiler.hook.convert`.  It reads its order as one line of JSON from standard input, which
stays open as long as the training may produce more of the converted data.  To convert competes for the interpreter: a
training that did it on a thread would wait for it at every step.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import marshal
import os
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from sm_profiler.descriptors import written_whole
from sm_profiler.formats.event_names import CPU_OPERATORS, gpu_operators
from sm_profiler.formats.layout import DETAILED_TRACE_SUFFIX, XPLANE_SUFFIX, detailed_folder, metadata_path
from sm_profiler.formats.recorded import Profiling
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook.guard import run_bounded
from sm_profiler.monitor.scratch import hold
from sm_profiler.processes import Detached, start_detached, wait_for
from sm_profiler.threads import unblock_signals

CONVERT_SECONDS = 60  # the end of a training waits for a conversion no longer than this
MAX_EVENTS = 500_000  # per conversion
KINETO, XPLANE, PYINSTRUMENT = "kineto", "xplane", "pyinstrument"  # what is converted
_GPU_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}  # of Kineto's events
_BATCH = 4096  # events written at once


# In the training process.


class Postponed:
    """A conversion that waits for the end of the training, where this process carries it out.

    A script that handles SIGCHLD would take the shell that starts our process for its own.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order = order

    def poll(self) -> int:
        """Return that no process runs."""
        return 0


Conversion: TypeAlias = "subprocess.Popen[bytes] | Detached | Postponed"


def start(kind: str, order: Mapping[str, object]) -> Conversion:
    """Start a conversion: KINETO, XPLANE or PYINSTRUMENT."""
    if signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, signal.SIG_IGN):
        return Postponed({"kind": kind, **order})
    child = start_detached(__name__, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if child.stdin:
        child.stdin.write(json.dumps({"kind": kind, "began_us": _now_us(), **order}).encode() + b"\n")
        child.stdin.flush()
    return child


def _now_us() -> int:
    return round(time.time() * 1e6)


def finish(child: Conversion) -> bool:
    """Let a conversion finish, as the training ends; return whether it did in time."""
    if isinstance(child, Postponed):
        try:
            run_bounded(partial(carry_out, child.order), CONVERT_SECONDS, "the conversion takes too long")
        except TimeoutError:
            return False
        return True
    if child.stdin:
        child.stdin.close()  # no more data follows
    if wait_for(child, CONVERT_SECONDS):
        return True
    child.kill()
    return False


# In the separate process.


def main() -> None:
    """Read an order and carry it out."""
    unblock_signals()
    with contextlib.suppress(OSError):
        os.nice(10)
    carry_out(json.loads(sys.stdin.buffer.readline()))


def carry_out(order: Mapping[str, Any]) -> None:
    """Convert what an order names."""
    if order["kind"] == PYINSTRUMENT:
        for raw, _ in order["sessions"][:1]:  # all are in one folder
            hold(Path(raw).parent)
        render_pyinstrument(order)
    else:
        hold(Path(order["trace"]).parent)
        convert_trace(order)


def write_events(
    writer: TraceWriter, events: Iterable[TraceEvent], order: Mapping[str, Any], *, unreadable: int = 0
) -> None:
    """Write the first `MAX_EVENTS` events and close the file; what is missing is counted in its record of the process.

    Args:
        writer: of the file.
        events: of the window.
        order: with the training's record of its process, `process`, and the name of the `collector`; a process of its own
            has the time at which it began, `began_us`.
        unreadable: events that were lost in reading.
    """
    rest = iter(events)
    kept = islice(rest, MAX_EVENTS)
    while batch := list(islice(kept, _BATCH)):
        writer.write(batch)
    if "began_us" in order:
        writer.write([_own_work(order)])
    missing = []
    if more := sum(1 for _ in rest):
        missing.append(f"only the first {MAX_EVENTS:,} of the window's {MAX_EVENTS + more:,} events are kept")
    if unreadable:
        missing.append(f"{unreadable:,} damaged events are left out")
    if missing:
        states = {str(order["collector"]): "; ".join(missing)}
        later = {"dropped", "phases_every"}  # which the training's own files have as of later
        process = {key: value for key, value in order["process"].items() if key not in later}
        writer.metadata = lambda: {**process, "collectors": states}
    writer.close()


def _own_work(order: Mapping[str, Any]) -> TraceEvent:
    """Return the record of this process, which competes with the training if no core is free."""
    began_us, found = int(order["began_us"]), Profiling(kind="background", cpu_s=round(time.process_time(), 3))
    args = json.dumps({"pid": order["pid"], **found.args()})
    return TraceEvent(
        found.phase, f"{order['collector']} window is converted", began_us, max(_now_us() - began_us, 0), args
    )


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
        if event.get("ph") != "X" or not (category == "cpu_op" or category in _GPU_KINDS):
            continue
        start_us = int(base_us + float(event["ts"]))
        place = bisect_right(starts, start_us) - 1
        step = steps[place][0] if place >= 0 else -1
        device = event.get("args", {}).get("device") if category in _GPU_KINDS else None
        phase = CPU_OPERATORS if device is None else gpu_operators(device)
        args: dict[str, Any] = {"pid": pid, "tid": event.get("tid"), "device": "cpu" if device is None else device}
        if step >= 0:
            args["step_num"] = step
        duration_us = round(float(event.get("dur", 0)))
        yield TraceEvent(phase, str(event.get("name", "")), start_us, duration_us, json.dumps(args))


def convert_trace(order: Mapping[str, Any]) -> None:
    """Write the files of a detailed window: its trace, and the operators of its steps as events; remove the raw trace.

    Raises:
        OSError: a file cannot be read or written.
    """
    raw, root, framework = Path(order["trace"]), Path(order["root"]), str(order["framework"])
    steps, first, pid = (
        [(int(number), int(start)) for number, start in order["steps"]],
        int(order["first_step"]),
        int(order["pid"]),
    )
    start_us, end_us, is_kineto = steps[0][1], steps[-1][1], order["kind"] == KINETO
    try:
        folder = root / detailed_folder(framework, start_us, first)
        target = folder / f"{order['source']}{DETAILED_TRACE_SUFFIX if is_kineto else XPLANE_SUFFIX}"
        with (
            written_whole(target) as temporary,
            raw.open("rb") as plain,
            gzip.open(temporary, "wb", 3) if is_kineto else temporary.open("wb") as copy,
        ):
            shutil.copyfileobj(plain, copy)
        (root / metadata_path(framework, order["source"], start_us, end_us, first)).touch()
        writer = TraceWriter(root, order["source"], close_seconds=float("inf"))
        if is_kineto:
            write_events(writer, operators(json.loads(raw.read_bytes()), steps, pid), order)
        else:
            from sm_profiler.hook.convert_xplane import read_operators  # needs numpy, which comes with these frameworks

            records, events, unreadable = read_operators(raw.read_bytes(), steps, pid, framework)
            writer.write(records)
            write_events(writer, events, order, unreadable=unreadable)
    finally:
        shutil.rmtree(raw.parent, ignore_errors=True)


def render_pyinstrument(order: Mapping[str, Any]) -> None:
    """Write the JSON and the page of each session of an order, and remove the raw session.

    Raises:
        OSError: a file cannot be read or written.
    """
    from pyinstrument.renderers import HTMLRenderer, JSONRenderer  # an optional dependency
    from pyinstrument.session import Session

    for raw, page_of in order["sessions"]:
        source, target = Path(raw), Path(page_of)
        session = Session.from_json(marshal.loads(source.read_bytes()))  # noqa: S302 - the hook has just written it
        for renderer, suffix in ((JSONRenderer(), ".json"), (HTMLRenderer(), ".html")):
            with written_whole(target.with_name(target.name + suffix)) as temporary:
                temporary.write_text(renderer.render(session), encoding="utf-8")
        source.unlink()


if __name__ == "__main__":
    main()
