"""Reports on what other tools recorded: traces of torch.profiler, tables of times."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler import diagnosis
from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.gpu import Traced, decide_traces
from sm_profiler.diagnosis.model import DamagedFiles, Evidence, Finding, Report, Verdict
from sm_profiler.diagnosis.words import GPU_ADVICE
from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.kineto_reader import HEAD_BYTES, is_kineto, unpacked_head
from sm_profiler.formatting import percent, plural
from sm_profiler.gpu_traces.callers import operators_alone
from sm_profiler.gpu_traces.measure import measure
from sm_profiler.gpu_traces.step_view import describe
from sm_profiler.gpu_traces.traces import GpuTraces
from sm_profiler.report.build import JobInfo, job_name, report_without_profile
from sm_profiler.source import FileQuality
from sm_profiler.source.opening import profile_around
from sm_profiler.storage import Storage, open_storage

_OURS = re.compile(r"(?:^|/)((?:system|framework)/.*|profiler-output/.*)")
_LOOKED_AT = 2000  # files of a folder or prefix
_OPENED = 40  # of them, those named after traces first


def holds_only_traces(where: str) -> bool:
    """Return whether a source is a trace of torch.profiler, or holds some among its first files and no profile.

    Raises:
        SourceError: it is, or only holds, traces of other programs.
    """
    remote = "://" in where
    if where.rstrip("/").rpartition("/")[2] in (layout.SYSTEM, layout.FRAMEWORK) and profile_around(where):
        return False  # the traces of its detailed windows; the reader of profiles names the profile
    if not remote and not Path(where).exists():
        return False  # the name of a training job
    if not remote and Path(where).is_file():
        path = Path(where)
        head = _head(open_storage(path.parent), path.name)
        if not is_kineto(head) and (kind := _other_trace(head)):
            raise SourceError(f"{where} is {kind}, not a trace of torch.profiler")
        return is_kineto(head)
    try:
        storage = open_storage(where)
        keys = [info.key for info in islice(storage.list(), _LOOKED_AT)]
        if any(_is_ours(key) for key in keys):
            return False
        candidates = [key for key in keys if key.endswith((".json", ".json.gz"))]
        candidates = sorted(candidates, key=lambda key: "trace" not in key.lower())[:_OPENED]
        others = {}
        for key in candidates:
            head = _head(storage, key)
            if is_kineto(head):
                return True
            if kind := _other_trace(head):
                others[key] = kind
    except SourceError:
        return False  # reported by the reader of profiles
    if others and not profile_around(where):
        key, kind = next(iter(others.items()))
        raise SourceError(f"{where} contains neither a profile nor a trace of torch.profiler; {key} is {kind}")
    return False


def _is_ours(key: str) -> bool:
    """Return whether a file belongs to a profile; other programs, too, have folders named `system`."""
    found = _OURS.search(key)
    if found is None:
        return False
    path = found[1].removeprefix("profiler-output/")
    return path in layout.END_MARKERS or path.endswith(layout.TEMPORARY) or layout.parse_path(path) is not None


def _head(storage: Storage, key: str) -> bytes:
    return unpacked_head(storage.read(key, 0, HEAD_BYTES))


def _other_trace(head: bytes) -> str:
    """Return what a file is if it is a trace of another kind; empty for anything else."""
    if b'"nodes"' in head and b'"schema"' in head:
        return "an execution trace (of ExecutionTraceObserver), which has no kernels' times"
    if b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head):
        return "a trace of another program"
    return ""


def report_traces(source: str | os.PathLike[str], job: JobInfo | None = None) -> Report:
    """Judge traces of torch.profiler.

    Raises:
        SourceError: there are no traces, or they cannot be read.
    """
    where, gpu = os.fspath(source), GpuTraces(source)
    ranks = measure(gpu)
    traced = Traced.of(ranks, gpu)
    files = [FileQuality(file.key, file.outcome.status, file.outcome.lost, file.outcome.reason) for file in gpu.files]
    shown = tuple(describe(gpu, rank) for rank in ranks)
    return report_without_profile(
        job_name(where),
        verdict_on(traced),
        files,
        job or JobInfo(),
        where,
        gpu_traces=shown,
        ledger=traced.totals if ranks else None,
    )


def verdict_on(traced: Traced) -> Verdict:
    """Return the verdict on traces that were measured; an inconclusive one if they hold too little.

    Raises:
        SourceError: their kernels take no time.
    """
    gpu = traced.gpu
    kernels = min((int(trace.events.on_device.sum()) for trace in gpu.ranks.values()), default=0)
    if kernels < limits.TRACE_KERNELS:
        return Verdict(_too_few(gpu, kernels))
    if not traced.totals.duration > 0:
        raise SourceError("the times of the traces are damaged: all kernels are at one moment and take no time")
    return decide_traces(traced)


def _on_host(gpu: GpuTraces) -> tuple[Evidence, ...]:
    """Return which operators take most of the host's time, without their inner operators."""
    spent: dict[str, float] = {}
    for trace in gpu.ranks.values():
        rows, alone = operators_alone(trace.events)
        names = trace.events.name
        sums = np.bincount(names.codes[rows], alone[rows], len(names.values))
        for code in np.flatnonzero(sums):
            spent[names.values[code]] = spent.get(names.values[code], 0.0) + float(sums[code])
    whole = sum(spent.values())
    most = sorted(spent, key=lambda name: -spent[name])[:3]
    shown = ", ".join(f"{name[:80]} {percent(spent[name] / whole)}" for name in most)
    return (Evidence("the host's operators", shown),) if shown else ()


def _too_few(gpu: GpuTraces, kernels: int) -> Finding:
    events = sum(len(trace.events) for trace in gpu.ranks.values())
    text = f"Too few kernels to judge: {kernels} recorded, {limits.TRACE_KERNELS} needed."
    if not kernels:
        text = "The traces hold no kernel: nothing ran on a GPU while they were recorded."
    return Finding(
        Class.INCONCLUSIVE,
        text,
        (
            Evidence("kernels and copies", kernels, limits.TRACE_KERNELS, held="judged from"),
            Evidence("all events", events),
            *_on_host(gpu),
        ),
        GPU_ADVICE["few" if kernels else "none"],
        0.0,
        confidence="low",
    )


def report_table(
    source: str | os.PathLike[str], job: JobInfo | None = None, columns: Mapping[str, str] | None = None
) -> Report:
    """Judge a table of times that another tool recorded, or an MLPerf log.

    Args:
        source: a CSV, Parquet or JSON lines file, or a log of mllog; a path or an s3:// URI.
        job: name and prices.
        columns: `rank`, `step`, `seconds`, `start`, `end`, `operation`, `stage` or `microbatch` → its name in the table.

    Raises:
        SourceError: the file cannot be read, or misses a column.
    """
    where = os.fspath(source)
    table = diagnosis.read_table(where, columns)
    verdict = diagnosis.diagnose(table.ledger)
    ended = next((one for one in verdict.findings if one.kind is Class.UNEQUAL_STEPS), None)
    name, files = where.rstrip("/").rpartition("/")[2], [FileQuality(where, "read", table.lost, table.why)]
    report = report_without_profile(name, verdict, files, job or JobInfo(), where, ledger=table.ledger.totals)
    missing = []
    if table.lost:
        rows = plural(table.rows + table.lost, "row")
        missing.append(f"{table.lost:,} of {rows} {'is' if table.lost == 1 else 'are'} left out: {table.why}.")
    if table.filled:
        missing.append(
            f"{plural(table.filled, 'step')} of single ranks {'is' if table.filled == 1 else 'are'} missing, and taken as usual."
        )
    if ended:
        missing.append(f"{ended.headline} Only {_judged(table.ledger)}.")
    if not missing:
        return report
    doubt = f"{plural(table.lost, 'row')} could not be used" if table.lost else "the ranks have different steps"
    return attrs.evolve(report, quality=replace(report.quality, damage=DamagedFiles(1, " ".join(missing), doubt)))


def _judged(ledger: diagnosis.Ledger) -> str:
    furthest = max(len(rank.steps) for rank in ledger.ranks)
    return f"the {plural(len(ledger.common_steps), 'step')} that all ranks have were judged, of {furthest:,}"
