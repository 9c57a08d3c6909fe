"""Convert the window's part of Horovod's timeline to a timeline of the job.

Runs as a separate process beside the training, `python -m sm_profiler.hook.convert_horovod`, with its order as one line
of JSON on standard input.  Horovod writes a growing array: the next event's comma overwrites the closing `]`, which may
also be missing.
"""

from __future__ import annotations

import json
import re
import select
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sm_profiler.formats.layout import HOROVOD_TIMELINE
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook.conversion import carry_out, write_events

CHUNK = 1 << 20
WAIT_SECONDS = 0.5
NO_TENSOR = "Horovod"  # phase of events without a tensor: markers of cycles
BETWEEN = " \t\r\n,[]\x00"  # a truncated file has zeros
_NEXT = re.compile(r"[,\[\]]\s*(?=\{\"(?:ph|name)\")")  # start of an object; nested ones follow a colon
_DECODER = json.JSONDecoder()


class Timeline:
    """Parser of a timeline that is still being written.

    Attributes:
        base_us: origin of its times, microseconds since the epoch.
        last_us: time of the last event so far.
        broken: number of objects that could not be parsed.
    """

    def __init__(self, base_us: float, pid: int) -> None:
        self.base_us = base_us
        self.last_us = 0.0
        self.broken = 0
        self._pid = pid
        self._rest = ""
        self._names: dict[Any, str] = {}
        self._open: dict[Any, list[tuple[str, float]]] = {}

    def take(self, data: bytes) -> Iterator[TraceEvent]:
        """Yield the events completed by these bytes; begin and end are joined into one event."""
        text = self._rest + data.decode("latin-1")  # one character per byte: a name may be split anywhere
        at = 0
        while True:
            while at < len(text) and text[at] in BETWEEN:
                at += 1
            if at >= len(text):
                break
            try:
                found, end = _DECODER.raw_decode(text, at)
            except ValueError:
                after = _NEXT.search(text, at + 1)
                if after is None:  # incomplete so far
                    break
                self.broken += 1
                at = after.end()
                continue
            at = end
            if isinstance(found, dict):
                try:
                    yield from self._event(found)
                except (TypeError, ValueError, KeyError, AttributeError):
                    self.broken += 1
        self._rest = text[at:]

    def _event(self, found: dict[str, Any]) -> Iterator[TraceEvent]:
        kind, tensor, args = found.get("ph"), found.get("pid"), found.get("args") or {}
        if kind == "M":
            if found.get("name") == "process_name" and "name" in args:
                self._names[tensor] = _plain(args["name"])
            self.base_us = float(args.get("start_time_since_epoch_in_micros", self.base_us))
            return
        at_us = self.base_us + float(found["ts"])
        self.last_us = max(self.last_us, at_us)
        phase = self._names.get(tensor, NO_TENSOR)
        if kind == "B":
            self._open.setdefault(tensor, []).append((_plain(found["name"]), at_us))
        elif kind == "E":
            begun = self._open.get(tensor)
            if begun:
                name, start_us = begun.pop()
                yield self._made(phase, name, start_us, at_us - start_us, args)
        elif kind in {"X", "i"}:
            yield self._made(phase, _plain(found["name"]), at_us, float(found.get("dur", 0)), args, kind)

    def _made(self, phase: str, name: str, at_us: float, length_us: float, args: Any, kind: str = "X") -> TraceEvent:  # noqa: PLR0913, PLR0917 - the parts of an event
        text = json.dumps({"pid": self._pid, **args})
        return TraceEvent(phase, name, int(at_us), max(round(length_us), 0), text, kind)


def _plain(text: str) -> str:
    return str(text).encode("latin-1", "replace").decode("utf-8", "replace")


def training_ends(seconds: float) -> bool:
    """Wait until the training ends or closes the pipe, at most for some seconds; return whether it did."""
    return bool(select.select([0], [], [], seconds)[0])  # standard input is open until then


def events(order: Mapping[str, Any], *, wait: Callable[[float], bool] = training_ends) -> Iterator[TraceEvent]:
    """Yield the events that overlap the window, in the order in which they end.

    Horovod buffers events: wait for them until one from after the window appears, the training ends, or `patience_s`
    has passed.
    """
    start_us, end_us, patience_s = float(order["start_us"]), float(order["end_us"]), float(order["patience_s"])
    timeline = Timeline(float(order["monotonic_us"]), int(order["pid"]))
    with Path(order["timeline"]).open("rb") as file:
        while True:
            data = file.read(CHUNK)
            for event in timeline.take(data):
                if event.start_us <= end_us and event.start_us + event.duration_us >= start_us:
                    yield event
            if data:
                continue
            if timeline.last_us > end_us or patience_s <= 0:
                return
            patience_s = 0 if wait(WAIT_SECONDS) else patience_s - WAIT_SECONDS


def convert(order: Mapping[str, Any]) -> None:
    """Write the files of an order.

    Raises:
        OSError: the timeline cannot be read.
    """
    writer = TraceWriter(Path(order["root"]), order["source"], HOROVOD_TIMELINE, close_seconds=float("inf"))
    write_events(writer, events(order), order)


if __name__ == "__main__":
    carry_out(convert)
