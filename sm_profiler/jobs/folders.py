"""Jobs below a folder of this machine, found by its folders alone: cheap enough for every few seconds."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.jobs.job import Job
from sm_profiler.jobs.listing import MAX_REPORT_BYTES
from sm_profiler.monitor.run_state import STATE_FILE, read_state
from sm_profiler.source.naming import OUTPUTS, job_name
from sm_profiler.source.open_files import profile_folder
from sm_profiler.source.parquet.paths import DATA, FILES
from sm_profiler.storage import LocalStorage

MAX_DEPTH = 5  # of folders in which profiles are searched
MAX_FOLDERS = 5000  # inspected; a whole disk is not searched
SILENT_S = 180.0  # a job whose files are older is taken for one that no longer runs
REPORTS = ("report.json", "profiler-report/report.json", "rule-output/ProfilerReport/profiler-output/report.json")
OUTPUT = OUTPUTS[0]
_PARTITION = "job="


def jobs_below(folder: Path) -> Iterator[Job]:
    """Yield the folder itself if it is a job, else the jobs below it; of a data set in Parquet, all of its jobs."""
    if found := list(_jobs_at(folder)):
        yield from found
        return
    level, looked_at = [folder], 0
    for _ in range(MAX_DEPTH):
        below = []
        for one in level:
            with contextlib.suppress(OSError), os.scandir(one) as entries:
                below += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        level = []
        for one in sorted(below):
            looked_at += 1
            if looked_at > MAX_FOLDERS:
                return
            if found := list(_jobs_at(one)):
                yield from found
            elif not one.name.startswith("."):
                level.append(one)


def has_end_marker(folder: Path) -> bool:
    """Return whether a local profile is marked as complete."""
    base = profile_folder(folder)
    return any((base / marker).exists() for marker in END_MARKERS)


def last_written(folder: Path) -> float:
    """Return when a file of a folder's profile was last written, in seconds since the epoch; 0 if it has none."""
    found = (
        file.mtime
        for base in (folder, folder / OUTPUT)
        for kind in ("system", "framework")
        for file in LocalStorage(base).list(f"{kind}/")
        if file.key not in END_MARKERS
    )
    with contextlib.suppress(SourceError):  # reported when it is read
        return max(found, default=0.0)
    return 0.0


def _jobs_at(folder: Path) -> Iterator[Job]:
    """Yield what a folder is: the jobs of a data set, a profile or the folder around it, or a run without data so far."""
    tables = list((folder / FILES).glob(f"{_PARTITION}*/{DATA}"))
    if tables:
        yield from (_dataset_job(folder, path) for path in sorted(tables))
        return
    base = profile_folder(folder)
    if any((base / kind).is_dir() for kind in ("system", "framework")) or read_state(folder) is not None:
        yield _profile_job(folder, base)


def _dataset_job(root: Path, table: Path) -> Job:
    name = table.parent.name
    changed = _changed([table])
    return Job(unquote(name.removeprefix(_PARTITION)), f"{root}/{name}", changed, "ended", identity=str(changed))


def _profile_job(folder: Path, base: Path) -> Job:
    run, newest = read_state(folder), _changed(_latest(base))
    begun = _changed([folder / STATE_FILE])
    over = run.is_over if run is not None else has_end_marker(folder) or time.time() - newest > SILENT_S
    identity = " ".join(str(_changed([folder / report])) for report in REPORTS)
    return Job(
        job_name(str(folder.resolve())),
        str(folder),
        newest if newest or over else begun,
        "ended" if over else "running",
        identity=identity,
        read_report=partial(_read_report, folder),
    )


def _latest(base: Path) -> Iterator[Path]:
    """Yield folders whose times change with a new file: the last hours of both kinds."""
    yield from (base, base / "system", base / "framework")
    for folder in (base / "system" / "incremental", base / "framework" / "pevents"):
        yield folder
        hours = sorted(folder.glob("[0-9]*")) if folder.is_dir() else []
        yield from hours[-1:]


def _changed(paths: Iterator[Path] | list[Path]) -> float:
    """Return when the latest of some files changed; 0 if there is none."""
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _read_report(folder: Path) -> bytes | None:
    """Return the first of the reports in a job's folder; None without one."""
    for place in REPORTS:
        if (folder / place).is_file():
            return LocalStorage(folder).read(place, end=MAX_REPORT_BYTES)
    return None
