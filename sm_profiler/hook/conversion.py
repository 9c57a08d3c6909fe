"""What is too slow for a training process is converted by processes of their own, at the lowest priority.

Each is a module with a `convert(order)`; its order comes as one line of JSON on standard input, which stays open for as
long as the training may still have something to wait for.
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
from sm_profiler.processes import start_module

CONVERT_SECONDS = 60  # what the end of a training waits for a conversion, at most
MAX_EVENTS = 500_000  # of one conversion
_TOGETHER = 4096  # events that are written at once


def start(module: str, order: Mapping[str, object], *, without: Collection[str] = ()) -> subprocess.Popen[bytes]:
    """Start a conversion.

    Args:
        module: its name.
        order: what it is to do.
        without: variables of the training's environment that it must not see.
    """
    child = start_module(module, hidden=without, cwd=Path.cwd(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if child.stdin:
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.flush()
    return child


def finish(child: subprocess.Popen[bytes]) -> bool:
    """The training ends: let a conversion finish; whether it did in time."""
    if child.stdin:
        child.stdin.close()  # it waits for no more
    try:
        child.wait(timeout=CONVERT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return False
    return True


def carry_out(convert: Callable[[Mapping[str, Any]], None]) -> None:
    """In the process of its own: read the order and carry it out."""
    with contextlib.suppress(OSError):
        os.nice(10)
    convert(json.loads(sys.stdin.buffer.readline()))


def write_events(writer: TraceWriter, events: Iterable[TraceEvent]) -> None:
    """Write the first MAX_EVENTS events, and close the file."""
    left = islice(events, MAX_EVENTS)
    while batch := list(islice(left, _TOGETHER)):
        writer.write(batch)
    writer.close()
