"""Conversions that are too slow for a training process: each runs as a separate process at low priority.

A conversion is a module with a function `convert(order)`.  It reads its order as one line of JSON from standard input,
which stays open as long as the training may produce more of the converted data.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.processes import start_module, wait_for

CONVERT_SECONDS = 60  # the end of a training waits for a conversion no longer than this
MAX_EVENTS = 500_000  # per conversion
_BATCH = 4096  # events written at once


def start(module: str, order: Mapping[str, object], *, without: Collection[str] = ()) -> subprocess.Popen[bytes]:
    """Start a conversion.

    Args:
        module: its name.
        order: its input.
        without: variables of the training's environment to remove.
    """
    child = start_module(module, hidden=without, cwd=Path.cwd(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if child.stdin:
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.flush()
    return child


def finish(child: subprocess.Popen[bytes]) -> bool:
    """Let a conversion finish, as the training ends; return whether it did in time."""
    if child.stdin:
        child.stdin.close()  # no more data follows
    if wait_for(child, CONVERT_SECONDS):
        return True
    child.kill()
    return False


def carry_out(convert: Callable[[Mapping[str, Any]], None]) -> None:
    """Read the order and run the conversion, in the separate process."""
    with contextlib.suppress(OSError):
        os.nice(10)
    convert(json.loads(sys.stdin.buffer.readline()))


def write_events(
    writer: TraceWriter, events: Iterable[TraceEvent], order: Mapping[str, Any], *, unreadable: int = 0
) -> None:
    """Write the first `MAX_EVENTS` events and close the file; what is missing is counted in its record of the process.

    Args:
        writer: of the file.
        events: of the window.
        order: with the training's record of its process, `process`, and the name of the `collector`.
        unreadable: events that were lost in reading.
    """
    rest = iter(events)
    kept = islice(rest, MAX_EVENTS)
    while batch := list(islice(kept, _BATCH)):
        writer.write(batch)
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
