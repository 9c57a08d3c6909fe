"""Writer of system metrics: JSON lines, one file per minute and node, under a `.tmp` name until the minute is over."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import attrs

from sm_profiler.descriptors import open_descriptor, open_regular
from sm_profiler.formats.layout import SYSTEM_FOLDER, TEMPORARY, SystemFile
from sm_profiler.formats.trace_writer import quoted

MINUTE_S = 60
_MAX_DIGITS = 11  # of a minute in a file's name
_MAX_HEADS = 10_000  # names of devices come and go


class Measurement(NamedTuple):
    """One metric of a tick: `Measurement("cpu", "cpu0", "CPUUtilization", 12.5)`."""

    type: str
    name: str
    dimension: str
    value: float


@attrs.define(eq=False)
class SystemWriter:
    """Writer of the system metric files of one node.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
        dropped: number of lost rows.
        error: description of the first failure, or "".
    """

    root: Path = attrs.field(converter=Path)
    node: str
    dropped: int = 0
    error: str = ""
    _minute: int = attrs.field(default=-1, init=False)
    _fd: int = attrs.field(default=-1, init=False)
    _heads: dict[tuple[str, str, str], str] = attrs.field(factory=dict, init=False)

    def write(self, timestamp: float, rows: Iterable[Measurement]) -> None:
        """Append rows that share a time (seconds since the epoch); values that are not finite are left out.

        Failures of the disk raise no error.
        """
        rows = [row for row in rows if math.isfinite(row.value)]
        if not rows:
            return
        minute = int(timestamp // MINUTE_S) * MINUTE_S
        tail = f'"NodeId":{quoted(self.node)},"Timestamp":{timestamp:.6f}}}\n'
        text = "".join(f'{self._head(row)}"Value":{round(row.value, 2)},{tail}' for row in rows)
        try:
            if minute != self._minute or self._fd < 0:
                self.finish()
                self._open(minute)
            self._put(text.encode())
        except OSError as error:
            self.dropped += len(rows)
            self.error = self.error or f"{error.strerror or error} ({error.filename or self.root})"

    def tick(self, now: float) -> None:
        """Finish the open file if its minute is over."""
        if self._fd >= 0 and now >= self._minute + MINUTE_S:
            self.finish()

    def finish(self) -> None:
        """Close the open file and give it its final name, or append it to an existing file of the same minute."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1
        try:
            publish_minute(self.root, self.node, self._minute)
        except OSError as error:
            self.error = self.error or f"{error.strerror or error} ({error.filename or self.root})"

    def _head(self, row: Measurement) -> str:
        key = (row.type, row.name, row.dimension)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            parts = (quoted(row.type), quoted(row.name), quoted(row.dimension))
            head = self._heads[key] = '{{"Type":{},"Name":{},"Dimension":{},'.format(*parts)
        return head

    def _put(self, data: bytes) -> None:
        """Write all or nothing: the file is truncated to its former size after a failed write."""
        size, done = os.fstat(self._fd).st_size, 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            raise

    def _open(self, minute: int) -> None:
        self._minute = minute
        path = temporary_path(self.root, self.node, minute)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def temporary_path(root: Path, node: str, minute: int) -> Path:
    """Return the path of a minute's rows while it lasts."""
    return root / SYSTEM_FOLDER / f"{minute}.{node}.json{TEMPORARY}"


def publish_minute(root: Path, node: str, minute: int) -> None:
    """Give a minute's rows their final name, or append them to an existing file of that name."""
    path, target = temporary_path(root, node, minute), root / SystemFile(node, minute).path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        path.rename(target)
        return
    # Readers ignore the temporary name, so they see either the old or the joined file.
    joined = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    joined.unlink(missing_ok=True)
    with (
        open_regular(target, flags=os.O_NOFOLLOW) as before,
        open_regular(path, flags=os.O_NOFOLLOW) as after,
        joined.open("xb") as file,
    ):
        file.write(before.read() + after.read())
    joined.rename(target)
    path.unlink()


def recover_minutes(root: Path | str, node: str) -> int:
    """Publish the minutes that a killed monitor of this node left open, and return their number.

    No monitor of this node may be running.
    """
    ending, count = f".{node}.json{TEMPORARY}", 0
    for path in sorted(Path(root, SYSTEM_FOLDER).glob(f"*{ending}")):
        minute = path.name.removesuffix(ending)
        if minute.isascii() and minute.isdigit() and len(minute) <= _MAX_DIGITS:
            with contextlib.suppress(OSError):
                publish_minute(Path(root), node, int(minute))
                count += 1
    return count
