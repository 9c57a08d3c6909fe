"""The verdict on traces of torch.profiler: where each rank's device spends its time, a row for each cause.

`gpu_traces.measure.RankTime` divides all of a rank's time; each cause has a part of it, so that no time is claimed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import MOSTLY_IDLE, Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Location, Verdict
from sm_profiler.diagnosis.words import GPU_ADVICE, GPU_HEADLINES
from sm_profiler.formatting import percent, shorten
from sm_profiler.gpu_traces.device_time import communication
from sm_profiler.gpu_traces.measure import CodeLine, RankTime
from sm_profiler.gpu_traces.traces import GpuTraces

MAX_LOCATIONS = 5
_LAST = limits.MAJORITY + limits.SURELY * limits.FLOOR  # of the collectives; of two equal ranks each comes last to half
_Seconds = Callable[[RankTime], float]


@attrs.frozen
class GpuCause:
    """A cause of lost time on a device.

    Attributes:
        kind: class of its findings.
        name: its part of `RankTime.lines`, and its words.
        seconds: what it takes of a rank's time.
        healthy: share of the time that it takes in a healthy job.
        measured: name of the measurement.
        concerns: chooses the ranks that can have it; default: all.
    """

    kind: Class
    name: str
    seconds: _Seconds
    healthy: float
    measured: str
    concerns: Callable[[RankTime], bool] = lambda _: True


CAUSES = (
    GpuCause(Class.INPUT_BOUND, "input", lambda rank: rank.idle_input, limits.SURELY * limits.FLOOR, "GPU idle during data loading"),
    GpuCause(Class.SYNC_BOUND, "sync", lambda rank: rank.idle_sync, limits.FLOOR, "GPU idle after the host waited for it"),
    # the host is a little late in most healthy jobs: at the start of a step, in the optimizer
    GpuCause(Class.HOST_BOUND, "launch", lambda rank: rank.idle_launch, limits.NOTICEABLE, "GPU idle while the host launches"),
    GpuCause(Class.INITIALIZATION_BOUND, "once", lambda rank: rank.idle_once, limits.NOTICEABLE, "GPU idle in a few long gaps"),
    # the last bucket of gradients is always exposed
    GpuCause(Class.COMMUNICATION_BOUND, "communication", lambda rank: rank.exposed_communication, limits.SURELY * limits.FLOOR, "communication without computation"),
    GpuCause(Class.TRANSFER_BOUND, "copies", lambda rank: rank.exposed_copies, limits.FLOOR, "copies while nothing else runs"),
    # tensor cores make these kernels two to eight times as fast
    GpuCause(Class.TENSOR_CORES_UNUSED, "plain", lambda rank: rank.matmul_plain, limits.NOTICEABLE, "matrix products without tensor cores", lambda rank: rank.has_tensor_cores),
    # activations, norms and copies cost a third of a usual transformer without fusion
    GpuCause(Class.MEMORY_BANDWIDTH_BOUND, "elementwise", lambda rank: rank.elementwise, limits.USUAL + limits.FLOOR, "elementwise kernels"),
    GpuCause(Class.DOMINANT_KERNEL, "dominant", lambda rank: rank.dominant_us, limits.NOTICEABLE, "time in this kernel"),
)  # fmt: skip


def decide_traces(ranks: Sequence[RankTime], gpu: GpuTraces) -> Verdict:
    """Return the verdict on some ranks' traces."""
    findings = [finding for cause in CAUSES if (finding := _finding(cause, ranks, gpu)) is not None]
    late = _straggler(ranks, gpu)
    findings += [late] if late is not None else []
    findings = findings or [_healthy(ranks)]
    findings.sort(key=lambda finding: -finding.share_of_time)
    findings = _with_gains(findings, ranks, len(gpu.columns("steps")) / max(len(gpu.ranks), 1))
    missing = []
    if not any(line.file for rank in ranks for lines in rank.lines.values() for line in lines):
        missing.append(("lines of code", "the traces hold no Python stacks; record them with with_stack=True"))
    world = max([len(gpu.ranks), *(size for trace in gpu.ranks.values() if (size := _world_size(trace.properties)))])
    if world > len(gpu.ranks):
        missing.append(("late ranks", f"traces of {len(gpu.ranks)} of {world} ranks are here; record all of them"))
    return Verdict(findings[0], tuple(findings[1:]), tuple(missing))


def _world_size(properties: Mapping[str, Any]) -> int:
    info = properties.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) else 0


def _mean(ranks: Sequence[RankTime], of: _Seconds) -> float:
    return float(np.mean([rank.share(of(rank)) for rank in ranks])) if ranks else 0.0


def _confidence(ranks: Sequence[RankTime], share: float, least: float) -> Confidence:
    # even if they launch little, three whole steps show what usual steps do
    if not all(
        rank.launches >= limits.SAMPLES * limits.TRACE_KERNELS or rank.steps >= limits.REPEATS for rank in ranks
    ):
        return Confidence("low", "few launches and steps in the traces")
    return Confidence("high") if share >= limits.CLEARLY * least else Confidence("medium", "close to what is usual")


def _lines(ranks: Sequence[RankTime], name: str) -> list[CodeLine]:
    return [line for rank in ranks for line in rank.lines.get(name, ())]


def _where(ranks: Sequence[RankTime], name: str) -> tuple[Location, ...]:
    """Return the lines of Python that cost most, over all ranks."""
    spent: dict[tuple[str, int, str], float] = {}
    for line in _lines(ranks, name):
        if line.file:
            key = line.file, line.line, line.function
            spent[key] = spent.get(key, 0.0) + line.us
    whole = sum(line.us for line in _lines(ranks, name)) or 1.0
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))[:MAX_LOCATIONS]
    return tuple(Location(*key, us / whole) for key, us in ordered)


def _names(ranks: Sequence[RankTime], name: str) -> str:
    """Return the most expensive operators or kernels, as text."""
    spent: dict[str, float] = {}
    for line in _lines(ranks, name):
        spent[line.name] = spent.get(line.name, 0.0) + line.us
    ordered = sorted((key for key in spent if key), key=lambda key: (-spent[key], key))
    return ", ".join(key[:80] for key in ordered[:3])


def _finding(cause: GpuCause, ranks: Sequence[RankTime], gpu: GpuTraces) -> Finding | None:
    """Return a cause as a finding if it takes clearly more of the time than in a healthy job."""
    able = [rank for rank in ranks if cause.concerns(rank)]
    share, least = _mean(able, cause.seconds), cause.healthy + limits.FLOOR
    if cause.name == "dominant":
        share = _dominant(ranks)[1]
    if share < least:
        return None
    names = _names(able, cause.name)
    evidence = [Evidence(cause.measured, round(share, 4), least, unit="share")]
    if names:
        evidence.append(Evidence("most of it in", names))
    text, words, more = _variant(cause.name, able, share, gpu)
    words |= {"share": percent(share), "names": names or "a synchronization"}
    return Finding(
        cause.kind, GPU_HEADLINES[text].format_map(words), (*evidence, *more), GPU_ADVICE[words.pop("advice", text)].format_map(words),
        share, confidence=_confidence(able, share, least), where=_where(able, cause.name),
    )  # fmt: skip


def _variant(
    name: str, ranks: Sequence[RankTime], share: float, gpu: GpuTraces
) -> tuple[str, dict[str, Any], tuple[Evidence, ...]]:
    """Return the name of a cause's words, what fills their places, and further evidence."""
    if name == "input" and _mean(ranks, lambda rank: rank.idle_boundary) > share / 2:
        return "boundary", {"advice": "input"}, ()
    if name == "launch":
        unrecorded = _mean(ranks, lambda rank: rank.idle_unrecorded)
        short = float(np.mean([rank.short for rank in ranks]))
        more = (
            Evidence("part of it in which the host ran no operator", round(unrecorded / share, 4), unit="share"),
            Evidence("kernels shorter than their launch", round(short, 4), unit="share"),
        )
        return "unrecorded" if unrecorded > share / 2 else "launch", {}, more
    if name == "copies":
        copied = sum(line.us for line in _lines(ranks, "copies")) or 1.0
        inner = sum(rank.within for rank in ranks) > copied / 2
        first = "Pin the host's memory (pin_memory=True) and copy" if any(rank.pageable for rank in ranks) else "Copy"
        count = Evidence("copies between host and device", sum(rank.copies for rank in ranks))
        return "copies", {"first": first, "advice": "copies_on_device" if inner else "copies"}, (count,)
    if name == "plain" and not all(rank.has_tf32 for rank in ranks):
        return "plain", {"advice": "plain_float16"}, ()
    if name == "dominant":
        return "dominant", {"kernel": shorten(_dominant(ranks)[0], 100)}, ()
    return _collective(gpu) if name == "communication" else (name, {}, ())


def _dominant(ranks: Sequence[RankTime]) -> tuple[str, float]:
    """Return the kernel that takes most of the time, and its share; products and elementwise kernels are other causes."""
    spent: dict[str, float] = {}
    for rank in ranks:
        spent[rank.dominant] = spent.get(rank.dominant, 0.0) + rank.share(rank.dominant_us) / len(ranks)
    name, share = max(spent.items(), key=lambda item: item[1])
    return name, share if name else 0.0


def _collective(gpu: GpuTraces) -> tuple[str, dict[str, Any], tuple[Evidence, ...]]:
    """Name the most exposed collective, its group and bandwidth, and what helps against it."""
    spent: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for trace in gpu.ranks.values():
        for row in communication(trace).rows():
            key = str(row["operation"]), str(row["group"]), int(row["group_size"])
            spent.setdefault(key, []).append((float(row["exposed_us"]), float(row["bus_gbps"])))
    if not spent:
        return "communication", {}, ()
    key = max(spent, key=lambda one: sum(exposed for exposed, _ in spent[one]))
    operation, group, size = key
    whole = sum(exposed for pairs in spent.values() for exposed, _ in pairs) or 1.0
    share = sum(exposed for exposed, _ in spent[key]) / whole
    of_group = f", group {shorten(group, 40)}" if group else ""
    of_size = f" of {size} ranks" if size > 0 else ""
    evidence = [Evidence("most exposed", f"{operation}{of_group}{of_size}: {percent(share)} of it")]
    rates = [rate for _, rate in spent[key] if np.isfinite(rate)]
    if rates:
        evidence.append(Evidence("its bus bandwidth", f"{float(np.median(rates)):.3g} GB/s"))
    operation = "alltoall" if operation == "sendrecv" else operation  # NCCL's way to exchange between all ranks
    advice = f"collective_{operation}" if f"collective_{operation}" in GPU_ADVICE else "communication"
    return "communication", {"advice": advice}, tuple(evidence)


# What a rank may do longer than the others: name of its lines → label, and time.
_LATE: Mapping[str, tuple[str, _Seconds]] = {
    "compute": ("computing", lambda rank: rank.compute),
    "input": ("waiting for data", lambda rank: rank.idle_input),
    "sync": ("after waits for the GPU", lambda rank: rank.idle_sync),
    "launch": ("launching", lambda rank: rank.idle_launch),
    "copies": ("copying", lambda rank: rank.exposed_copies),
}


def _straggler(ranks: Sequence[RankTime], gpu: GpuTraces) -> Finding | None:
    """Find the rank that comes last to most collectives."""
    table = gpu.columns("stragglers") if len(ranks) > 1 else ()
    if not len(table) or not table["collectives"].max():  # type: ignore[call-overload]
        return None
    total = float(np.mean([rank.total for rank in ranks])) or 1.0
    worst = max(table.rows(), key=lambda row: float(row["late_us"]))  # type: ignore[union-attr]
    share, last, least = float(worst["late_us"]) / total, float(worst["share_last"]), limits.SURELY * limits.FLOOR
    if share < least or last < _LAST:
        return None
    number = int(worst["rank"])
    (mine,), others = [rank for rank in ranks if rank.rank == number], [rank for rank in ranks if rank.rank != number]
    longer = {name: of(mine) - float(np.mean([of(rank) for rank in others])) for name, (_, of) in _LATE.items()}
    cause = max(longer, key=lambda name: longer[name])
    evidence = [
        Evidence("time the others wait for it", round(share, 4), least, f"rank {number}", "share"),
        Evidence("collectives it came last to", round(last, 4), _LAST, unit="share"),
    ]
    if longer[cause] > 0:
        evidence.append(Evidence(f"longer than the others: {_LATE[cause][0]}", round(longer[cause] / 1e6, 6), unit="s"))
    words = {"rank": number, "share": percent(share)}
    return Finding(
        Class.STRAGGLER, GPU_HEADLINES["straggler"].format_map(words), tuple(evidence), GPU_ADVICE["straggler"],
        share, confidence=_confidence(ranks, share, least), where=_where([mine], cause) if longer[cause] > 0 else (),
        ranks=(str(number),),
    )  # fmt: skip


def _healthy(ranks: Sequence[RankTime]) -> Finding:
    """Return that the devices compute most of the time; if they do not, that is no health, and the candidates are named."""
    compute = _mean(ranks, lambda rank: rank.compute)
    busy = limits.BUSY / 100
    evidence = [Evidence("a computation runs", round(compute, 4), busy, unit="share", held="good from")]
    names = _names(ranks, "compute")
    if names:
        evidence.append(Evidence("most of it in", names))
    if compute >= limits.MAJORITY:
        return Finding(
            Class.COMPUTE_BOUND if compute >= busy else Class.BALANCED,
            GPU_HEADLINES["healthy"].format(share=percent(compute)), tuple(evidence), GPU_ADVICE["healthy"], 0.0,
            confidence=_confidence(ranks, 1.0, 0.0), where=_where(ranks, "compute"),
        )  # fmt: skip
    shares = {
        "waits for slow launches": _mean(ranks, lambda rank: rank.idle_launch),
        "synchronization": _mean(ranks, lambda rank: rank.idle_sync),
        "data loading": _mean(ranks, lambda rank: rank.idle_input),
        "a few long gaps": _mean(ranks, lambda rank: rank.idle_once),
        "pauses between queued kernels": _mean(ranks, lambda rank: rank.idle_queued),
        "communication that nothing hides": _mean(ranks, lambda rank: rank.exposed_communication),
        "copies that nothing hides": _mean(ranks, lambda rank: rank.exposed_copies),
    }
    order = sorted(shares, key=lambda name: -shares[name])[:3]
    candidates = ", ".join(f"{name} {percent(shares[name])}" for name in order if shares[name] > 0)
    return Finding(
        Class.BALANCED, GPU_HEADLINES["mostly_idle"].format(share=percent(compute), candidates=candidates), tuple(evidence),
        GPU_ADVICE["mostly_idle"].format(first=order[0]), 0.0,
        confidence="low", where=_where(ranks, "launch"), label=MOSTLY_IDLE,
    )  # fmt: skip


def _with_gains(findings: Sequence[Finding], ranks: Sequence[RankTime], steps: float) -> list[Finding]:
    """Return findings with their gains: no two claim the same time, and together they leave what computes."""
    left, found = limits.MOST_SAVED, []
    total_s = float(np.mean([rank.total for rank in ranks])) / 1e6 if ranks else 0.0
    for finding in findings:
        if finding.kind.value not in limits.KERNELS_SAVED:  # healthy, or paid once
            found.append(finding)
            continue
        parts = [min(finding.share_of_time * part, left) for part in limits.KERNELS_SAVED[finding.kind.value]]
        left -= parts[1]
        step = total_s / max(steps, 1)  # unmarked steps count as one
        found.append(replace(finding, gain=Gain.of_share(Interval(*parts), step, total_s)))
    return found
