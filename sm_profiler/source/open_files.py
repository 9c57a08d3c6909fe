"""Files that are still written: copies of them that readers accept."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import SYSTEM_FOLDER, TEMPORARY, TRACE_FOLDER
from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.storage import LocalStorage

MAX_PREVIEW_BYTES = 256 << 20
CLOSE_SECONDS = 60.0  # after which a trace file is closed by default
_NS_DIGITS = 20


def profile_folder(folder: Path) -> Path:
    """Return the folder that holds `system` and `framework`: the given one, or `profiler-output` in it."""
    return folder if any((folder / kind).is_dir() for kind in ("system", "framework")) else folder / "profiler-output"


def open_files(base: Path) -> list[Path]:
    """Return the files of a profile that are still written, by path; the complete ones are not listed."""
    found = [path for name in (TRACE_FOLDER, SYSTEM_FOLDER) for path in (base / name).glob(f"*.json{TEMPORARY}")]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def closes_in(base: Path) -> float | None:
    """Return the seconds until the first of the open trace files is due to be closed; None if there is none."""
    begun = []
    for path in (base / TRACE_FOLDER).glob(f"*.json{TEMPORARY}"):
        text = path.name.removesuffix(f".json{TEMPORARY}").rpartition("_")[2]
        if text.isdecimal() and len(text) < _NS_DIGITS:
            begun.append(int(text) / 1e9)
    return max(min(begun) + CLOSE_SECONDS - time.time(), 0.0) if begun else None


def copy_with_open_files(folder: Path, to: Path) -> bool:
    """Copy a small profile, with the files that are still written under readable names; return whether it has data."""
    base = profile_folder(folder)
    sizes = {}
    for kind in ("system", "framework"):
        with contextlib.suppress(SourceError):  # reported when it is read
            for file in LocalStorage(base).list(f"{kind}/"):
                path = base / file.key
                sizes[path] = file.size if ".json" in path.name and not path.is_symlink() else 0
    if not any(sizes.values()) or sum(sizes.values()) > MAX_PREVIEW_BYTES:
        return False
    copy_readable(base, [path for path, size in sizes.items() if size], to)
    return True


def copy_readable(base: Path, paths: Iterable[Path], to: Path, *, killed: bool = False) -> None:
    """Copy files of a profile, open ones under names that readers accept; files that are gone by now are left out.

    Args:
        base: the profile's folder.
        paths: the files.
        to: the folder of the copies.
        killed: the processes that left them open were killed; otherwise, they may be alive.
    """
    for path in paths:
        key = path.relative_to(base)
        target = to / key.with_name(readable_name(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            shutil.copyfile(path, target)
    recover_traces(to, stopped=False if killed else None, count_kills=False)


def readable_name(key: Path) -> str:
    """Return the name under which a reader, or `recover_traces`, accepts a file that is still written."""
    if not key.name.endswith(TEMPORARY):
        return key.name
    if key.parts[0] == "system":
        return key.name.removesuffix(TEMPORARY)
    source, *rest = key.name.rsplit("_", 3)
    return "_".join((source, "copied", *rest[1:]))  # in place of the pid, whose process still runs
