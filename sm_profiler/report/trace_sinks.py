"""Formats of a merged timeline: trace-event JSON here, Perfetto's protobuf in `formats.perfetto_writer`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

Arguments = Mapping[str, int | float | str]
_REMEMBERED = 50_000  # names whose JSON is kept


class TraceSink(Protocol):
    """Takes the parts of a timeline, times in nanoseconds since its origin, and writes them at once.

    Processes and threads are numbers that were named before their first use.
    """

    def name_process(self, process: int, name: str, order: int) -> None:
        """Name a process; processes with a smaller order are shown first."""

    def label_process(self, process: int, label: str) -> None:
        """Add a note to a process."""

    def name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        """Name a lane of a process."""

    def slice(  # noqa: PLR0913, PLR0917 - one argument a field
        self, process: int, thread: int, name: str, category: str, start: int, length: int, args: Arguments, flow: int
    ) -> None:
        """Write a slice; a positive flow begins here, and its negative ends here."""

    def counter(self, process: int, name: str, at: int, values: Arguments) -> None:
        """Write the values of a counter from a moment on."""

    def close(self, about: Mapping[str, Any]) -> None:
        """End the trace, with facts about it if the format has a place for them."""


class JsonSink:
    """Writes the trace-event format, which Perfetto and chrome://tracing read."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._separator = "\n"
        self._written: dict[str, str] = {}
        out.write('{"displayTimeUnit":"ms","traceEvents":[')

    def _write(self, text: str) -> None:
        self._out.write(self._separator + text)
        self._separator = ",\n"

    def _meta(self, name: str, process: int, thread: int, args: Mapping[str, Any]) -> None:
        self._write(json.dumps({"name": name, "ph": "M", "pid": process, "tid": thread, "ts": 0, "args": args}))

    def _text(self, text: str) -> str:
        found = self._written.get(text)
        if found is None:
            if len(self._written) >= _REMEMBERED:
                self._written.clear()
            found = self._written[text] = json.dumps(text)
        return found

    def name_process(self, process: int, name: str, order: int) -> None:
        """Write the process's name and place."""
        self._meta("process_name", process, 0, {"name": name})
        self._meta("process_sort_index", process, 0, {"sort_index": order})

    def label_process(self, process: int, label: str) -> None:
        """Write a note."""
        self._meta("process_labels", process, 0, {"labels": label})

    def name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        """Write the lane's name and place."""
        self._meta("thread_name", process, thread, {"name": name})
        self._meta("thread_sort_index", process, thread, {"sort_index": order})

    def slice(  # noqa: PLR0913, PLR0917 - one argument a field
        self, process: int, thread: int, name: str, category: str, start: int, length: int, args: Arguments, flow: int
    ) -> None:
        """Write a whole event, and one half of its flow."""
        at = f'"pid":{process},"tid":{thread},"ts":{start / 1e3:.15g}'
        more = f',"args":{json.dumps(args, separators=(",", ":"))}' if args else ""
        head = f'{{"name":{self._text(name)},"cat":{self._text(category)},"ph":"X"'
        self._write(f'{head},{at},"dur":{length / 1e3:.15g}{more}}}')
        if flow:
            half = '"ph":"s"' if flow > 0 else '"ph":"f","bp":"e"'
            self._write(f'{{"name":"launch","cat":"launch",{half},"id":{abs(flow)},{at}}}')

    def counter(self, process: int, name: str, at: int, values: Arguments) -> None:
        """Write a counter event."""
        written = json.dumps(values)
        self._write(
            f'{{"name":{self._text(name)},"ph":"C","pid":{process},"tid":0,"ts":{at / 1e3:.15g},"args":{written}}}'
        )

    def close(self, about: Mapping[str, Any]) -> None:
        """Close the array."""
        self._out.write(f'\n],"otherData":{json.dumps(about)}}}\n')
