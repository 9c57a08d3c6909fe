"""report.json: its records, how a report becomes them, how stored ones are read, and their schema.

The records of findings are those of `diagnosis.model`. Old reports stay readable: a field that a later version added has a
default, and an unknown one is skipped. The others must be there, with the right type.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypedDict, cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from sm_profiler._version import __version__
from sm_profiler.diagnosis import model
from sm_profiler.diagnosis.ledger import Totals
from sm_profiler.diagnosis.model import Cost, Finding, Quality, Report
from sm_profiler.errors import SourceError
from sm_profiler.formats import recorded
from sm_profiler.formats.process_end import COMPLETED, CRASHED, INTERRUPTED, KILLED, OUT_OF_MEMORY, STOPPED, UNKNOWN
from sm_profiler.identity import MACHINE, machine_of
from sm_profiler.metrics import hang
from sm_profiler.metrics.ends import FAILED, JobEnd, RankEnd, StoredEnd
from sm_profiler.metrics.job_metrics import Rank as RankMetrics
from sm_profiler.metrics.startup import Billed, billed_time, repeated_work, start_parts
from sm_profiler.metrics.step_fold import EVAL, LoaderSettings
from sm_profiler.printable import one_line, printable
from sm_profiler.render.words import process_labels

SCHEMA_VERSION = "1.0"
MAX_BYTES = 32 << 20  # of a report.json: one of 10,000 ranks has 6 MB


class End(msgspec.Struct, frozen=True, kw_only=True):
    """End of the job or of a process.

    Attributes:
        state: completed, crashed, killed, out_of_memory, interrupted, stopped, running or unknown.
        exit_code: of the script or its launcher; null if unknown.
        error: the exception that ended it, or the service's reason; empty if there is none, or it is unknown.
        where: the innermost line of the script that the exception passed, as train.py:12; empty if unknown.
        step: number of training steps, of the rank that did most.
    """

    state: str
    exit_code: int | None
    error: str
    where: str = ""
    step: int | None


class StartPart(msgspec.Struct, frozen=True, kw_only=True):
    """A known part of the start; compile and first_steps are in the loop.

    Attributes:
        part: instance, image, download, install, imports, building, compile or first_steps.
        label: its name for a sentence.
        seconds: its length.
        paid: false: the instance is not ready yet.
    """

    part: str
    label: str
    seconds: float
    paid: bool


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one GPU in the training loop, or in the job if no loop was recorded; percent, `idle` a share of the samples."""

    node: str
    name: str
    mean: float | None
    idle: float | None
    memory: float | None
    memory_max: float | None


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """Interruptions of a job that was resumed; null: no checkpoint was recorded, or no price is known.

    Attributes:
        count: how often.
        down_s: time without training between attempts.
        attempts_without_steps: numbers, from 1, of the attempts that trained, by the job's description, and of which no
            step is stored.
        repeated_steps: training steps since the last checkpoint, done again.
        repeated_s: time since the last checkpoint.
        repeated_usd: what that time costs at the price of `cost`.
    """

    count: int
    down_s: float
    repeated_steps: int | None = None
    repeated_s: float | None = None
    attempts_without_steps: tuple[int, ...] = ()
    repeated_usd: float | None = None


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A training process.

    Attributes:
        name: `algo-1-0`.
        label: what texts for people call it, such as `rank 0`; empty: its name.
        node: `algo-1`.
        host: machine that it ran on, at last: its name in the cluster, its EC2 instance or one of its GPUs; empty if unknown.
        train_steps, eval_steps: numbers of its steps.
        judged_steps: of a long job: number of steps from which medians, percentiles and periods come; sums are those of all.
        loop_s: length of its loop.
        phases: source of the times of forward, backward and optimizer: `device`, the GPU, or `host`.
        seconds: parts of the loop; they add up to loop_s.
        own_phases: phases that the script declared with hook.phase(name), in seconds; together `declared`.
        excluded_s: time that the profiler caused, with the steps that it may have disturbed; not part of loop_s.
        gc_s: garbage collections.
        communication_s: collectives; null if they were not recorded.
        attempts: above 1: the job was interrupted and resumed.
        interrupted_s: downtime between attempts; not part of loop_s.
        switched_off_s: time for which the configuration switched the profiler off; not part of loop_s, nor of the ledger.
        end: how this process ended; null if unknown.
    """

    name: str
    label: str = ""
    node: str
    host: str = ""
    train_steps: int
    eval_steps: int
    judged_steps: int | UnsetType = UNSET
    loop_s: float | None
    phases: str = "host"
    seconds: dict[str, float | None]
    own_phases: dict[str, float | None] = {}
    excluded_s: float | None = None
    gc_s: float | None
    communication_s: float | None
    attempts: int = 1
    interrupted_s: float | None = None
    switched_off_s: float | None = None
    end: End | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job's metrics.

    Attributes:
        name: its name.
        start, end: seconds since the epoch.
        duration_s: its length.
        between_attempts_s: seconds of it without a sign of life, as of a requeued job; no machine time.
        running: it has not ended yet.
        nodes: its nodes.
        instance_type: null if unknown.
        identity: user, account, job, job_id, queue, namespace, pod and host as Slurm, Kubernetes or the job's variables name
            them, a pod's labels as label:NAME, and the script; what all processes agree on, or without steps all nodes.
        hosts: node → its machine, the same in all of its jobs: its name in the cluster, or an id. Of a job that was
            requeued, that of the last attempt.
        moved: only of nodes whose attempts ran on several machines: node → machine → seconds, the last one last.
        gpus: use of its GPUs.
        cpu_cores: node → number of cores.
        initialization_s: time before the loop.
        loop: start and end of the training loop.
        steps_per_second: of the first rank, over its loop without evaluation.
        profiler_overhead: share of the loop, measured by the hook itself.
        loader: settings of the data loader, -1 if unknown.
        utilisation: metric → mean in the loop, percent.
        ranks: its training processes.
        startup: parts of the start that are known, in time order.
        interruptions: only of a job that was interrupted and resumed.
        instance_types: only of a heterogeneous cluster: type of instance → number of nodes.
        billed: only if the job's description is known and it has ended.
    """

    name: str
    start: float | None
    end: float | None
    duration_s: float | None
    between_attempts_s: float = 0.0
    running: bool
    nodes: tuple[str, ...]
    instance_type: str | None
    identity: dict[str, str] = {}
    hosts: dict[str, str] = {}
    moved: dict[str, dict[str, float]] = {}
    gpus: tuple[Gpu, ...]
    cpu_cores: dict[str, int]
    initialization_s: float | None
    loop: tuple[float, float] | None
    steps_per_second: float | None
    profiler_overhead: float | None
    loader: LoaderSettings = LoaderSettings()
    utilisation: dict[str, float | None]
    ranks: tuple[Rank, ...]
    startup: tuple[StartPart, ...] = ()
    interruptions: Interruptions | UnsetType = UNSET
    instance_types: dict[str, int] | UnsetType = UNSET
    billed: Billed | UnsetType = UNSET


class NotJudged(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that could not be judged, and why."""

    what: str
    why: str


class Verdict(Finding, frozen=True, kw_only=True):
    """The leading finding, and what comes with it.

    Attributes:
        also: other findings, the most expensive first.
        not_judged: what could not be judged.
        shared_wait: share of the loop in which other programs kept the training waiting for a CPU core.
    """

    also: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    shared_wait: float = 0.0


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a stack."""

    file: str
    line: int
    function: str


class Waiting(Frame, frozen=True, kw_only=True):
    """The line at which a process waits, what for, and how many training steps it had completed."""

    rank: str
    waits_for: str
    completed_steps: int = 0


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """The stack of a thread; frames from the innermost outwards, `training` if it trains."""

    rank: str
    thread: str
    training: bool
    frames: tuple[Frame, ...]


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A child process such as a loader's worker: its state as the kernel reports it."""

    rank: str
    pid: str
    name: str
    state: str
    waits_in: str


class DeadThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that ended with an exception.

    Attributes:
        rank: its process.
        thread: its name.
        error: the exception.
        where: innermost line of the script that the exception passed, as train.py:12.
    """

    rank: str
    thread: str
    error: str
    where: str


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """Processes whose steps stopped and did not go on.

    Attributes:
        ranks: the processes that cause it: those that ended, that are elsewhere, or else all that wait.
        kind: `rank_ended`: a rank ended; `collective_mismatch`, `collective`: all wait for each other, at different lines or
            at one; `rank_elsewhere`: some wait for a rank that is elsewhere; `process`: no rank is waited for.
        before_first_step: no step was begun.
        seconds: time without a step, to the end of the recording.
        step: the last one that was complete, counted from 0, of the process that came furthest; null without any.
        where: where each process waits.
        stacks: of all threads, those that train first.
        stacks_left_out: number of further stacks.
        children: child processes.
        dead_threads: threads of these processes that had ended with an exception, the latest of each process first.
    """

    ranks: tuple[str, ...]
    kind: str
    before_first_step: bool
    seconds: float
    step: int | None
    where: tuple[Waiting, ...]
    stacks: tuple[ThreadStack, ...]
    stacks_left_out: int
    children: tuple[Child, ...]
    dead_threads: tuple[DeadThread, ...] = ()


class LedgerRank(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one rank: activity → seconds."""

    rank: str
    steps: int
    seconds: dict[str, float]


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The time of all ranks, every second in exactly one activity.

    Attributes:
        coverage: share of the time of a known activity, 0 to 1.
        ranks: its ranks.
    """

    coverage: float
    ranks: tuple[LedgerRank, ...]


class Rule(TypedDict):
    """The result of a rule, with the keys of the managed service."""

    RuleTriggered: int
    Violations: int
    Details: dict[str, Any]
    Datapoints: int
    RuleParameters: str


class Lane(TypedDict):
    """A stream of the device, or the host, in the longest step: kind → percentage of each column."""

    name: str
    kinds: dict[str, list[int]]


class LongestStep(TypedDict):
    """The longest marked step of a trace, or the whole recording.

    Attributes:
        step: its number; null: the whole recording.
        start_us, length_us, usual_us, busy_us: its start and length, the median of the marked steps, time of the device.
        kernels: that ran in it.
        gap_us, gap_before: the longest time without kernels, and what was launched after it.
        columns: equal stretches of time that the step is divided into.
        lanes: what the host and each stream did.
    """

    step: int | None
    start_us: float
    length_us: float
    usual_us: float
    busy_us: float
    kernels: int
    gap_us: float
    gap_before: str
    columns: int
    lanes: list[Lane]


class GpuTrace(TypedDict):
    """A rank's trace of torch.profiler: the parts of its time, in microseconds, and the first rows of each table.

    Attributes:
        rank: its rank.
        device: name of the GPU; empty if unknown.
        exposed_us: communication that computation does not hide.
        share_hidden: share of the communication that computation hides; null without any.
        critical_path_us: kind → its time on the critical path.
        phases: time on the device by the hook's phase; empty but for the hook's own windows.
        longest_step: null without kernels.
    """

    rank: int
    device: str
    total_us: float
    compute_us: float
    exposed_communication_us: float
    exposed_copies_us: float
    idle_input_us: float
    idle_sync_us: float
    idle_once_us: float
    idle_allocation_us: float
    idle_launch_us: float
    idle_queued_us: float
    exposed_us: float
    share_hidden: float | None
    critical_path_us: dict[str, float]
    idle: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    synchronizations: list[dict[str, Any]]
    communication: list[dict[str, Any]]
    copies: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    flops: list[dict[str, Any]]
    roofline: list[dict[str, Any]]
    phases: list[dict[str, Any]]
    longest_step: LongestStep | None


class StoredReport(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a report.json that is read again.

    Attributes:
        schema_version: the first number changes if a field is removed or changes its meaning.
        version: version of sm-profiler that judged the job; another one may judge differently.
        generated: time at which it was made.
        source: location of the profile.
        job: the job's metrics.
        end: how the job ended.
        verdict: the verdict.
        data_quality: data that could not be read, and collectors that the hook switched off.
    """

    schema_version: str
    version: str = ""
    generated: str
    source: str
    job: Job
    end: End | None = None
    verdict: Verdict
    data_quality: Quality


class ReportJson(StoredReport, frozen=True, kw_only=True):
    """Content of report.json.

    Attributes:
        hang: processes whose steps stopped and did not go on; null if the training went on.
        profiling_cost: the hook's own time, as text.
        rules: rule → its result.
        broken_rules: rule, fold or judge → the error with which it failed.
        cost: an estimate from a dated price table; null if the instance type is unknown.
        gpu_traces: what traces of torch.profiler show of each rank.
        ledger: where the time of each rank went; null without steps.
    """

    hang: Hang | None = None
    profiling_cost: str
    rules: dict[str, Rule]
    broken_rules: dict[str, str]
    cost: Cost | None
    gpu_traces: tuple[GpuTrace, ...] = ()
    ledger: Ledger | None = None


class _OnlyVerdict(msgspec.Struct):
    verdict: Finding


class _OnlyEnd(msgspec.Struct):
    end: End | None = None


# ---------------------------------------------------------------------- write


def report_json(report: Report) -> ReportJson:
    verdict = report.verdict
    main = {name: getattr(verdict.main, name) for name in Finding.__struct_fields__}
    return ReportJson(
        schema_version=SCHEMA_VERSION,
        version=__version__,
        generated=report.generated,
        source=report.source,
        job=_job(report),
        end=end_of(report.metrics.ending),
        verdict=Verdict(
            **main,
            also=verdict.also,
            not_judged=tuple(NotJudged(what=what, why=why) for what, why in verdict.not_judged),
            shared_wait=verdict.shared_wait,
        ),
        data_quality=report.quality,
        hang=_hang(found) if (found := report.hang) else None,
        profiling_cost=report.profiling_cost,
        rules=cast("dict[str, Rule]", report.rules),
        broken_rules=report.broken,
        cost=report.cost,
        gpu_traces=cast("tuple[GpuTrace, ...]", report.gpu_traces),
        ledger=_ledger(report.ledger) if report.ledger else None,
    )


def end_of(found: JobEnd | RankEnd) -> End:
    """Return the record of how a job or a process ended."""
    return End(
        state=found.state or UNKNOWN, exit_code=found.exit_code, error=found.error, where=found.place, step=found.step
    )


def _job(report: Report) -> Job:
    metrics = report.metrics
    types, billed = metrics.node_types, billed_time(metrics.description)
    ends = {rank.name: end_of(rank) for rank in metrics.ending.ranks}
    machines = metrics.machines
    hosts = {
        node: name
        for node, owner in metrics.system.owners.items()
        if (name := machine_of(owner, owner.get(MACHINE, "")))
    }
    hosts |= {node: list(some)[-1] for node, some in machines.items()}
    labels = process_labels(metrics)
    return Job(
        name=metrics.name,
        start=_number(metrics.start),
        end=_number(metrics.end),
        duration_s=_number(metrics.duration),
        between_attempts_s=round(metrics.between_attempts, 3),
        running=metrics.running,
        nodes=tuple(metrics.nodes),
        instance_type=metrics.instance_type,
        identity=metrics.identity,
        hosts=hosts,
        moved={
            node: {machine: round(seconds, 3) for machine, seconds in some.items()}
            for node, some in machines.items()
            if len(some) > 1
        },
        gpus=tuple(Gpu(**{name: getattr(gpu, name) for name in Gpu.__struct_fields__}) for gpu in metrics.gpus),
        cpu_cores=metrics.system.cores,
        initialization_s=_number(metrics.initialization),
        loop=metrics.loop,
        steps_per_second=_number(metrics.steps_per_second),
        profiler_overhead=_number(metrics.overhead),
        loader=metrics.loader,
        utilisation={
            metric: _number(metrics.mean_of(metric)) for metric in ("cpu", "gpu", "gpu_memory", "memory", "io_wait")
        },
        ranks=tuple(
            _rank(rank, labels.get(rank.name, ""), hosts.get(rank.node, ""), ends.get(rank.name))
            for rank in metrics.ranks
        ),
        startup=tuple(
            StartPart(part=part.key, label=part.label, seconds=round(part.seconds, 3), paid=part.paid)
            for part in start_parts(metrics)
        ),
        interruptions=_interruptions(report),
        instance_types=types if len(types) > 1 else UNSET,
        billed=UNSET if billed is None else billed,
    )


def _rank(rank: RankMetrics, label: str, host: str, end: End | None) -> Rank:
    return Rank(
        name=rank.name,
        label=label,
        node=rank.node,
        host=host,
        train_steps=rank.train_steps,
        eval_steps=rank.judged.evaluated if rank.judged else int((rank.steps.mode == EVAL).sum()),
        judged_steps=len(rank.steps) if rank.judged else UNSET,
        loop_s=_number(rank.loop),
        phases="device" if rank.on_device else "host",
        seconds={name: _number(value) for name, value in rank.seconds.items()},
        own_phases={name: _number(value) for name, value in rank.declared.items()},
        excluded_s=_number(rank.excluded),
        gc_s=_number(rank.gc),
        communication_s=_number(rank.communication),
        attempts=rank.attempts.count,
        interrupted_s=_number(rank.attempts.down_s),
        switched_off_s=_number(rank.attempts.off_s),
        end=end,
    )


def _interruptions(report: Report) -> Interruptions | UnsetType:
    count, down_s = report.metrics.interruptions
    if not count:
        return UNSET
    repeated = repeated_work(report.metrics)
    return Interruptions(
        count=count,
        down_s=round(down_s, 3),
        repeated_steps=repeated.steps if repeated else None,
        repeated_s=round(repeated.seconds, 3) if repeated else None,
        attempts_without_steps=tuple(report.metrics.attempts_without_steps),
        repeated_usd=round(repeated.seconds * report.cost.per_hour / 3600, 4) if repeated and report.cost else None,
    )


def _hang(found: hang.Hang) -> Hang:
    stacks = found.stacks()
    return Hang(
        ranks=found.ranks,
        kind=found.kind,
        before_first_step=found.before_first_step,
        seconds=round(found.seconds, 3),
        step=found.steps[1] - 1 if found.steps[1] else None,
        where=tuple(
            Waiting(
                **_frame(process.place), rank=process.name, waits_for=process.waits_for, completed_steps=process.steps
            )
            for process in found.stopped
            if process.place is not None
        ),
        stacks=tuple(
            ThreadStack(
                rank=stack.rank,
                thread=stack.thread,
                training=stack.training,
                frames=tuple(Frame(**_frame(frame)) for frame in stack.frames),
            )
            for stack in stacks[: hang.MAX_STACKS]
        ),
        stacks_left_out=max(len(stacks) - hang.MAX_STACKS, 0),
        children=tuple(Child(**child) for child in found.children[: hang.MAX_CHILDREN]),
        dead_threads=tuple(
            DeadThread(rank=process.name, thread=dead.name, error=dead.error, where=dead.where)
            for process in found.stopped
            for dead in process.dead
        )[: hang.MAX_STACKS],
    )


def _frame(frame: recorded.Frame) -> dict[str, Any]:
    return dict(zip(Frame.__struct_fields__, frame, strict=True))


def _ledger(totals: Totals) -> Ledger:
    order = totals.activities
    return Ledger(
        coverage=round(totals.coverage, 6),
        ranks=tuple(
            LedgerRank(
                rank=rank.name,
                steps=rank.steps,
                seconds={key: round(rank.seconds[key], 6) for key in order if key in rank.seconds},
            )
            for rank in totals.ranks
        ),
    )


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 6)


def to_json(report: Report) -> str:
    """Return report.json as text; NaN and infinities become null."""
    return json.dumps(plain(report_json(report)), indent=1, allow_nan=False) + "\n"


def plain(record: Any) -> Any:
    """Return records as data of JSON: NaN and infinities as None, and unpaired surrogates replaced."""
    return _finite(msgspec.to_builtins(record, enc_hook=_number_or_text))


def _number_or_text(value: object) -> object:
    """Return a NumPy float, a threshold or the like as the type that it is derived from."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {_finite(str(key)): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


# ----------------------------------------------------------------------- read

_STORED, _VERDICT = msgspec.json.Decoder(StoredReport), msgspec.json.Decoder(_OnlyVerdict)
_END = msgspec.json.Decoder(_OnlyEnd)
_DAMAGED = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)


def read_report(data: bytes) -> StoredReport:
    """Read a report.json.

    Raises:
        SourceError: it is damaged, too large, or of another version of the format.
    """
    if len(data) > MAX_BYTES:
        raise SourceError(f"its report.json is larger than {MAX_BYTES >> 20} MB")
    try:
        found = _STORED.decode(data)
    except _DAMAGED as error:
        raise SourceError(f"its report.json cannot be read: {one_line(error)}") from None
    if found.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise SourceError(f"its report.json has version {found.schema_version[:20]}, not {SCHEMA_VERSION}")
    return found


_ENDS = frozenset({COMPLETED, CRASHED, INTERRUPTED, KILLED, OUT_OF_MEMORY, STOPPED})


def stored_end(report: StoredReport) -> StoredEnd | None:
    """Return the end of a job in its report; None if it was not known, or the job was still running."""
    end, last = report.end, report.job.end
    if end is None or last is None or end.state not in _ENDS:
        return None
    return StoredEnd(end.state, end.exit_code, end.error, end.where, last)


def read_verdict(data: bytes) -> Finding | None:
    """Return the leading finding of a report.json; None if it cannot be read."""
    try:
        return _VERDICT.decode(data).verdict
    except _DAMAGED:
        return None


def read_failure(data: bytes) -> str:
    """Return why the job of a report.json failed, in a sentence; "" if it did not, or if that cannot be read."""
    try:
        end = _END.decode(data).end
    except _DAMAGED:
        return ""
    if end is None or end.state not in FAILED:
        return ""
    return printable(
        JobEnd(state=end.state, exit_code=end.exit_code, error=end.error, place=end.where, step=end.step).sentence
    )


# --------------------------------------------------------------------- schema

_FIELDS = re.compile(r"^ {4}([\w, ]+): (.+(?:\n {8}.+)*)", re.MULTILINE)  # of a docstring's attributes
_FIRST = {
    "Evidence": ("threshold", "where", "unit"),
    "Finding": ("evidence", "next_step", "share_of_time", "share_of", "confidence"),
    "Verdict": ("evidence", "next_step", "share_of_time", "share_of", "confidence", "also", "not_judged"),
}
_ADDRESS = "https://github.com/sm-profiler/sm-profiler/blob/main/docs"


def schema_of(
    record: type, name: str, records: Mapping[str, Any], first: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """Return the JSON schema of a file that this version writes; the docstrings of its records describe the fields.

    Args:
        record: the type of its content.
        name: the file, `report`.
        records: types by their names, at least all that are part of the content.
        first: record → fields of the first version that have a default; others with a default came later, and older files
            do not have them. None: a file has all fields.
    """
    found: dict[str, Any] = msgspec.json.schema(record)
    for kind, part in found["$defs"].items():
        part["description"] = part.get("description", "").partition("\n\n")[0]
        properties = part.get("properties", {})
        for attribute, words in _described(records[kind]).items():
            properties[attribute]["description"] = words
        if properties:
            always = properties if first is None else (*part["required"], *first.get(kind, ()))
            part["required"] = [key for key in properties if key in always]
        for row in properties.values():
            row.pop("default", None)
    root = found["$defs"].pop(record.__name__)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{_ADDRESS}/{name}.schema.json"}
    return {**head, **root, "title": f"{name}.json of sm-profiler", "$defs": found["$defs"]}


def _described(record: type) -> dict[str, str]:
    """Return the descriptions of a record's fields, by their names in the file."""
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    if issubclass(record, msgspec.Struct):
        names = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
    for base in reversed(record.__mro__):
        text = inspect.cleandoc(base.__doc__ or "").partition("Attributes:")[2]
        for attributes, words in _FIELDS.findall(text):
            found |= {names.get(each, each): " ".join(words.split()) for each in attributes.split(", ")}
    return found


def schema() -> dict[str, Any]:
    return schema_of(ReportJson, "report", vars(model) | globals(), _FIRST)
