"""Single files read as if they were a profile's, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.source import ProfileSource
from sm_profiler.source.profile import Options
from sm_profiler.storage import FileInfo, MissingFileError


class SingleFiles:
    """Files in memory.

    Attributes:
        uri: a name for messages.
        parallel_reads: how many reads at the same time are worth while.
        data: the files' content by key, which is a path below a profiler output.
    """

    uri = "memory"
    parallel_reads = 1

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self._source: ProfileSource | None = None

    def system(self, key: str, data: bytes) -> SystemColumns:
        """Add a file and return the measurements in it."""
        columns: SystemColumns = SystemColumns.concat([batch[0] for batch in self._new(key, data)])
        return columns

    def events(self, key: str, data: bytes) -> EventColumns:
        """Add a file and return the events in it, those that began in earlier files and end in it first."""
        columns: EventColumns = EventColumns.concat([batch[1] for batch in self._new(key, data)])
        return columns

    def _new(self, key: str, data: bytes) -> Iterator[tuple[SystemColumns, EventColumns]]:
        self.data[key] = data
        if self._source is None:
            self._source = ProfileSource(self, Options(cache=False, processes=1, progress=False))
        self._source.refresh()
        for batch in self._source.batches():
            yield batch.system, batch.events

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """The files under a prefix in order of their keys; all of them, whatever came before."""
        del start_after  # files are added in any order of time
        for key in sorted(self.data):
            if key.startswith(prefix):
                yield FileInfo(key, len(self.data[key]), 0.0, str(hash(self.data[key])))

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The content of a file, or a part of it."""
        try:
            return self.data[key][start:end]
        except KeyError:
            raise MissingFileError(f"{key} is not there") from None

    def write(self, key: str, data: bytes) -> None:
        """Put a file."""
        self.data[key] = data

    def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        return key in self.data


def read_bytes(path: str) -> bytes:
    """The content of a file on disk.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
