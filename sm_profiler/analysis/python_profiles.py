"""`cProfileAnalysis` and `PyinstrumentAnalysis`: statistics of the training script's Python code."""

from __future__ import annotations

import atexit
import hashlib
import os
import pstats
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, Generic, TypeVar

import attrs
import pandas as pd

from sm_profiler.analysis.python_stats import (
    CPROFILE,
    PYINSTRUMENT,
    PyinstrumentStepStats,
    PythonProfileModes,
    StepPhase,
    StepPythonProfileStats,
    cProfileStats,
    load_cprofile,
    load_session,
    python_profile_mode_to_str,
)
from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.cprofile_reader import MAX_BYTES
from sm_profiler.printable import logger_for
from sm_profiler.storage import FileInfo, LocalStorage, open_storage, read_all
from sm_profiler.storage.base import real_path

_log = logger_for(__name__)
_PLACE = 2  # framework and profiler, the end of the path of a statistics folder
DEFAULT_FOLDER = "/tmp/python_stats"  # noqa: S108 - the known default
ANY = "any"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|^\.+")
_MAX_NAME = 120
Result = TypeVar("Result")
File = TypeVar("File")
Loaded = TypeVar("Loaded")


class PythonStatsReader:
    """Finder of statistics files under a folder or s3:// URI of a profile, or of one profiler's folder in it.

    Files on S3 are downloaded by each reader, once. What a folder contained before is never used in their place.

    Attributes:
        profile_dir: folder with the files, or that files are downloaded to.
    """

    def __init__(self, profile_dir: str, s3_path: str | None = None) -> None:
        """Open a location.

        Args:
            profile_dir: a folder of statistics (`…/framework/pytorch/cprofile`) or of a profile, the s3:// URI of a
                profile, or the name of a training job; with `s3_path`, the folder that files are downloaded to. The
                default folder of the analyses, which any user of the machine can create, is replaced by a temporary one.
            s3_path: s3:// URI of a profile.

        Raises:
            SourceError: the location does not exist, or the folder for downloads belongs to another user.
        """
        where = s3_path or str(profile_dir)
        if not where.startswith("s3://") and not Path(where).is_dir():
            if "/" in where:
                raise SourceError(f"{where} is not a folder")
            from sm_profiler.source.job import profiler_output  # boto3 is slow to load

            where = profiler_output(where)
        self._storage = open_storage(where)
        self._downloaded: dict[str, tuple[FileInfo, str]] = {}
        if isinstance(self._storage, LocalStorage):
            self.profile_dir = where
            if where == DEFAULT_FOLDER:
                _check_owner(Path(where))
        else:
            chosen = s3_path is not None and str(profile_dir) != DEFAULT_FOLDER
            self.profile_dir = str(Path(profile_dir if chosen else _private_folder(), layout.PYTHON_STATS))

    def load_python_profile_stats(self) -> list[StepPythonProfileStats]:
        """Return the files, sorted by the start of their window and by process; download those on S3.

        Files that cannot be downloaded are left out and logged.

        Raises:
            SourceError: files cannot be listed, or the folder for downloads cannot be written.
        """
        files = list(self._files())
        if isinstance(self._storage, LocalStorage):
            paths = {info.key: path for info, _ in files if (path := _path_of(self._storage, info.key))}
        else:
            paths = self._download(files)
        found = [StepPythonProfileStats.of(stats, paths[info.key]) for info, stats in files if info.key in paths]
        return sorted(found, key=lambda each: (each.start_time_since_epoch_in_micros, each.node_id, each.stats_path))

    def _files(self) -> Iterator[tuple[FileInfo, layout.PythonStats]]:
        place = PurePosixPath(self._storage.uri.rstrip("/")).parts[-_PLACE:]
        for info in self._storage.list(""):
            within = info.key.rpartition(f"{layout.FRAMEWORK}/")
            for path in (f"{layout.FRAMEWORK}/{within[2]}", "/".join((layout.FRAMEWORK, *place, info.key))):
                parsed = layout.parse_path(path)
                if isinstance(parsed, layout.PythonStats):
                    yield info, parsed
                    break

    def _download(self, files: list[tuple[FileInfo, layout.PythonStats]]) -> dict[str, str]:
        """Download the files that are new or have changed; return the paths of all by key."""
        stats = {info.key: each for info, each in files}
        new = [info for info, _ in files if self._downloaded.get(info.key, (None, ""))[0] != info]
        too_large = [info for info in new if info.size > MAX_BYTES]
        for info in too_large:
            _log.warning("%s is left out: it is larger than %d MB", info.key, MAX_BYTES >> 20)
        for info, data in read_all(self._storage, [info for info in new if info.size <= MAX_BYTES]):
            if isinstance(data, SourceError):
                _log.warning("%s is left out: %s", info.key, data)
                continue
            path = self._path(info.key, stats[info.key])
            _write(path, data)
            self._downloaded[info.key] = info, str(path)
        return {key: self._downloaded[key][1] for key in stats if key in self._downloaded}

    def _path(self, key: str, stats: layout.PythonStats) -> Path:
        """Return the path that a file is downloaded to; names on S3 are arbitrary, so each of its folders has its own."""
        parts = [stats.profiler, stats.node, stats.window.folder.replace(layout.NO_STEP, "_")]
        names = [_UNSAFE.sub("_", part)[:_MAX_NAME] for part in parts]
        digest = hashlib.sha256(key.rpartition("/")[0].encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return Path(self.profile_dir, *names, digest, stats.name)


def _private_folder() -> str:
    """Create a temporary folder of this user, which is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="sm-profiler-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _write(path: Path, data: bytes) -> None:
    folder = path.parents[4]  # python_stats/<profiler>/<node>/<window>/<digest>/<name>
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(f"{folder} cannot be created: {error.strerror}") from error
    _check_owner(folder)
    LocalStorage(path.parent).write(path.name, data)


def _path_of(storage: LocalStorage, key: str) -> str | None:
    """Return the path of a local file; None, with a warning, if it is a link that leads out of the profile."""
    try:
        real_path(storage.root, key)
    except SourceError as error:
        _log.warning("%s", error)
        return None
    return str(storage.root / key)


def _check_owner(folder: Path) -> None:
    """Reject a folder of another user, who could replace files in it.

    Raises:
        SourceError: the folder belongs to another user or is a link.
    """
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
        raise SourceError(f"{folder} is a link or belongs to another user; name a folder of your own")


class LocalPythonStatsReader(PythonStatsReader):
    def __init__(self, profile_dir: str) -> None:
        super().__init__(profile_dir)


class S3PythonStatsReader(PythonStatsReader):
    """Finder of statistics files under an s3:// URI, which are downloaded."""

    def __init__(self, profile_dir: str, s3_path: str) -> None:
        super().__init__(profile_dir, s3_path)


class PythonProfileAnalysis(Generic[Result]):
    """Base class of the analyses of both profilers.

    Attributes:
        python_stats_reader: finder of the files.
        python_profile_stats: the files found, one `StepPythonProfileStats` each.
    """

    name: ClassVar[str]

    def __init__(self, local_profile_dir: str = DEFAULT_FOLDER, s3_path: str | None = None) -> None:
        """Find the statistics of a profile.

        Args:
            local_profile_dir: a folder of statistics (`…/framework/pytorch/cprofile`) or of a profile, the s3:// URI of a
                profile, or the name of a training job; with `s3_path`, the folder that files are downloaded to, by
                default a temporary one that is removed when the process ends.
            s3_path: s3:// URI of a profile.

        Raises:
            SourceError: the location does not exist or cannot be reached.
        """
        self.python_stats_reader = PythonStatsReader(local_profile_dir, s3_path)
        self.python_profile_stats: list[StepPythonProfileStats] = []
        self._refresh(wanted=True)

    def fetch_profile_stats_by_step(  # the known signature
        self,
        start_step: int,
        end_step: int | None = None,
        mode: PythonProfileModes = PythonProfileModes.TRAIN,
        start_phase: StepPhase = StepPhase.STEP_START,
        end_phase: StepPhase = StepPhase.STEP_END,
        node_id: str = ANY,
        refresh_stats: bool = True,
    ) -> Result | None:
        """Return the statistics of windows between two points of the training loop.

        Args:
            start_step: number of the first step.
            end_step: number of the last step; default: `start_step`.
            mode: mode of the steps.
            start_phase: point in the first step at which the range starts.
            end_phase: point in the last step at which the range ends.
            node_id: the process (`0-algo-1`); "any": the first one with statistics.
            refresh_stats: look for new files first.

        Returns:
            The statistics together; None (and a printed note) if there are none.

        Raises:
            SourceError: a file cannot be read.
        """
        end = start_step if end_step is None else end_step
        return self._fetch(
            node_id,
            refresh_stats,
            lambda each: (
                each.in_step_interval(start_step, end, start_phase, end_phase)
                and each.has_start_and_end_mode(mode, mode)
            ),
        )

    def fetch_profile_stats_by_time(
        self,
        start_time_since_epoch_in_secs: float,
        end_time_since_epoch_in_secs: float,
        node_id: str = ANY,
        refresh_stats: bool = True,  # the known signature
    ) -> Result | None:
        """Return the statistics of windows that overlap a time range, in seconds since the epoch; see `fetch_profile_stats_by_step`."""
        start, end = start_time_since_epoch_in_secs * 1e6, end_time_since_epoch_in_secs * 1e6
        return self._fetch(node_id, refresh_stats, lambda each: each.in_time_interval(start, end))

    def fetch_profile_stats_between_modes(
        self,
        start_mode: PythonProfileModes,
        end_mode: PythonProfileModes,
        node_id: str = ANY,
        refresh_stats: bool = True,  # the known signature
    ) -> Result | None:
        """Return the statistics of windows that start in one mode and end in another; see `fetch_profile_stats_by_step`."""
        return self._fetch(node_id, refresh_stats, lambda each: each.has_start_and_end_mode(start_mode, end_mode))

    def fetch_pre_step_zero_profile_stats(
        self, node_id: str = ANY, refresh_stats: bool = True
    ) -> Result | None:  # the known signature
        """Return the statistics of windows that start before the first step; see `fetch_profile_stats_by_step`."""
        return self._fetch(node_id, refresh_stats, StepPythonProfileStats.has_pre_step_zero_profile_stats)

    def fetch_post_hook_close_profile_stats(
        self, node_id: str = ANY, refresh_stats: bool = True
    ) -> Result | None:  # the known signature
        """Return the statistics of windows that end after the hook was closed; see `fetch_profile_stats_by_step`."""
        return self._fetch(node_id, refresh_stats, StepPythonProfileStats.has_post_hook_close_profile_stats)

    def list_profile_stats(self, refresh_stats: bool = True) -> pd.DataFrame:  # the known signature
        """Return one row per file, with the attributes of `StepPythonProfileStats` as columns; modes are names."""
        self._refresh(wanted=refresh_stats)
        if not self.python_profile_stats:
            print("No stats were found!")
            return pd.DataFrame()
        names = [field.name for field in attrs.fields(StepPythonProfileStats)]
        frame = pd.DataFrame(
            [[getattr(each, name) for name in names] for each in self.python_profile_stats], columns=names
        )
        for column in ("start_mode", "end_mode"):
            frame[column] = [python_profile_mode_to_str(getattr(each, column)) for each in self.python_profile_stats]
        return frame

    def list_available_node_ids(self, refresh_stats: bool = True) -> list[str]:  # the known signature
        """Return the processes that have statistics, sorted."""
        self._refresh(wanted=refresh_stats)
        return sorted({each.node_id for each in self.python_profile_stats})

    def _refresh(self, *, wanted: bool) -> None:
        if wanted:
            found = self.python_stats_reader.load_python_profile_stats()
            self.python_profile_stats = [each for each in found if each.profiler_name == self.name]

    def _fetch(
        self, node_id: str, refresh: bool, chosen: Callable[[StepPythonProfileStats], bool]
    ) -> Result | None:  # passed on
        """Combine the selected statistics of one process."""
        self._refresh(wanted=refresh)
        if node_id == ANY and self.python_profile_stats:
            node_id = self.python_profile_stats[0].node_id
        found = [each for each in self.python_profile_stats if each.node_id == node_id and chosen(each)]
        if not found:
            print("No stats were found for the requested interval!")
            return None
        return self._combine(found)

    def _combine(self, stats: Sequence[StepPythonProfileStats]) -> Result:
        raise NotImplementedError


class cProfileAnalysis(PythonProfileAnalysis[cProfileStats]):  # the known name
    """Statistics of cProfile; each `fetch_…` method returns one `cProfileStats`, or None if there are none."""

    name = CPROFILE

    def fetch_profile_stats_by_training_phase(
        self,
        node_id: str = ANY,
        refresh_stats: bool = True,  # the known signature
    ) -> dict[tuple[PythonProfileModes, PythonProfileModes], cProfileStats]:
        """Return the statistics by the modes at the start and end of their windows."""
        self._refresh(wanted=refresh_stats)
        if node_id == ANY and self.python_profile_stats:
            node_id = self.python_profile_stats[0].node_id
        groups: dict[tuple[PythonProfileModes, PythonProfileModes], list[StepPythonProfileStats]] = {}
        for each in self.python_profile_stats:
            if each.node_id == node_id:
                groups.setdefault((each.start_mode, each.end_mode), []).append(each)
        return {modes: self._combine(groups[modes]) for modes in sorted(groups)}

    def fetch_profile_stats_by_job_phase(
        self,
        node_id: str = ANY,
        refresh_stats: bool = True,  # the known signature
    ) -> dict[str, cProfileStats]:
        """Return the statistics of the job's `initialization`, `training_loop` and `finalization`; missing ones are left out."""
        phases: dict[str, pstats.Stats] = {}
        for (start, end), stats in self.fetch_profile_stats_by_training_phase(node_id, refresh_stats).items():
            is_first, is_last = start is PythonProfileModes.PRE_STEP_ZERO, end is PythonProfileModes.POST_HOOK_CLOSE
            phase = "initialization" if is_first else "finalization" if is_last else "training_loop"
            phases.setdefault(phase, pstats.Stats()).add(stats.ps)
        return {phase: cProfileStats(stats) for phase, stats in phases.items()}

    def _combine(self, stats: Sequence[StepPythonProfileStats]) -> cProfileStats:
        total = pstats.Stats()
        for loaded in _readable(stats, lambda each: load_cprofile(each.stats_path)):
            total.add(loaded)
        return cProfileStats(total)


class PyinstrumentAnalysis(PythonProfileAnalysis[list[PyinstrumentStepStats]]):
    """Statistics of Pyinstrument; each `fetch_…` method returns a list with one `PyinstrumentStepStats` per window, or None."""

    name = PYINSTRUMENT

    def _combine(self, stats: Sequence[StepPythonProfileStats]) -> list[PyinstrumentStepStats]:
        windows: dict[Path, dict[str, str]] = {}
        for each in stats:
            windows.setdefault(Path(each.stats_path).parent, {})[Path(each.stats_path).suffix] = each.stats_path
        return list(_readable(list(windows.values()), _window_stats))


def _window_stats(files: dict[str, str]) -> PyinstrumentStepStats:
    return PyinstrumentStepStats(files.get(".html"), load_session(files[".json"]) if ".json" in files else None)


def _readable(files: Sequence[File], load: Callable[[File], Loaded]) -> Iterator[Loaded]:
    """Load files; log the ones that cannot be read and leave them out.

    Raises:
        SourceError: none of them can be read.
    """
    errors = []
    for file in files:
        try:
            yield load(file)
        except SourceError as error:  # a damaged file must not affect the others
            _log.warning("left out: %s", error)
            errors.append(error)
    if errors and len(errors) == len(files):
        raise errors[0]
