"""The end of a job, which a resumed one takes back: a run in the same folder, or a later attempt of a spot job."""

from __future__ import annotations

from pathlib import Path

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import SYSTEM_FOLDER, TRACE_FOLDER
from sm_profiler.jobs.folders import has_end_marker
from sm_profiler.monitor.run_state import read_state
from sm_profiler.source import ProfileSource
from sm_profiler.storage import Storage


@attrs.frozen
class Ending:
    """The files of a job when it ended.

    Attributes:
        folder: a local profile's; None for others.
        storage: of its files; None if the job had none.
        latest: the last key of each kind of file; later attempts write later ones.
    """

    folder: Path | None = None
    storage: Storage | None = None
    latest: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, folder: Path | None, source: ProfileSource | None) -> Ending:
        """Return the end of a job whose files have all been read."""
        if folder is not None or source is None:
            return cls(folder)
        keys = list(source.files.keys())
        latest = {kind: max((key for key in keys if key.startswith(f"{kind}/")), default="") for kind in _FOLDERS}
        return cls(None, source.storage, tuple(latest.items()))

    @property
    def is_final(self) -> bool:
        """True if the job is over; also if its files cannot be read."""
        try:
            if self.folder is not None:
                return _is_over(self.folder)
            return self.storage is None or not any(
                next(iter(self.storage.list(f"{kind}/", after or None)), None) for kind, after in self.latest
            )
        except (ProfilerError, OSError):
            return True


_FOLDERS = (SYSTEM_FOLDER, TRACE_FOLDER)


def _is_over(folder: Path) -> bool:
    run = read_state(folder)
    if run is not None:
        return run.is_over
    return has_end_marker(folder)
