"""Content of a job's page at one moment."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import attrs
import numpy as np

from sm_profiler.processes import trim_heap
from sm_profiler.report.model import Finding, Report
from sm_profiler.report.page import page_parts, section_part
from sm_profiler.report.scaling import codec
from sm_profiler.report.system_fold import Buckets
from sm_profiler.serve.heat_map import heat_section
from sm_profiler.serve.reading import JobReader

SPARK_POINTS = 60


@attrs.frozen(eq=False)
class Look:
    """A report and what is drawn from it.

    Attributes:
        parts: HTML of the page's parts in their order: those of the report, with the heat map after the timeline.
        main: the leading finding.
        report: the report; None if it is packed, or stays in the process that made it.
        packed: the report as bytes, for `unpacked`; b"" if it is not.
        spark: mean step time in seconds, of consecutive stretches of the latest steps.
        gpu: mean use of the GPUs in per cent, in consecutive stretches of the job; empty without GPUs.
        data_at: time of the latest data, seconds since the epoch; None without any.
    """

    parts: Mapping[str, str]
    main: Finding
    report: Report | None
    packed: bytes = b""
    spark: tuple[float, ...] = ()
    gpu: tuple[float, ...] = ()
    data_at: float | None = None


def look_of(reader: JobReader) -> Look:
    """Return the page's content of the data that a reader has read so far.

    Raises:
        NoProfilerDataError: there is no whole record yet.
    """
    report = reader.report()
    parts = dict[str, str]()
    for key, html in page_parts(report).items():
        parts[key] = str(html)
        if key == "timeline":
            section = heat_section(reader.heat, report.metrics.start)
            parts["heat"] = str(section_part(section)) if section else ""
    data_at = report.metrics.end if report.metrics.duration > 0 else None
    return Look(parts, report.verdict.main, report, b"", sparkline(report), use_of_gpus(report), data_at)


def packed_or_none(report: Report | None) -> bytes:
    """Return a report as bytes, a fraction of its size in memory; b"" if it holds what has no bytes."""
    try:
        return zlib.compress(codec.encode(report), 1) if report is not None else b""
    except (TypeError, ValueError):  # a name that is not UTF-8, for one
        return b""


def unpacked(data: bytes) -> Report:
    """Return the report again."""
    found: Report = codec.decode(zlib.decompress(data), report=True)
    trim_heap()  # of the bytes
    return found


def sparkline(report: Report, points: int = SPARK_POINTS) -> tuple[float, ...]:
    """Return the mean step time of the first process in consecutive stretches of its loop."""
    if not report.metrics.ranks:
        return ()
    lengths = report.metrics.ranks[0].iterations.length
    return tuple(float(one.mean()) for one in np.array_split(lengths, min(points, len(lengths) or 1)) if len(one))


def use_of_gpus(report: Report, points: int = SPARK_POINTS) -> tuple[float, ...]:
    """Return the mean use of all GPUs in consecutive stretches of the job."""
    whole = Buckets()
    for one in report.metrics.system.of("gpu").values():
        whole.merge(one)
    values = whole.mean[whole.count > 0]
    return tuple(float(one.mean()) for one in np.array_split(values, min(points, len(values) or 1)) if len(one))
