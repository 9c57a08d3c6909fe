"""Findings of traces of torch.profiler, each with its lines and its gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import astuple, replace

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import MOSTLY_IDLE, Class
from sm_profiler.diagnosis.confidence import CLOSE_TO_LIMIT, Confidence
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Location, Verdict
from sm_profiler.formatting import percent, shorten
from sm_profiler.gpu_traces.collectives import communication
from sm_profiler.gpu_traces.measure import CodeLine, RankTime
from sm_profiler.gpu_traces.traces import GpuTraces

MAX_LOCATIONS = 5


def decide_traces(ranks: Sequence[RankTime], gpu: GpuTraces) -> Verdict:
    """Return the verdict on some ranks' traces."""
    findings = [finding for judge in _JUDGES if (finding := judge(ranks)) is not None]
    findings = [_with_collectives(one, gpu) if one.kind is Class.COMMUNICATION_BOUND else one for one in findings]
    late = _straggler(ranks, gpu)
    findings += [late] if late is not None else []
    if all(finding.kind.is_healthy for finding in findings):
        findings = [_healthy(ranks)]
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


def _mean(ranks: Sequence[RankTime], of: Callable[[RankTime], float]) -> float:
    return float(np.mean([rank.share(of(rank)) for rank in ranks])) if ranks else 0.0


def _confidence(ranks: Sequence[RankTime], share: float, threshold: float) -> str:
    enough = all(one.launches >= policy.TRACE_LAUNCHES or one.steps >= policy.TRACE_STEPS for one in ranks)
    if not enough:
        return Confidence("low", "few launches and steps in the traces")
    return "high" if share >= policy.CLEARLY * threshold else Confidence("medium", CLOSE_TO_LIMIT)


def _where(ranks: Sequence[RankTime], cause: str) -> tuple[Location, ...]:
    """Return the lines of Python that cost most, over all ranks."""
    spent: dict[tuple[str, int, str], float] = {}
    for line in _lines(ranks, cause):
        if line.file:
            key = line.file, line.line, line.function
            spent[key] = spent.get(key, 0.0) + line.us
    whole = sum(line.us for line in _lines(ranks, cause)) or 1.0
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))[:MAX_LOCATIONS]
    return tuple(Location(*key, us / whole) for key, us in ordered)


def _lines(ranks: Sequence[RankTime], cause: str) -> list[CodeLine]:
    return [line for rank in ranks for line in rank.lines.get(cause, ())]


def _names(ranks: Sequence[RankTime], cause: str) -> str:
    """Return the most expensive operators or kernels, as text."""
    spent: dict[str, float] = {}
    for line in _lines(ranks, cause):
        spent[line.name] = spent.get(line.name, 0.0) + line.us
    ordered = sorted((name for name in spent if name), key=lambda name: (-spent[name], name))
    return ", ".join(name[:80] for name in ordered[:3])


def _evidence(ranks: Sequence[RankTime], name: str, share: float, threshold: float, cause: str) -> tuple[Evidence, ...]:
    found = [Evidence(name, round(share, 4), threshold, unit="share")]
    names = _names(ranks, cause)
    return (*found, Evidence("most of it in", names)) if names else tuple(found)


def _input(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.idle_input)
    if share < policy.INPUT_WAIT:
        return None
    boundary = _mean(ranks, lambda rank: rank.idle_boundary)
    doing = "while the host loads the next batch"
    evidence = _evidence(ranks, "GPU idle during data loading", share, policy.INPUT_WAIT, "input")
    if boundary > share / 2:
        doing = "between steps, while the host runs nothing that torch records: usually it waits for the next batch"
        evidence = _evidence(ranks, "GPU idle between steps", share, policy.INPUT_WAIT, "input")
    return Finding(
        Class.INPUT_BOUND,
        f"The GPU is idle {percent(share)} of the time {doing}.",
        evidence,
        "Load batches ahead: more num_workers, a larger prefetch_factor, pin_memory=True and non_blocking copies.",
        share, confidence=_confidence(ranks, share, policy.INPUT_WAIT), where=_where(ranks, "input"),
    )  # fmt: skip


def _sync(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.idle_sync)
    if share < policy.TRACE_SYNC:
        return None
    names = _names(ranks, "sync") or "a synchronization"
    return Finding(
        Class.SYNC_BOUND,
        f"The GPU is idle {percent(share)} of the time because the host had waited for it ({names}) and could not launch ahead.",
        _evidence(ranks, "GPU idle after the host waited for it", share, policy.TRACE_SYNC, "sync"),
        "Remove the waits from the loop: read losses and metrics (.item(), .cpu(), print) every 50th step, copy with "
        "non_blocking=True from pinned memory, and avoid torch.cuda.synchronize() and shapes that depend on data.",
        share, confidence=_confidence(ranks, share, policy.TRACE_SYNC), where=_where(ranks, "sync"),
    )  # fmt: skip


def _launch(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.idle_launch)
    if share < policy.TRACE_LAUNCH:
        return None
    short = float(np.mean([rank.short for rank in ranks]))
    evidence = _evidence(ranks, "GPU idle while the host launches", share, policy.TRACE_LAUNCH, "launch")
    advice = (
        "Launch fewer, larger kernels: torch.compile (mode='reduce-overhead' for CUDA graphs), a larger batch, fused and "
        "foreach optimizers. Check that the launching thread is not slowed down by other Python code or few CPU cores."
    )
    unrecorded = _mean(ranks, lambda rank: rank.idle_unrecorded)
    why = "because the host launches kernels too slowly"
    if unrecorded > share / 2:
        why = "because the host does something else than launching kernels"
        advice = (
            "Find what the host does meanwhile, which torch does not record: Python code between the operators, or a wait for a lock, "
            "a file or another process. Record with with_stack=True, or run the script with 'sm-profiler run', whose sampler names "
            "the lines."
        )
    return Finding(
        Class.HOST_BOUND,
        f"The GPU is idle {percent(share)} of the time {why}.",
        (
            *evidence,
            Evidence("part of it in which the host ran no operator", round(unrecorded / share, 4), unit="share"),
            Evidence("kernels shorter than their launch", round(short, 4), unit="share"),
        ),
        advice,
        share, confidence=_confidence(ranks, share, policy.TRACE_LAUNCH), where=_where(ranks, "launch"),
    )  # fmt: skip


def _start(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.idle_once)
    if share < policy.INITIALIZATION:
        return None
    return Finding(
        Class.INITIALIZATION_BOUND,
        f"The GPU is idle {percent(share)} of the recorded time in a few very long gaps: first calls that load libraries, "
        "choose algorithms or compile.",
        _evidence(ranks, "GPU idle in a few long gaps", share, policy.INITIALIZATION, "once"),
        "Record steps of the running loop: torch.profiler.schedule(wait=5, warmup=3, active=5). If the gaps come back there, "
        "look at what runs at their lines.",
        share, confidence=_confidence(ranks, share, policy.INITIALIZATION), where=_where(ranks, "once"),
    )  # fmt: skip


def _communication(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.exposed_communication)
    if share < policy.TRACE_EXPOSED:
        return None
    return Finding(
        Class.COMMUNICATION_BOUND,
        f"Communication that nothing hides takes {percent(share)} of the time.",
        _evidence(ranks, "communication without computation", share, policy.TRACE_EXPOSED, "communication"),
        "Overlap it with computation: larger or smaller DDP buckets (bucket_cap_mb), FSDP with backward prefetch, gradient "
        "accumulation with no_sync(), gradients in bf16. Check first that no rank comes late and that the network is the "
        "one you pay for (EFA).",
        share, confidence=_confidence(ranks, share, policy.TRACE_EXPOSED), where=_where(ranks, "communication"),
    )  # fmt: skip


def _copies(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.exposed_copies)
    if share < policy.TRACE_COPIES:
        return None
    pageable = sum(rank.pageable for rank in ranks) > 0
    evidence = _evidence(ranks, "copies while nothing else runs", share, policy.TRACE_COPIES, "copies")
    first = "Pin the host's memory (pin_memory=True) and copy" if pageable else "Copy"
    within = sum(rank.within for rank in ranks)
    copied = sum(line.us for line in _lines(ranks, "copies")) or 1.0
    advice = (
        f"{first} with non_blocking=True on a stream of its own while the previous batch computes; join small copies, and keep "
        "on the device what does not change."
    )
    if within > copied / 2:
        advice = (
            "Most of the time goes into copies within the device: look for .clone(), .contiguous(), cat and index operations in the "
            "lines and operators named here; write into preallocated tensors, or let torch.compile plan the memory. "
            + advice
        )
    return Finding(
        Class.TRANSFER_BOUND,
        f"Copies that nothing hides take {percent(share)} of the GPU's time.",
        (*evidence, Evidence("copies between host and device", sum(rank.copies for rank in ranks))),
        advice,
        share, confidence=_confidence(ranks, share, policy.TRACE_COPIES), where=_where(ranks, "copies"),
    )  # fmt: skip


def _tensor_cores(ranks: Sequence[RankTime]) -> Finding | None:
    able = [rank for rank in ranks if rank.has_tensor_cores]
    share = _mean(able, lambda rank: rank.matmul_plain)
    if share < policy.TRACE_PLAIN:
        return None
    advice = (
        "Use mixed precision (torch.autocast with bfloat16), or at least torch.set_float32_matmul_precision('high'); keep sizes "
        "multiples of 8."
    )
    if not all(rank.has_tf32 for rank in able):
        advice = (
            "Use mixed precision: torch.autocast with float16 and a GradScaler; this GPU's tensor cores multiply neither bfloat16 nor "
            "single precision. Keep sizes multiples of 8."
        )
    return Finding(
        Class.TENSOR_CORES_UNUSED,
        f"Matrix products without tensor cores take {percent(share)} of the time.",
        _evidence(able, "matrix products without tensor cores", share, policy.TRACE_PLAIN, "plain"),
        advice,
        share, confidence=_confidence(able, share, policy.TRACE_PLAIN), where=_where(able, "plain"),
    )  # fmt: skip


def _elementwise(ranks: Sequence[RankTime]) -> Finding | None:
    share = _mean(ranks, lambda rank: rank.elementwise)
    if share < policy.TRACE_ELEMENTWISE:
        return None
    return Finding(
        Class.MEMORY_BANDWIDTH_BOUND,
        f"Kernels that only read and write memory, element by element, take {percent(share)} of the time.",
        _evidence(ranks, "elementwise kernels", share, policy.TRACE_ELEMENTWISE, "elementwise"),
        "Fuse them: torch.compile, fused implementations (scaled_dot_product_attention, fused optimizers and norms), in-place "
        "operations, channels_last, and half precision, which halves the bytes.",
        share, confidence=_confidence(ranks, share, policy.TRACE_ELEMENTWISE), where=_where(ranks, "elementwise"),
    )  # fmt: skip


def _dominant(ranks: Sequence[RankTime]) -> Finding | None:
    """Find one kernel that takes most of the time, unless it is a product or an elementwise one: those have own judges."""
    spent: dict[str, float] = {}
    for rank in ranks:
        spent[rank.dominant] = spent.get(rank.dominant, 0.0) + rank.share(rank.dominant_us) / len(ranks)
    name, share = max(spent.items(), key=lambda item: item[1])
    if not name or share < policy.TRACE_DOMINANT:
        return None
    return Finding(
        Class.DOMINANT_KERNEL,
        f"One kernel takes {percent(share)} of the time: {shorten(name, 100)}.",
        _evidence(ranks, "time in this kernel", share, policy.TRACE_DOMINANT, "dominant"),
        "Look for a faster way to compute this: another layout or data type, an implementation of the library that fuses it with its "
        "neighbours, sorted or fewer indices, torch.compile. Profile it alone (ncu) before you write one yourself.",
        share, confidence=_confidence(ranks, share, policy.TRACE_DOMINANT), where=_where(ranks, "dominant"),
    )  # fmt: skip


_JUDGES: tuple[Callable[[Sequence[RankTime]], Finding | None], ...] = (
    _input, _sync, _start, _launch, _communication, _copies, _tensor_cores, _elementwise,
    _dominant,
)  # fmt: skip


# What helps against an exposed collective, by its operation.
_COLLECTIVES = {
    "allreduce": "Gradients: overlap them with the backward pass (DDP does; try bucket_cap_mb), reduce in bf16, accumulate "
    "with no_sync().",
    "allgather": "Sharded parameters (FSDP): prefetch them (backward_prefetch, forward_prefetch), shard within a node only "
    "(HYBRID_SHARD), gather in bf16.",
    "reducescatter": "Sharded gradients (FSDP): shard within a node only (HYBRID_SHARD), reduce in bf16, accumulate with no_sync().",
    "alltoall": "Embeddings or experts: run the exchange on a stream of its own beside the dense layers, send bf16, and balance what "
    "each rank holds.",
    "broadcast": "Buffers or parameters: broadcast_buffers=False if the model needs no equal buffers on all ranks.",
}
_COLLECTIVES["sendrecv"] = _COLLECTIVES["alltoall"]  # NCCL's way to exchange between all ranks


def _with_collectives(finding: Finding, gpu: GpuTraces) -> Finding:
    """Name the most exposed collective, its group and bandwidth, and what helps against it."""
    spent: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for trace in gpu.ranks.values():
        for row in communication(trace).rows():
            key = str(row["operation"]), str(row["group"]), int(row["group_size"])
            spent.setdefault(key, []).append((float(row["exposed_us"]), float(row["bus_gbps"])))
    if not spent:
        return finding
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
    check = "Check first that no rank comes late and that the network is the one you pay for (EFA)."
    advice = f"{_COLLECTIVES[operation]} {check}" if operation in _COLLECTIVES else finding.next_step
    return replace(finding, evidence=(*finding.evidence, *evidence), next_step=advice)


# What a rank may do longer than the others: cause → label, in the order of `RankTime`'s fields.
_LATE = {
    "compute": "computing", "input": "waiting for data", "sync": "after waits for the GPU", "launch": "launching",
    "copies": "copying",
}  # fmt: skip


def _why_late(rank: int, ranks: Sequence[RankTime]) -> tuple[str, float]:
    """Return what a rank does longer than the mean of the others, and by how many microseconds."""
    fields = {
        "compute": "compute", "input": "idle_input", "sync": "idle_sync", "launch": "idle_launch", "copies": "exposed_copies",
    }  # fmt: skip
    (mine,), others = [one for one in ranks if one.rank == rank], [one for one in ranks if one.rank != rank]
    more = {
        cause: float(getattr(mine, field)) - float(np.mean([getattr(one, field) for one in others]))
        for cause, field in fields.items()
    }
    cause = max(more, key=lambda one: more[one])
    return cause, more[cause]


def _straggler(ranks: Sequence[RankTime], gpu: GpuTraces) -> Finding | None:
    if len(ranks) < 2:  # a single rank has none to wait for
        return None
    table = gpu.columns("stragglers")
    if not len(table) or not table["collectives"].max():
        return None
    total = float(np.mean([rank.total for rank in ranks])) or 1.0
    worst = max(table.rows(), key=lambda row: float(row["late_us"]))
    share, last = float(worst["late_us"]) / total, float(worst["share_last"])
    if share < policy.STRAGGLER or last < policy.TRACE_LAST:
        return None
    rank = int(worst["rank"])
    cause, more = _why_late(rank, ranks)
    evidence = [
        Evidence("time the others wait for it", round(share, 4), policy.STRAGGLER, f"rank {rank}", "share"),
        Evidence("collectives it came last to", round(last, 4), policy.TRACE_LAST, unit="share"),
    ]
    if more > 0:
        evidence.append(Evidence(f"longer than the others: {_LATE[cause]}", round(more / 1e6, 6), unit="s"))
    return Finding(
        Class.STRAGGLER,
        f"Rank {rank} comes last to most collectives; the others wait for it {percent(share)} of the time.",
        tuple(evidence),
        "Compare its batches, its host and its GPU with the others': uneven sequence lengths, a busy CPU, a throttled GPU.",
        share, confidence=_confidence(ranks, share, policy.STRAGGLER),
        where=_where([one for one in ranks if one.rank == rank], cause) if more > 0 else (),
    )  # fmt: skip


def _healthy(ranks: Sequence[RankTime]) -> Finding:
    compute = _mean(ranks, lambda rank: rank.compute)
    busy = compute >= policy.COMPUTE / 100
    evidence = [Evidence("a computation runs", round(compute, 4), policy.COMPUTE / 100, unit="share", held="good from")]
    names = _names(ranks, "compute")
    if names:
        evidence.append(Evidence("most of it in", names))
    if compute < policy.IDLE_GPU / 100:
        return _mostly_idle(ranks, compute, evidence)
    return Finding(
        Class.COMPUTE_BOUND if busy else Class.BALANCED,
        f"The GPU computes {percent(compute)} of the time, and no single cause takes the rest.",
        tuple(evidence),
        "To go faster, compute less or in lower precision, fuse kernels with torch.compile, or use a faster GPU.",
        0.0, confidence=_confidence(ranks, 1.0, 0.0), where=_where(ranks, "compute"),
    )  # fmt: skip


def _mostly_idle(ranks: Sequence[RankTime], compute: float, evidence: Sequence[Evidence]) -> Finding:
    """Return the verdict on GPUs that are idle most of the time for several reasons: no health, and the candidates."""
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
        Class.BALANCED,
        f"The GPU computes only {percent(compute)} of the time, and no single cause takes the rest: {candidates}.",
        tuple(evidence),
        f"Begin with the largest: {order[0]}. Record more steps, with_stack=True, so that lines of code can be named.",
        0.0, confidence="low", where=_where(ranks, "launch"), label=MOSTLY_IDLE,
    )  # fmt: skip


def _with_gains(findings: Sequence[Finding], ranks: Sequence[RankTime], steps: float) -> list[Finding]:
    """Return findings with their gains: no two claim the same time, and together they leave what computes."""
    left, found = float(policy.GAIN_MOST), []
    total_s = float(np.mean([rank.total for rank in ranks])) / 1e6 if ranks else 0.0
    for finding in findings:
        if finding.kind not in policy.TRACE_REPAIRED:  # healthy, or paid once
            found.append(finding)
            continue
        low, value, high = (
            min(finding.share_of_time * float(part), left) for part in policy.TRACE_REPAIRED[finding.kind]
        )
        left -= value
        share = Interval(low, value, high)
        seconds = Interval(*(one * total_s for one in (low, value, high)))
        per_step = Interval(*(one / max(steps, 1) for one in astuple(seconds)))  # unmarked steps count as one
        speedup = Interval(*(1 / (1 - one) for one in (low, value, high)))
        found.append(replace(finding, gain=Gain(per_step, share, speedup, seconds=seconds)))
    return found
