"""Count of the steps in a node's trace files, by searching what was appended to them since the last time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.formats.layout import TEMPORARY, TRACE_FOLDER
from sm_profiler.monitor.board import STEP_MODES

MAX_BYTES = 64 << 20  # of a file at one time; the rest follows
MAX_FILES = 100_000
_NAMES = {mode: b'"' + name.encode() + b'"' for mode, name in STEP_MODES.items()}


@attrs.define(eq=False)
class StepCounter:
    """Counts the step events of one node; safe to use from several threads.

    Only whole lines count. A file keeps its count when it gets its final name, which differs in its first part.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
    """

    root: Path
    node: str
    _counts: Counter[str] = attrs.field(factory=Counter)
    _read: dict[int, int] = attrs.field(factory=dict)  # inode → bytes searched
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def count(self) -> Mapping[str, int]:
        """Return the steps so far by mode."""
        with self._lock:
            for path in self._files():
                with contextlib.suppress(OSError):
                    self._search(path)
            return dict(self._counts)

    def _files(self) -> list[Path]:
        """Return this node's trace files, closed or open, without following links."""
        found = []
        for folder, folders, files in os.walk(self.root / TRACE_FOLDER):
            folders.sort()
            for name in files:
                base = name.removesuffix(TEMPORARY)
                if base.endswith("-" + self.node + "_pythontimeline.json"):
                    found.append(Path(folder, name))
            if len(found) > MAX_FILES:
                break
        return found

    def _search(self, path: Path) -> None:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            state = os.fstat(file.fileno())
            first = self._read.get(state.st_ino, 0)
            if state.st_size <= first:
                return
            file.seek(first)
            data = file.read(MAX_BYTES)
        end = data.rfind(b"\n") + 1
        self._read[state.st_ino] = first + end
        for mode, name in _NAMES.items():
            self._counts[mode] += data.count(b'"name": ' + name, 0, end)
