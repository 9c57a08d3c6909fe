"""Build a report from a profile source in one pass, shared by the rules and the report's own folds, and its detailed windows."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Literal

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import MOSTLY_IDLE, Class
from sm_profiler.diagnosis.damage import Damage, damage_of, doubted, unwritten_sentence
from sm_profiler.diagnosis.gpu import Traced, decide_traces
from sm_profiler.diagnosis.ledger import Totals
from sm_profiler.diagnosis.model import DamagedFiles, Finding, Quality, Report, Verdict
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.ledger import totals_of
from sm_profiler.diagnosis.profile.verdict import decide, priced
from sm_profiler.diagnosis.repairing import not_certain
from sm_profiler.errors import SourceError
from sm_profiler.folding import Slice, error_line, run_folds, run_sliced
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import (
    BACKWARD,
    DATALOADER_WAIT,
    FORWARD,
    FORWARD_MODULE,
    OPTIMIZER,
    SAMPLES,
    STEP_TRAIN,
)
from sm_profiler.formats.kineto_reader import ANNOTATION, OPERATOR, PHASE, PYTHON, KinetoTrace, Span
from sm_profiler.formats.layout import TraceFile as EventFile
from sm_profiler.formats.layout import shown_node
from sm_profiler.formatting import plural
from sm_profiler.gpu_traces.callers import PythonFrame, step_rows
from sm_profiler.gpu_traces.measure import SampledLines, measure
from sm_profiler.gpu_traces.step_view import describe
from sm_profiler.gpu_traces.traces import GpuTraces, KinetoFile, read_trace
from sm_profiler.metrics.job_metrics import JobMetrics, measure_job
from sm_profiler.metrics.metric_folds import JobInfo, MetricFolds, new_folds
from sm_profiler.metrics.sample_fold import decode_stacks
from sm_profiler.metrics.scaling import kept
from sm_profiler.metrics.scaling.folding import fold_with
from sm_profiler.metrics.scaling.kept import put_away
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.metrics.system_fold import SystemFold
from sm_profiler.report.prices import cost_of
from sm_profiler.report.report_json import MAX_BYTES, read_report, stored_end
from sm_profiler.rules import RuleResults
from sm_profiler.source.opening import job_name
from sm_profiler.source.parse import ColumnBuilder

__all__ = [
    "JobInfo",
    "MetricFolds",
    "assemble",
    "build_report",
    "data_quality",
    "job_name",
    "report_of",
    "report_without_profile",
]

# What the profiler that records a window does not change: it slows down the host, not the kernels.
OF_WINDOWS = (Class.TENSOR_CORES_UNUSED, Class.MEMORY_BANDWIDTH_BOUND, Class.DOMINANT_KERNEL, Class.ALLOCATOR)
OF_HOST = (Class.HOST_BOUND, Class.SYNC_BOUND, Class.INPUT_BOUND)
SLOWED = "the window's profiler slows the host down"
MAX_WINDOWS = 64  # traces read; windows are short, and a job has few of them
MAX_TRACE_BYTES = 2 << 30  # of these files
BETWEEN = "between"  # the sampler's name of the time in a step but in none of its phases
# Names that the sampler gives to the phases that the hook records.
PHASES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    DATALOADER_WAIT: "wait",
    STEP_TRAIN: BETWEEN,
}
_LONG_US = 10e6  # length of the longest event of samples
_LATE_US = 90e6  # a file may hold events that ended so long before the end in its name
_MAX_LINES = 5  # lines of a phase
_NUMBER = re.compile(r"(.*?)-?([0-9]{1,9})$")

MAX_QUALITY_ROWS = 200  # files listed in the report; the others are counted
NORMAL_STATES = {"on", "ok", "off", "armed", "done", "ready", "waiting"}  # of a collector; others are reported


@attrs.frozen(eq=False)
class Windows:
    """The traces of a job's detailed windows.

    Attributes:
        gpu: the traces, with steps, phases and modules of the hook's recording.
        sampled: rank → phase → its lines.
    """

    gpu: GpuTraces
    sampled: Mapping[int, SampledLines]


def read_windows(source: Any) -> Windows | None:
    """Return the windows of a `ProfileSource` in which a GPU worked; None if there are none."""
    traces: dict[str, list[KinetoTrace]] = {}
    sampled: dict[str, dict[str, dict[PythonFrame, float]]] = {}
    files = []
    for item in _items(source):
        try:
            trace, outcome = read_trace(source.storage, item.info)
            process = shown_node(item.file.host)
            if not trace.events.on_device.any():
                continue
            events = _events(source, process, trace)
        except SourceError:
            continue  # listed on the page
        files.append(KinetoFile(item.info.key, outcome))
        traces.setdefault(process, []).append(join(trace, events))
        _add_samples(sampled.setdefault(process, {}), trace, events)
    if not traces:
        return None
    ranks = _ranks(traces)
    gpu = GpuTraces.of({ranks[process]: found for process, found in traces.items()}, files)
    return Windows(gpu, {ranks[process]: _shares(found) for process, found in sampled.items()})


def add_windows(report: Report, source: Any) -> Report:
    """Return a report with what the windows of a `ProfileSource` show of the GPUs, if these worked in them.

    Findings about the kernels themselves are added, and about allocations, which take as long without a profiler. If a loop
    is limited by its GPU, the first of them leads: it is what the GPU is slow at. If the GPU is mostly idle, and the loop
    does not show why, it is what the host does in the windows. Beside other findings they have no gain: the others' gains
    cover the whole loop, and these would claim parts of the same seconds.
    """
    windows = read_windows(source)
    if windows is None:
        return report
    ranks = measure(windows.gpu, windows.sampled)
    report = attrs.evolve(report, gpu_traces=tuple(describe(windows.gpu, rank) for rank in ranks))
    traced = Traced.of(ranks, windows.gpu)
    kernels = min(int(trace.events.on_device.sum()) for trace in windows.gpu.ranks.values())
    if kernels < limits.TRACE_KERNELS or not traced.totals.duration > 0:
        return report
    verdict, judged = report.verdict, decide_traces(traced)
    known = {verdict.kind, *(finding.kind for finding in verdict.also)}
    found = [
        replace(finding, headline=f"In the detailed windows: {finding.headline}")
        for finding in (judged.main, *judged.also)
        if finding.kind in OF_WINDOWS and finding.kind not in known
    ]
    leads = verdict.main.kind is Class.COMPUTE_BOUND or (
        verdict.main.kind is Class.BALANCED and found and found[0].kind is Class.ALLOCATOR
    )
    if leads and found and found[0].confidence != "low":
        verdict = attrs.evolve(verdict, main=found.pop(0))  # no other gain is there to claim the same seconds
    idle = verdict.main.kind is Class.BALANCED and verdict.main.label == MOSTLY_IDLE
    if idle and judged.main.kind in OF_HOST and judged.main.confidence != "low":
        main = not_certain(judged.main, SLOWED)
        verdict = attrs.evolve(verdict, main=replace(main, headline=f"In the detailed windows: {main.headline}"))
    added = (replace(finding, gain=None) for finding in found)
    return attrs.evolve(report, verdict=attrs.evolve(verdict, also=(*verdict.also, *added)))


def _items(source: Any) -> list[Any]:
    found = [item for item in source.files.detailed if item.file.framework == "pytorch"]
    size, chosen = 0, []
    for item in found[:MAX_WINDOWS]:
        size += item.info.size
        if size > MAX_TRACE_BYTES:
            break
        chosen.append(item)
    return chosen


def _ranks(traces: Mapping[str, list[KinetoTrace]]) -> dict[str, int]:
    """Return the rank of each process: as the traces have it, else by the order of the processes."""
    named = {process: found[0].rank for process, found in traces.items()}
    if None not in named.values() and len(set(named.values())) == len(named):
        return {process: rank for process, rank in named.items() if rank is not None}
    return {process: number for number, process in enumerate(sorted(traces, key=_natural))}


def _natural(process: str) -> tuple[str, int]:
    found = _NUMBER.match(process)
    return (found[1], int(found[2])) if found else (process, 0)


def _events(source: Any, process: str, trace: KinetoTrace) -> EventColumns:
    """Return what the hook recorded of a process while a trace ran."""
    start = trace.epoch_us - _LONG_US
    end = trace.epoch_us + float(trace.events.end_us.max()) + _LONG_US
    items = [
        item for item in source.files
        if isinstance(item.file, EventFile) and item.node == process and start <= item.file.end_us <= end + _LATE_US
    ]  # fmt: skip
    builder = ColumnBuilder(is_system=False)
    for piece in source.rows_of(items):
        builder.add(piece)
    events: EventColumns = builder.columns() if items else EventColumns.empty()
    near: EventColumns = events[(events.end_us >= start) & (events.start_us <= end)]
    return near


def join(trace: KinetoTrace, events: EventColumns) -> KinetoTrace:
    """Return a trace with the steps, phases and modules that the hook recorded while it ran."""
    inside = (events.end_us > trace.epoch_us) & (events.start_us < trace.epoch_us + trace.events.end_us.max(initial=0))
    thread = _training_thread(trace, events)
    spans = list(_spans(trace, events[inside & events.phase.mask(lambda name: name in PHASES)], thread))
    modules = events[inside & events.phase.mask(FORWARD_MODULE)]
    spans += [
        Span(f"nn.Module: {name}", PYTHON, thread, start - trace.epoch_us, length)
        for name, start, length in zip(modules.name.decode(), modules.start_us, modules.duration_us, strict=True)
    ]
    return attrs.evolve(trace, threads=(*trace.threads, ("sm-profiler", "phases"))).with_spans(spans)


def _spans(trace: KinetoTrace, events: EventColumns, thread: int) -> Iterator[Span]:
    marked = len(step_rows(trace.events)) > 0
    rows = zip(events.phase.decode(), events.start_us, events.duration_us, events.step, strict=True)
    for phase, start, length, step in rows:
        yield Span(PHASES[phase], PHASE, len(trace.threads), start - trace.epoch_us, length)
        if phase == STEP_TRAIN and not marked and step >= 0:
            yield Span(f"ProfilerStep#{step}", ANNOTATION, thread, start - trace.epoch_us, length)
        if phase == DATALOADER_WAIT:
            yield Span("DataLoader", ANNOTATION, thread, start - trace.epoch_us, length)


def _training_thread(trace: KinetoTrace, events: EventColumns) -> int:
    """Return the number of the thread with most operators during the forward passes, or of all."""
    operators = trace.events[trace.events.category == OPERATOR]
    if not len(operators):
        return 0
    forward = events[events.phase.mask(FORWARD)]
    edges = np.sort(np.concatenate([forward.start_us, forward.end_us])) - trace.epoch_us
    inside = np.searchsorted(edges, operators.start_us, "right") % 2 == 1
    threads = operators.thread[inside] if inside.any() else operators.thread
    return int(np.bincount(threads).argmax())


def _add_samples(found: dict[str, dict[PythonFrame, float]], trace: KinetoTrace, events: EventColumns) -> None:
    """Add the time of each phase's lines, from the samples of the seconds in which a trace was recorded."""
    end = trace.epoch_us + float(trace.events.end_us.max())
    rows = events[events.phase.mask(SAMPLES) & (events.end_us >= trace.epoch_us) & (events.start_us <= end)]
    for text in rows.args.decode():
        for stack in decode_stacks(text):
            if stack.places:
                place = stack.places[-1]
                frame = PythonFrame(place.file, place.line, place.function)
                lines = found.setdefault(stack.phase, {})
                lines[frame] = lines.get(frame, 0.0) + stack.microseconds


def _shares(found: Mapping[str, Mapping[PythonFrame, float]]) -> SampledLines:
    shares = {}
    for phase, lines in found.items():
        whole = sum(lines.values())
        ordered = sorted(lines.items(), key=lambda line: (-line[1], line[0].file, line[0].line))[:_MAX_LINES]
        shares[phase] = tuple((frame, spent / whole) for frame, spent in ordered) if whole > 0 else ()
    return shares


def build_report(  # most are optional parts
    source: Any,
    *,
    parameters: Mapping[str, object] | None = None,
    compat: Literal["service"] | None = None,
    job: JobInfo | None = None,
    executor: str | Executor | None = None,
) -> Report:
    """Judge a job.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
        parameters: parameters of the rules: `{"<RuleName>_<parameter>": value}`.
        compat: "service" to compute the rules' results as the managed service did.
        job: name, instance type, prices.
        executor: fold parts of the job in other processes: `local[:N]`, `dask:local[:N]`, `dask:tcp://HOST:PORT`, or an
            executor of `concurrent.futures` whose workers have sm-profiler installed. The report has the same digits.

    Raises:
        ConfigError: the parameters are invalid.
        SourceError: the data cannot be read.
    """
    values, job = parameters or {}, _with_stored_end(source, job or JobInfo())
    may_keep = not values and compat is None
    if may_keep and (report := _of_kept_state(source, job)) is not None:
        return report
    whole = _folded(source, values, compat, executor)
    if may_keep:
        kept.keep(source, whole)
    return report_of_folds(source, whole, job)


def _with_stored_end(source: Any, job: JobInfo) -> JobInfo:
    """Return the job with its end in the report beside the profile, if nothing in the profile shows one."""
    storage = getattr(source, "storage", None)
    if job.stored_end or job.description or storage is None or source.finished or source.run is not None:
        return job
    try:
        return attrs.evolve(job, stored_end=stored_end(read_report(storage.read("report.json", 0, MAX_BYTES + 1))))
    except SourceError:  # there is none, or it is no report
        return job


def _of_kept_state(source: Any, job: JobInfo) -> Report | None:
    """Return the report of the folds that are kept with a profile; None, with all rows to be read, without a usable state."""
    whole = kept.load(source)
    if whole is None:
        return None
    with suppress(Exception):  # the rows are read then
        report = report_of_folds(source, whole, job)
        if not report.broken:
            return report
    source.rewind()
    return None


def _folded(
    source: Any, parameters: Mapping[str, object], compat: Literal["service"] | None, executor: str | Executor | None
) -> Slice:
    """Fold a job: hour by hour, in this process or in an executor's; in one piece if the rules cannot be merged."""
    folds = new_folds(parameters, compat)
    interval_us = folds[0].parameters.scan_interval_us
    if compat is not None:
        return Slice(folds, run_folds(source, folds, interval_us=interval_us))
    if executor:
        whole = fold_with(source, executor, parameters=parameters, interval_us=interval_us)
        if whole is not None:
            return whole
    return run_sliced(source, lambda: new_folds(parameters), interval_us=interval_us, put_away=put_away)


def report_of_folds(source: Any, whole: Slice, job: JobInfo, *, windows: bool = True) -> Report:
    """Return the report of a whole job's folds, the rules' first; `windows` as for `assemble`."""
    rules, *folds = whole.folds
    results = rules.results()
    for index, line in whole.broken.items():
        results.broken[type(whole.folds[index]).__name__] = line
    return assemble(source, results, MetricFolds.of(folds), job, windows=windows)


def assemble(
    source: Any, results: RuleResults, folds: MetricFolds, job: JobInfo | None = None, *, windows: bool = True
) -> Report:
    """Return a report from the rule results and folds of the same windows, for callers that drive the engine.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
        results: results of the rules.
        folds: the report's own folds.
        job: what the profile does not contain.
        windows: read the raw traces of detailed windows, too.
    """
    job = job or JobInfo()
    broken = dict(results.broken)
    metrics, rules = folds.metrics(source, job, broken), results.as_dict()
    case = Case(metrics, rules)
    quality, verdict = quality_of(source, metrics.metadata), decide(case, broken)
    if (damage := quality.damage) and not metrics.running:  # files of a running job may still be on their way
        verdict = doubted(verdict, damage.doubt)
    report = report_of(
        metrics,
        verdict,
        rules,
        broken=broken,
        quality=quality,
        job=job,
        source=getattr(source, "origin", source.uri),
        ledger=case.totals,
    )
    return _with_windows(report, source) if windows else report


def _with_windows(report: Report, source: Any) -> Report:
    """Return a report with what the raw traces of the detailed windows show of the GPUs."""
    if not source.files.detailed:
        return report
    from sm_profiler.report.build import add_windows  # few profiles have such traces

    try:
        return add_windows(report, source)
    except Exception as error:  # the rest of the report does not depend on it
        return attrs.evolve(report, broken={**report.broken, "detailed windows": error_line(error)})


def report_of(  # most are optional parts
    metrics: JobMetrics,
    verdict: Verdict,
    rules: dict[str, dict[str, Any]],
    *,
    broken: dict[str, str] | None = None,
    quality: Quality | None = None,
    job: JobInfo | None = None,
    source: str = "",
    ledger: Totals | None = None,
) -> Report:
    """Return a report from its parts; without its ledger, that follows from the metrics."""
    cost = cost_of(metrics, verdict, (job or JobInfo()).prices)
    verdict = priced(verdict, cost.per_hour if cost else None)
    if cost and cost.price_estimated:
        verdict = attrs.evolve(verdict, main=_roughly(verdict.main), also=tuple(map(_roughly, verdict.also)))
    quality = quality or data_quality([], ())
    if any(rank.judged is not None for rank in metrics.ranks):
        quality = replace(quality, collectors=(*quality.collectors, sampled_sentence(metrics)))
    generated = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    ledger = totals_of(metrics) if ledger is None else ledger
    return Report(
        metrics,
        verdict,
        rules,
        broken or {},
        quality,
        cost,
        source,
        generated,
        ledger=ledger if ledger and ledger.ranks else None,
    )


def report_without_profile(
    name: str, verdict: Verdict, files: Sequence[Any], job: JobInfo, source: str, **more: Any
) -> Report:
    """Return a report on data that another tool recorded."""
    metrics = measure_job(StepFold().result(), SystemFold().result(), name=job.name or name, running=False)
    report = report_of(metrics, verdict, {}, quality=data_quality(files, ()), job=job, source=source)
    return attrs.evolve(report, verdict=verdict, **more)  # no prices: seconds of a recording are not those of the job


def _roughly(finding: Finding) -> Finding:
    """Return a finding whose dollars are marked as those of an estimated price."""
    return replace(finding, gain=finding.gain and replace(finding.gain, usd_is_rough=True))


def sampled_sentence(metrics: JobMetrics) -> str:
    """Return the sentence about a job with so many steps that some are judged for all."""
    judged, steps = sum(len(rank.steps) for rank in metrics.ranks), sum(rank.all_steps for rank in metrics.ranks)
    return (
        f"medians, percentiles and periods of steps are those of {judged:,} of {steps:,} steps; sums are of all steps"
    )


def quality_of(source: Any, metadata: Sequence[Mapping[str, Any]]) -> Quality:
    """Return what of a source could not be read."""
    if hasattr(source, "faults"):
        faults, read = source.faults()
        return data_quality(faults, metadata, read=read)
    return data_quality(source.quality(), metadata)


def data_quality(files: Sequence[Any], metadata: Sequence[Mapping[str, Any]], *, read: int = 0) -> Quality:
    """Return the quality of the data: files read and repaired, records lost, states of collectors."""
    states = Counter(file.status for file in files)
    if read:
        states["read"] += read
    lost = sum(file.lost for file in files)
    bad = sorted(
        (file for file in files if file.status != "read" or file.lost), key=lambda file: (-file.lost, file.path)
    )
    total = len(files) + read
    if not total:
        sentence = "No files were read for this report."
    elif not bad:
        sentence = f"{plural(total, 'file')}, all read completely; no records were lost."
    else:
        sentence = (
            f"{plural(total, 'file')}: {states['read']:,} read as they are, {states['repaired']:,} repaired, "
            f"{states['refused']:,} not usable; {plural(lost, 'record')} lost."
        )
    return Quality(
        sentence=sentence,
        files=total,
        states=dict(sorted(states.items())),
        lost=lost,
        rows=tuple(bad[:MAX_QUALITY_ROWS]),
        damage=_damage(damage_of(bad, total), metadata),
        more=max(len(bad) - MAX_QUALITY_ROWS, 0),
        collectors=_collectors(metadata),
    )


def _damage(files: Damage, metadata: Sequence[Mapping[str, Any]]) -> DamagedFiles | None:
    unwritten = unwritten_sentence(metadata)
    if not (files.paths or unwritten):
        return None
    doubt = files.doubt if files.paths else "events could not be written"
    return DamagedFiles(len(files.paths), f"{unwritten} {files.sentence}".strip(), doubt)


def _collectors(metadata: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return one line for each unusual state of a collector, with the number of processes."""
    lines: Counter[str] = Counter()
    seen = set()
    for record in metadata:
        states = record.get("collectors")
        process = record.get("rank"), record.get("pid"), record.get("host")
        for name, state in states.items() if isinstance(states, Mapping) else ():
            if (process, name, str(state)) in seen or str(state) in NORMAL_STATES:
                continue
            seen.add((process, name, str(state)))
            lines[f"{name}: {state}"] += 1
    latest: dict[Any, dict[str, Any]] = {}
    for item in metadata:
        latest.setdefault((item.get("rank"), item.get("pid"), item.get("host")), {}).update(item)
    for entry in latest.values():
        if entry.get("phases_every", 1) not in (1, None):
            lines[
                f"phases were sampled at one of {entry['phases_every']} steps to stay within the overhead budget"
            ] += 1
        if entry.get("dropped"):
            lost = f"{plural(entry['dropped'], 'event')} could not be recorded"
            lines[f"{lost}: the disk was too slow or failed, or the process was killed as it wrote"] += 1
        if entry.get("left_out"):
            lines[f"{entry['left_out']:,} events of the script were left out: their arguments cannot be recorded"] += 1
        if entry.get("events_cut"):
            lines[f"{entry['events_cut']:,} events of the script had too long names or arguments, which were cut"] += 1
        if entry.get("phases_elsewhere"):
            elsewhere = f"{plural(entry['phases_elsewhere'], 'phase')} ran on other threads than the training's"
            lines[f"{elsewhere}: they are in timelines, and no part of the loop"] += 1
        if entry.get("clock_error_us"):
            lines[f"clocks agree within {float(entry['clock_error_us']) / 1e3:.3g} ms"] += 1
    return tuple(line + (f" ({count} processes)" if count > 1 else "") for line, count in sorted(lines.items()))
