"""Content of a job's page at one moment, and the copy on disk that is shown while the job is read again."""

from __future__ import annotations

import time
import zlib
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from sm_profiler._version import __version__
from sm_profiler.diagnosis.model import Finding, Report
from sm_profiler.fleet.rows import STATUS
from sm_profiler.formats.columns import Floats
from sm_profiler.formatting import utc
from sm_profiler.jobs.finding import local_folder
from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.system_fold import Buckets
from sm_profiler.processes import trim_heap
from sm_profiler.render.words import readable_finding, readable_processes
from sm_profiler.source.cache import OwnFolder

SPARK_POINTS = 60
MAX_BYTES = 32 << 20  # of a page, uncompressed
_PAGES = OwnFolder("sm-profiler-pages", ".page", file_bytes=MAX_BYTES, files=200, total_bytes=1 << 30)


def in_brief(report: Report) -> dict[str, Any]:
    """Return the fields of a snapshot that lists of jobs show of a report; processes have the names of its page."""
    renamed = readable_processes(report.metrics)
    return {
        "main": brief(readable_finding(report.verdict.main, renamed)), "end": renamed(failure_of(report)),
        "status": STATUS.get(report.metrics.ending.state, ""), "spark": sparkline(report), "gpu": use_of_gpus(report),
        "begun": report.metrics.start if report.metrics.duration > 0 else None,
        "data_at": report.metrics.end if report.metrics.duration > 0 else None,
    }  # fmt: skip


def failure_of(report: Report) -> str:
    """Return why the job failed, in a sentence; "" if it did not."""
    return report.metrics.ending.sentence if report.metrics.ending.failed else ""


def packed_or_none(report: Report | None) -> bytes:
    """Return a report as bytes, a fraction of its size in memory; b"" if it holds what has no bytes."""
    try:
        return zlib.compress(codec.encode(report), 1) if report is not None else b""
    except (TypeError, ValueError):  # such as a name that is not UTF-8
        return b""


def unpacked(data: bytes) -> Report:
    found: Report = codec.decode(zlib.decompress(data), report=True)
    trim_heap()  # of the bytes
    return found


def sparkline(report: Report) -> tuple[float, ...]:
    """Return the mean step time of the first process in consecutive stretches of its loop."""
    return _means(report.metrics.ranks[0].iterations.length) if report.metrics.ranks else ()


def use_of_gpus(report: Report) -> tuple[float, ...]:
    """Return the mean use of all GPUs in consecutive stretches of the job."""
    whole = Buckets()
    for buckets in report.metrics.system.of("gpu").values():
        whole.merge(buckets)
    return _means(whole.mean[whole.count > 0])


def _means(values: Floats) -> tuple[float, ...]:
    stretches = np.array_split(values, min(SPARK_POINTS, len(values) or 1))
    return tuple(float(stretch.mean()) for stretch in stretches if len(stretch))


class Part(msgspec.Struct, frozen=True):
    """A part of the page: its HTML, the version of the job in which it changed last, and when that was."""

    html: str
    version: int
    at: float


class Snapshot(msgspec.Struct, frozen=True):
    """State of a job at one moment.

    Attributes:
        version: grows with each change.
        state: `waiting` for data, `reading` what is there, `running`, `ended`, or `unreadable`.
        note: one line on that state; "" if there is nothing to add.
        parts: parts of the page in their order.
        main: the leading finding, as lists show it; None before the first report.
        end: why the job failed, in a sentence; "" if it did not.
        status: how it ended, as rows of a fleet have it; "" if that is unknown.
        packed: the report as bytes, once the job is over.
        saved: the verdict of the copy on disk, until there is a report.
        spark: mean step time in seconds, of consecutive stretches of the latest steps.
        gpu: mean use of the GPUs in per cent, in consecutive stretches of the job; empty without GPUs.
        files: number of files read.
        begun, data_at: times of the first and of the latest data, seconds since the epoch; None without any.
        report: the report; None before the first, or if it is packed.
    """

    version: int = 0
    state: str = "reading"
    note: str = ""
    parts: dict[str, Part] = {}
    main: Finding | None = None
    end: str = ""
    status: str = ""
    packed: bytes = b""
    saved: Finding | None = None
    spark: tuple[float, ...] = ()
    gpu: tuple[float, ...] = ()
    files: int = 0
    begun: float | None = None
    data_at: float | None = None
    report: Any = None

    def whole_report(self) -> Report | None:
        """Return the report, unpacked for this call only; None before the first."""
        return unpacked(self.packed) if self.packed else self.report

    def parts_since(self, version: int) -> dict[str, str]:
        """Return the parts that changed after a version, in their order."""
        return {key: part.html for key, part in self.parts.items() if part.version > version}


def brief(finding: Finding) -> Finding:
    """Return the part of a finding that lists of jobs show."""
    return Finding(finding.kind, finding.headline, label=finding.label, of=finding.of)


class Page(msgspec.Struct):
    """A snapshot in a file; `at` is when it was written, and `place` distinguishes folders of one name."""

    version: str
    place: list[int]
    at: float
    snapshot: Snapshot

    @classmethod
    def read(cls, data: bytes, most: int | None = None) -> Page:
        """Return the page in the bytes of a file, of at most so many bytes once unpacked: MAX_BYTES unless given."""
        try:
            return _PAGE.decode(zlib.decompressobj().decompress(data, most or MAX_BYTES))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(str(error)) from None


_PAGE = msgspec.msgpack.Decoder(Page)


def as_page(where: str, snapshot: Snapshot, packed: bytes = b"") -> bytes:
    """Return a snapshot as the bytes of a file, with its report packed or without."""
    content = replace(snapshot, packed=packed, report=None)
    return zlib.compress(msgspec.msgpack.encode(Page(__version__, _place(where), time.time(), content)), 1)


def save(where: str, snapshot: Snapshot) -> None:
    """Save a copy of a job's page, without its log, unless the user's folder cannot be written to."""
    parts = {key: part for key, part in snapshot.parts.items() if key != "log"}
    if sum(len(part.html) for part in parts.values()) <= MAX_BYTES // 4:  # a character takes four bytes at most
        _PAGES.write(_name(where), as_page(where, replace(snapshot, parts=parts)))


def load(where: str) -> Snapshot | None:
    """Return the page that this user and this version saved of a job; None if there is none, or it is damaged."""
    try:
        page = Page.read(_PAGES.read(_name(where)))
        if page.version != __version__ or page.place != _place(where):
            return None
        saved = page.snapshot
        return Snapshot(
            1,
            "reading",
            f"as of {utc(page.at)}; reading what is there",
            {key: replace(part, version=1, at=0.0) for key, part in saved.parts.items()},
            end=saved.end,
            saved=saved.main,
            spark=saved.spark,
            files=saved.files,
        )
    except (OSError, OverflowError, ValueError, KeyError):
        return None


def _name(where: str) -> str:
    folder = local_folder(where)
    return str(folder.resolve()) if folder else where


def _place(where: str) -> list[int]:
    """Return what distinguishes a folder from a later one of the same name."""
    folder = local_folder(where)
    if folder is None:
        return []
    found = folder.stat()
    return [found.st_dev, found.st_ino]
