"""One row a job, from its report and its description; then its bill: billed seconds times price times instances."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import attrs
from msgspec.structs import replace

from sm_profiler.diagnosis.classes import SHARED, Class
from sm_profiler.diagnosis.confidence import OTHERS_WORK
from sm_profiler.diagnosis.model import Finding, Interval
from sm_profiler.errors import SourceError
from sm_profiler.fleet.finding import (
    MAX_INSTANCES,
    MAX_TAGS,
    described,
    safe_name,
    safe_sentence,
    stem_of,
)
from sm_profiler.fleet.model import FleetJob, Line, Loss, Node
from sm_profiler.formats.process_end import COMPLETED, CRASHED, INTERRUPTED, KILLED, OUT_OF_MEMORY, RUNNING, STOPPED
from sm_profiler.formatting import first_sentences, plural
from sm_profiler.identity import LABEL, SCRIPT
from sm_profiler.metrics.attempts import MAX_SECONDS, MIN_SECONDS
from sm_profiler.metrics.startup import LONGEST_S
from sm_profiler.render.words import readable_finding, with_labels
from sm_profiler.report import report_json
from sm_profiler.report.prices import Prices, billed_losses, loss_of
from sm_profiler.report.report_json import End, Rank, StoredReport

MOST_LINES, MOST_NODES = 3, 512
MOST_WAITED = 0.99  # share of a step
FAILURE, INTERRUPTION = "FAILED", "INTERRUPTED"
LABELS = {**{kind.value: kind.label for kind in Class}, FAILURE: "Failed", INTERRUPTION: "Interrupted"}
ADVICE = {
    FAILURE: "Read the reason of the failure and the end of the job's log; save checkpoints, so that the next job goes on from them.",
    OUT_OF_MEMORY: "Find what its memory holds: the job needs less of it (a smaller batch, fewer loader workers, nothing kept from step "
    "to step) or a larger limit.",
    INTERRUPTION: "Save checkpoints more often, and keep what a start prepares, so that less is done again after an interruption.",
}
_PART_OF_STAGE = {
    "waiting": ("instance",), "image": ("image",), "download": ("download",), "starting": ("install", "imports", "building"),
}  # fmt: skip
STATUS = {  # end of a job in report.json → status, as the service names it
    COMPLETED: "Completed", CRASHED: "Failed", KILLED: "Failed", OUT_OF_MEMORY: "Failed", STOPPED: "Stopped",
    INTERRUPTED: "Stopped", RUNNING: "InProgress",
}  # fmt: skip
_MOST = 1e15  # of a number that is shown
_LONGEST = 300  # characters, of what grows
_OF_MEMORY = re.compile(r"out of memory", re.IGNORECASE)
_SAYS_NOTHING = ("FAILED", "CANCELLED", "OUT_OF_MEMORY")  # of a scheduler's states, beside the job's own reason
_CLOCKS_S = 86400.0  # by which clocks may differ, and what is left of a job after its last record
_REASONS = {
    KILLED: "The job was killed.", STOPPED: "The job was stopped.",
    INTERRUPTED: "The job was interrupted.",
}  # fmt: skip


def read_report(data: bytes, now: float | None = None) -> StoredReport:
    """Read a report.json.

    Args:
        data: its bytes.
        now: the time; a job cannot be longer than from its start until then.

    Raises:
        SourceError: it is damaged, too large, of another version of the format, or has times that no job has.
    """
    found = report_json.read_report(data)
    if wrong := _implausible(found, time.time() if now is None else now):
        raise SourceError(f"its report.json is not plausible: {wrong}")
    return found


def _implausible(report: StoredReport, now: float) -> str:
    """Return the first number that no job has: each would decide the sums of a fleet; "" if there is none."""
    job = report.job
    longest = LONGEST_S
    if job.start is not None:
        last = job.end if job.end is not None else max(now, job.start)
        longest = min(longest, max(last - job.start, 0.0) + _CLOCKS_S)
    lengths: list[tuple[str, float | None]] = [("duration", job.duration_s)]
    if job.loop:
        lengths.append(("training loop", job.loop[1] - job.loop[0]))
    for rank in job.ranks:
        lengths += [("training loop of a rank", rank.loop_s), ("downtime of a rank", rank.interrupted_s)]
    lengths.append(("downtime", job.between_attempts_s))
    for name, seconds in lengths:
        if seconds is not None and not seconds <= longest:
            return f"its {name} of {seconds:.3g} s is longer than the job"
    if len(job.nodes) > MAX_INSTANCES:
        return f"it has {len(job.nodes):,} nodes"
    return ""


def row_of(report: StoredReport | None, description: Mapping[str, Any], place: FleetJob) -> FleetJob:
    """Return the row of a job."""
    row = described(place, description)
    if report is not None:
        report = _readable(report)
        row = _with_report(row, report)
    if row.billable_s is None and row.training_s is not None:
        row = attrs.evolve(row, billable_s=row.training_s, billed_by="training time")
    losses = _losses(row, report)
    lost = min(math.fsum(loss.seconds for loss in losses), row.billable_s or 0.0)
    starting = row.started or row.created
    billed, training = row.billable_s, row.training_s or 0.0
    return attrs.evolve(
        row,
        losses=losses,
        stem=stem_of(row.name),
        week=time.strftime("%G-W%V", time.gmtime(starting)) if starting else "",
        saved_s=max(training - (billed or 0.0), 0.0) if row.billed_by == "billable time" else 0.0,
        lost_s=lost,
        lost_share=lost / billed if billed else None,
        gpu_hours=row.gpus * billed / 3600 if row.gpus and billed is not None else None,
    )


def _readable(report: StoredReport) -> StoredReport:
    """Return a report whose sentences call the processes what its page calls them."""
    renamed = with_labels({rank.name: rank.label for rank in report.job.ranks if rank.label})
    verdict = readable_finding(report.verdict, renamed)
    return replace(
        report, verdict=replace(verdict, also=tuple(readable_finding(each, renamed) for each in verdict.also))
    )


def _with_report(row: FleetJob, report: StoredReport) -> FleetJob:
    job, verdict = report.job, report.verdict
    start, end = _moment(job.start), _moment(job.end)
    duration = _positive(job.duration_s)
    speed = _positive(job.steps_per_second) or None
    known = row.billable_s if row.billable_s is not None else row.training_s
    between = 0.0 if known is not None else min(_positive(job.between_attempts_s) or 0.0, duration or 0.0)
    owner = {key: safe_name(value) for key, value in job.identity.items()}
    labels = {key.removeprefix(LABEL): value for key, value in owner.items() if key.startswith(LABEL)}
    status = row.status or (STATUS.get(report.end.state, "") if report.end else "InProgress" if job.running else "")
    stages = dict(row.stages) or _stages(report, between)
    if row.stages:
        stages |= _started(report, row)
    return attrs.evolve(
        row,
        name=row.name or safe_name(job.name),
        status=status,
        failure=safe_sentence(_reason(report, row.failure)) if status in {"Failed", "Stopped"} else row.failure,
        user=row.user or owner.get("user", ""),
        script=row.script or owner.get(SCRIPT, ""),
        account=owner.get("account", ""),
        namespace=owner.get("namespace", ""),
        job_name=owner.get("job", ""),
        job_id=owner.get("job_id", ""),
        tags=dict(list((labels | row.tags).items())[: MAX_TAGS]),
        started=row.started or start,
        ended=row.ended or (None if job.running else end),
        instance_type=row.instance_type or safe_name(job.instance_type or ""),
        instances=row.instances if row.instance_type else max(len(job.nodes), 1),
        types=row.types or _recorded_types(job.instance_types or {}),
        billable_s=known if known is not None or duration is None else duration - between,
        billed_by=row.billed_by or ("training time" if known is not None else "profile" if duration is not None else ""),
        verdict=verdict.kind.value,
        label=safe_name(verdict.label),
        disturbed=verdict.label == SHARED or verdict.doubt == OTHERS_WORK,
        confidence=safe_name(verdict.confidence),
        headline=safe_sentence(verdict.headline),
        next_step=safe_sentence(verdict.next_step),
        where=tuple(
            Line(safe_name(line.file), min(max(line.line, 0), 10**9), safe_name(line.function), _share(line.share))
            for line in verdict.where[:MOST_LINES]
        ),
        gain_s=_saved(verdict),
        stages=stages,
        gpus=len(job.gpus),
        steps=_count(job.ranks[0].train_steps) if job.ranks else None,
        steps_per_second=speed,
        step_ms=_positive(1000 / speed) if speed else None,
        profiling_cost=_positive(job.profiler_overhead),
        loader_workers=_count(job.loader.num_workers) if job.loader.num_workers >= 0 else None,
        nodes=_nodes(report),
        machines=_machines(report),
        interruptions=max([row.interruptions, *(min(rank.attempts, 10**6) - 1 for rank in job.ranks)]),
        interrupted_s=max([0.0, *(_positive(rank.interrupted_s) or 0.0 for rank in job.ranks)]),
        between_attempts_s=between,
        lost_records=_count(report.data_quality.lost),
    )  # fmt: skip


def _explanation(report: StoredReport) -> Finding | None:
    """Return the finding that explains why a job failed, whose error is what came of it; None if there is none."""
    every = (report.verdict, *report.verdict.also)
    return next((found for found in every if found.is_end or found.kind is Class.HANG), None)


def _growing(report: StoredReport) -> Finding | None:
    """Return the finding of what grows in the job's memory."""
    every = (report.verdict, *report.verdict.also)
    return next((found for found in every if found.kind is Class.MEMORY_GROWTH), None)


def ended_by(row: FleetJob, status: str, state: str) -> FleetJob:
    """Return a row of a job of which the scheduler reports the end.

    Args:
        row: the row, by the job's profile.
        status: the worse of both ends.
        state: the scheduler's reason, "" if it has none. That memory ran out is rarely recorded by the job's own processes.
    """
    no_memory = bool(_OF_MEMORY.search(state)) and not _OF_MEMORY.search(row.failure)
    if row.status == status and not no_memory:
        says_more = row.failure and not state.endswith(_SAYS_NOTHING)
        return attrs.evolve(row, failure=safe_sentence(f"{row.failure} {state}")) if state and says_more else row
    grows = no_memory and row.verdict == Class.MEMORY_GROWTH.value
    failure = safe_sentence(state.replace(". ", f". {row.headline} ", 1) if grows else state)
    losses = row.losses
    if status == "Failed" and row.status != "Completed" and row.billable_s:  # what a completed training lost is known
        advice = row.next_step if grows else ADVICE[OUT_OF_MEMORY if no_memory else FAILURE]
        losses = (Loss(FAILURE, row.billable_s, None, failure, advice, "high"),)
    lost = math.fsum(loss.seconds for loss in losses)
    share = lost / row.billable_s if row.billable_s else None
    return attrs.evolve(row, status=status, failure=failure, losses=losses, lost_s=lost, lost_share=share)


def _reason(report: StoredReport, described: str) -> str:
    """Return why a job failed or was stopped: the rank that began it, its exception with its place, what the service reports, or its end."""
    if explanation := _explanation(report):
        return explanation.headline
    if report.end and report.end.state == OUT_OF_MEMORY:
        grows, error = _growing(report), report.end.error and _error(report.end)
        where = next((f" ({line.file}:{line.line})" for line in grows.where), "") if grows is not None else ""
        grown = f" {first_sentences(grows.headline, _LONGEST).rstrip('.')}{where}." if grows is not None else ""
        return f"Out of memory.{grown}{' ' if error else ''}{error}"
    if report.end and report.end.error:
        return _error(report.end)
    return described or (_error(report.end) if report.end else "")


def _error(end: End) -> str:
    """Return how a job ended: its exception with its place, its exit code, or who ended it; "" if it is unknown."""
    code = f"exit code {end.exit_code}" if end.exit_code else ""
    if not end.error:
        return _REASONS.get(end.state, "") or code
    notes = ", ".join(filter(None, (end.where, code if end.exit_code != 1 else "")))
    return f"{end.error} ({notes})" if notes else end.error


def _recorded_types(types: dict[str, int]) -> dict[str, int]:
    """Return those of a report without a description."""
    found = {safe_name(kind): min(count, 10**6) for kind, count in list(types.items())[:50] if count > 0}
    return found if len(found) > 1 else {}


def _losses(row: FleetJob, report: StoredReport | None) -> tuple[Loss, ...]:
    """Return what a job loses to each cause, in billed seconds; together never more than it is billed for.

    The gains of a report's findings do not overlap: each claims only time that those before it left. Their order is that of
    the report, what a repair certainly saves, so that both name the same cause first; downtime comes before what costs less.
    """
    billed = row.billable_s
    if not billed:
        return ()
    if row.status == "Failed":
        found = _explanation(report) if report is not None else None
        advice = safe_sentence(found.next_step) if found is not None else ADVICE[FAILURE]
        if found is None and report is not None and report.end and report.end.state == OUT_OF_MEMORY:
            grows = _growing(report)
            advice = safe_sentence(grows.next_step) if grows is not None else ADVICE[OUT_OF_MEMORY]
        return (Loss(FAILURE, billed, None, row.failure, advice, "high"),)
    if report is None:
        return ()
    ran = max(row.training_s or 0.0, (_positive(report.job.duration_s) or 0.0) - row.between_attempts_s, billed)
    losses = [
        Loss(
            finding.kind.value,
            _lost_seconds(finding, report, row.between_attempts_s),
            None,
            safe_sentence(finding.headline),
            safe_sentence(finding.next_step),
            safe_name(finding.confidence),
        )
        for finding in (report.verdict, *report.verdict.also)
    ]
    if row.interrupted_machine_s:
        headline = f"It was interrupted {plural(max(row.interruptions, 1), 'time')}."
        losses.insert(0, Loss(INTERRUPTION, row.interrupted_machine_s, None, headline, ADVICE[INTERRUPTION], "high"))
    by_cause: dict[str, Loss] = {}
    for loss, taken in billed_losses(((loss, loss.seconds) for loss in losses), billed, ran):
        known = by_cause.get(loss.cause)
        by_cause[loss.cause] = attrs.evolve(known or loss, seconds=taken + (known.seconds if known else 0.0))
    down = by_cause.pop(INTERRUPTION, None)
    ordered = list(by_cause.values())
    if down is not None:
        ordered.insert(
            next((at for at, loss in enumerate(ordered) if loss.seconds <= down.seconds), len(ordered)), down
        )
    return tuple(ordered)


def _lost_seconds(finding: Finding, report: StoredReport, between: float) -> float:
    """Return what a finding costs; that of the verdict by its share if its gain is unknown."""
    if not finding.kind.costs_time:  # in early reports, the weight of growing memory is its share of the time
        return 0.0
    loop, share = report.job.loop, _share(finding.share_of_time)
    whole = loop[1] - loop[0] if finding.of == "loop" and loop else report.job.duration_s
    own, ran = replace(finding, share_of_time=share), max((_positive(whole) or 0.0) - between, 0.0)
    return loss_of(own, _saved(finding), ran, leads=finding is report.verdict)


def _saved(finding: Finding) -> Interval | None:
    """Return the seconds that its repair saves; None if they are unknown, as in early reports, whose gains had none."""
    gain = finding.gain
    if gain is None or (gain.seconds.high <= 0 and gain.speedup.value > 1):
        return None
    return Interval(*(_positive(value) or 0.0 for value in (gain.seconds.low, gain.seconds.value, gain.seconds.high)))


def _stages(report: StoredReport, between: float = 0.0) -> dict[str, float]:
    """Return the stages of a job of which only the profile is known."""
    parts: dict[str, float] = {}
    for part in report.job.startup:
        parts[part.part] = parts.get(part.part, 0.0) + (_positive(part.seconds) or 0.0)
    found = {stage: sum(parts.get(key, 0.0) for key in keys) for stage, keys in _PART_OF_STAGE.items()}
    loop = report.job.loop
    if loop:
        found["training"] = _positive(loop[1] - loop[0] - between) or 0.0
    return {stage: seconds for stage, seconds in found.items() if seconds > 0}


def _started(report: StoredReport, row: FleetJob) -> dict[str, float]:
    """Divide the service's `Training` into the script's start and its loop."""
    training = row.stages.get("training", 0.0)
    starting = min(_stages(report).get("starting", 0.0), training)
    return {"starting": starting, "training": training - starting} if starting > 0 else {}


def _nodes(report: StoredReport) -> tuple[Node, ...]:
    ranks = report.job.ranks
    names = dict.fromkeys([*(rank.node or rank.name for rank in ranks), *report.job.nodes])
    hosts = report.job.hosts | {rank.node: rank.host for rank in ranks if rank.host}
    own = _own_times(ranks)
    slow = _slow_rank(report)
    slow_node = next((rank.node for rank in ranks if slow and rank.name == slow[0]), None)
    found = []
    for name in list(names)[:MOST_NODES]:
        relative = slow[1] if slow and name == slow_node and slow[1] else _relative(name, own)
        found.append(Node(safe_name(name), safe_name(hosts.get(name, "")), relative, name == slow_node))
    return tuple(found)


def _machines(report: StoredReport) -> dict[str, float]:
    """Return each machine's part of the job's time; nodes weigh alike, and a node's machines by their attempts' length."""
    job, found = report.job, dict[str, float]()
    hosts = job.hosts | {rank.node: rank.host for rank in job.ranks if rank.host}
    names = {*(rank.node or rank.name for rank in job.ranks), *job.nodes}
    for name in names & hosts.keys():
        times = {machine: _positive(seconds) or 0.0 for machine, seconds in job.moved.get(name, {}).items()}
        whole = math.fsum(times.values())
        for machine, seconds in times.items() if whole > 0 else [(hosts[name], 1.0)]:
            key = safe_name(machine)
            found[key] = found.get(key, 0.0) + seconds / (whole or 1.0) / len(names)
    return dict(sorted(found.items())[:MOST_NODES])


def _own_times(ranks: Sequence[Rank]) -> dict[str, float]:
    """Return the slowest rank's own time per step, of each node: without what it waited for others."""
    found: dict[str, float] = {}
    for rank in ranks:
        loop, steps = _positive(rank.loop_s), rank.train_steps
        if not loop or steps <= 0:
            continue
        waited = (_positive(rank.communication_s) or 0.0) + (_positive(rank.seconds.get("evaluation")) or 0.0)
        found[rank.node] = max(found.get(rank.node, 0.0), max(loop - waited, 0.0) / steps)
    return found


def _relative(node: str, own: dict[str, float]) -> float | None:
    others = [value for name, value in own.items() if name != node]
    if node not in own or not others or median(others) <= 0:
        return None
    return _positive(own[node] / median(others))


def _slow_rank(report: StoredReport) -> tuple[str, float | None] | None:
    """Return the rank that the others wait for, and its time per step relative to theirs without that wait."""
    for finding in (report.verdict, *report.verdict.also):
        if finding.kind is not Class.STRAGGLER:
            continue
        where = next((row.where for row in finding.evidence if row.where), "")
        waited = min(_share(finding.share_of_time), MOST_WAITED)
        return (where, 1 / (1 - waited)) if where else None
    return None


def _positive(value: object) -> float | None:
    """Return a finite number, at least 0; None for anything else."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), _MOST)


def _moment(value: float | None) -> float | None:
    return value if value is not None and MIN_SECONDS < value < MAX_SECONDS else None


def _share(value: float) -> float:
    return min(_positive(value) or 0.0, 1.0)


def _count(value: int) -> int:
    return min(max(value, 0), 2**53)


def with_bill(job: FleetJob, prices: Prices) -> FleetJob:
    """Return a row with its dollars; without them if a price or the billed time is unknown."""
    each = _price(job, prices)
    if each is None or job.billable_s is None:
        return attrs.evolve(job, price=each, price_from=_origin(job, prices) if each is not None else "")
    second = each * job.instances / 3600
    bill = job.billable_s * second
    losses, left = [], bill
    for loss in job.losses:
        usd = min(loss.seconds * second, left)
        left = max(left - usd, 0.0)
        losses.append(attrs.evolve(loss, usd=usd))
    gain = job.gain_s and Interval(*(value * second for value in (job.gain_s.low, job.gain_s.value, job.gain_s.high)))
    lost = min(math.fsum(loss.usd or 0.0 for loss in losses), bill)
    return attrs.evolve(
        job,
        price=each,
        price_from=_origin(job, prices),
        bill_usd=bill,
        saved_usd=job.saved_s * second if job.spot else None,
        losses=tuple(losses),
        lost_usd=lost,
        gain_usd=gain,
        interrupted_usd=min(job.interrupted_machine_s * second, bill) if job.interrupted_machine_s else None,
        failed_usd=bill if any(loss.cause == FAILURE for loss in losses) else None,
    )


def _price(job: FleetJob, prices: Prices) -> float | None:
    """Return the price of one instance, on average if there are several types."""
    gpus = job.gpus / job.instances
    if not job.types:
        return prices.price(job.instance_type, gpus)
    total = 0.0
    for kind, count in job.types.items():
        price = prices.price(kind, gpus)
        if price is None:
            return None
        total += price * count
    return total / max(sum(job.types.values()), 1)


def _origin(job: FleetJob, prices: Prices) -> str:
    return "; ".join(dict.fromkeys(prices.origin_of(kind) for kind in job.types or (job.instance_type,)))
