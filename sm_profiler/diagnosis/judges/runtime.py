"""Judges of what runs below the script: torch.compile, threads, copies to the device, the device's allocator."""

from __future__ import annotations

import re

import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.occurrences import Spent, in_first_steps, lines_of, time_spent
from sm_profiler.diagnosis.model import Evidence, Finding, Location
from sm_profiler.diagnosis.where import BESIDE_THE_LOOP
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, percent, plural, size
from sm_profiler.metrics.record_fold import Record

COPIES = re.compile(r"\.(to|cuda|copy_|pin_memory)\(|send_to_device\(|move_data_to_device\(")
MAX_LINES = 5  # of a finding
_TORCH = "torch.compile"
_REPAIRS = {
    _TORCH: (
        "Compile with dynamic=True, or mark what varies (torch._dynamo.mark_dynamic); pad batches to a few lengths, and drop a "
        "shorter last batch (drop_last=True). Keep Python numbers that change out of compiled code, or pass them as tensors."
    ),
    "tf.function": (
        "Pass what changes as tensors: each Python number is traced anew. For shapes that vary, set reduce_retracing=True or an "
        "input_signature with None for the varying axes, and drop a shorter last batch (drop_remainder=True). Call tf.function "
        "once, outside the loop: each new function is traced on its own."
    ),
    "XLA": (
        "Pad batches to a few lengths and mask the rest, and drop a shorter last batch (drop_remainder=True): XLA compiles a "
        "function for each shape, even if TensorFlow does not trace it again. If the shapes must vary, leave out "
        "jit_compile=True."
    ),
    "jax.jit": (
        "Give the function the same shapes and types at each call: pad batches to a few lengths and mask the rest, and drop a "
        "shorter last batch. Pass numbers that change as arrays instead of naming them in static_argnums, and call jax.jit once, "
        "outside the loop: each new function, lambda or partial is compiled on its own."
    ),
}


def _number(record: Record, name: str) -> float:
    value = record.args.get(name, 0)
    return float(value) if isinstance(value, (int, float)) and np.isfinite(value) else 0.0


def _text(record: Record, name: str) -> str:
    value = record.args.get(name, "")
    return value if isinstance(value, str) else ""


def judge_recompilation(context: JudgeContext) -> Finding | None:
    """Find functions that a compiler compiles again while the loop runs."""
    spent = time_spent(context, event_names.COMPILE, lambda one: one.args.get("again") is True)
    rank = spent.worst
    if rank is None or spent.share < limits.FLOOR or all(map(in_first_steps, spent.records)):
        return None
    compiler = next((text for one in reversed(spent.records) if (text := _text(one, "compiler"))), _TORCH)
    reason = next((text for one in reversed(spent.records) if (text := _text(one, "reason"))), "")
    breaks = [one for one in context.metrics.records[event_names.COMPILE].of(rank.name) if one.name == "graph break"]
    evidence = [
        *([Evidence("reason of the last", reason, None, rank.name)] if reason else []),
        Evidence("time in the training loop spent compiling again", round(spent.share, 4), limits.FLOOR, unit="share"),
        Evidence("recompilations", spent.calls, policy.RECOMPILATIONS, rank.name),
        Evidence("duration of a recompilation", round(spent.seconds / spent.calls * 1e3, 3), None, rank.name, "ms"),
    ]  # fmt: skip
    if breaks:
        evidence.append(Evidence("graph breaks", len(breaks), None, rank.name))
        evidence.append(Evidence("reason of the first graph break", _text(breaks[0], "reason"), None, rank.name))
    return Finding(
        Class.RECOMPILATION,
        f"{compiler} compiles {spent.records[-1].name} again {plural(spent.calls, 'time')}, "
        f"{duration(spent.seconds / spent.calls)} each; this costs {percent(spent.share)} of the loop.",
        tuple(evidence),
        _REPAIRS.get(compiler, _REPAIRS[_TORCH]),
        spent.share,
        confidence=context.confidence(
            spent.share, limits.FLOOR, sure=spent.calls >= policy.RECOMPILATIONS, error=spent.share * _chance(spent)
        ),
        where=lines_of(spent.records),
    )  # fmt: skip


def _chance(spent: Spent) -> float:
    """Return the standard error of the time of rare calls, as a share of it: another run would have a few more or fewer.

    However they lie in the loop: most shapes come first at its start.
    """
    seconds = np.array([one.seconds for one in spent.records])
    return float(np.sqrt((seconds**2).sum()) / seconds.sum()) if seconds.sum() > 0 else 1.0


def judge_threads(context: JudgeContext) -> Finding | None:
    """Find more threads than cores, if the threads keep each other waiting."""
    found = context.metrics.records.get(event_names.THREADS)
    worst: tuple[float, Finding] | None = None
    for rank in context.ranks if found else ():
        own = [one for one in found.of(rank.name) if one.end > rank.start and one.start < rank.end] if found else []
        seconds = sum(one.seconds for one in own)
        cores = max((_number(one, "cores") for one in own), default=0.0)
        if seconds <= 0 or cores <= 0:
            continue
        ranks = sum(other.node == rank.node for other in context.ranks)
        workers = max(context.metrics.loader.num_workers, 0)
        threads = ranks * (float(np.median([_number(one, "library_threads") for one in own])) + workers)
        switches = sum(_number(one, "switches") for one in own) / seconds / cores
        waited = sum(_number(one, "waited_ns") for one in own) / 1e9 / seconds
        share = min(waited * max(1 - cores / threads, 0.0), policy.CORE_WAIT_MOST) if threads > 0 else 0.0
        if threads < policy.THREADS_PER_CORE * cores or switches < policy.SWITCHES or share < policy.CORE_WAIT:
            continue
        evidence = (
            Evidence("threads for each core", round(threads / cores, 2), policy.THREADS_PER_CORE, rank.name),
            Evidence("main thread waits for a core", round(waited, 4), policy.CORE_WAIT, rank.name, "share"),
            Evidence("context switches a second and core", round(switches), policy.SWITCHES, rank.name),
            Evidence("cores that the job may use", round(cores, 2), None, rank.name),
        )
        fit = max(int(cores / ranks) - workers, 1)
        finding = Finding(
            Class.OVERSUBSCRIBED,
            f"{threads:.0f} library and worker threads compete for {cores:.3g} cores: the main thread waits for a core "
            f"{percent(waited)} of the time.",
            evidence,
            f"Limit the threads of each process: OMP_NUM_THREADS={fit} (and MKL_NUM_THREADS), or torch.set_num_threads({fit}), "
            "so that threads times ranks, with the loader's workers, do not exceed the cores.",
            share,
            confidence=Confidence("medium", "the part that other processes cause is unknown"),
        )  # fmt: skip
        if worst is None or share > worst[0]:
            worst = share, finding
    return worst[1] if worst else None


def judge_transfer(context: JudgeContext) -> Finding | None:
    """Find copies to the device that the training thread waits for, from its sampled lines."""
    if not context.metrics.gpus or not context.ranks:
        return None
    samples = context.metrics.samples
    total, copied, count = 0.0, 0.0, 0
    lines: dict[tuple[str, int, str], float] = {}
    for one in samples.stacks:
        if one.phase in BESIDE_THE_LOOP:
            continue
        total += one.seconds
        if one.places and COPIES.search(samples.source(one.places[-1])):
            place = one.places[-1]
            copied, count = copied + one.seconds, count + one.count
            key = place.file, place.line, place.function
            lines[key] = lines.get(key, 0.0) + one.seconds
    share = copied / total if total > 0 else 0.0
    if share < policy.TRANSFER or count < policy.TRANSFER_SAMPLES:
        return None
    pinned = context.metrics.loader.pin_memory
    evidence = [
        Evidence("time of the training thread in copies to the device", round(share, 4), policy.TRANSFER, unit="share"),
        Evidence("samples in them", count, policy.TRANSFER_SAMPLES, held="judged from"),
    ]
    if pinned >= 0:
        evidence.append(Evidence("pin_memory of the DataLoader", "on" if pinned else "off"))
    pageable = " from pageable memory" if pinned == 0 else ""
    places = sorted(lines, key=lambda place: -lines[place])[:MAX_LINES]
    return Finding(
        Class.TRANSFER_BOUND,
        f"The training thread spends {percent(share)} of the loop copying to the device{pageable}.",
        tuple(evidence),
        "Set pin_memory=True in the DataLoader and copy with non_blocking=True. Copy a batch as one tensor instead of many, in "
        "its smallest type (uint8 images, normalized on the device), and keep what does not change on the device.",
        share,
        confidence=context.confidence(share, policy.TRANSFER, sure=pinned == 0),
        where=tuple(
            Location(*place, share=lines[place] / copied, source=samples.sources.get((place[0], place[1]), "")) for place in places
        ),
    )  # fmt: skip


def judge_allocator(context: JudgeContext) -> Finding | None:
    """Find allocations on the device that were retried after freeing the cache."""
    found = context.metrics.records.get(event_names.ALLOCATOR)
    worst: Finding | None = None
    for rank in context.ranks if found else ():
        own = [one for one in found.of(rank.name) if rank.start <= one.start <= rank.end] if found else []
        if not own or rank.loop <= 0:
            continue
        first, last = own[0], own[-1]
        retries = _number(last, "retries") - _number(first, "retries")
        share = min(retries * policy.RETRY_S / rank.loop, 1.0)
        if retries < policy.RETRIES or share < policy.RETRY_COST or (worst and worst.share_of_time >= share):
            continue
        reserved, split = _number(last, "reserved_bytes"), _number(last, "split_bytes")
        evidence = [
            Evidence("allocations retried in the loop", round(retries), policy.RETRIES, rank.name),
            Evidence("time lost in them, estimated", round(share, 4), policy.RETRY_COST, rank.name, "share"),
        ]
        if reserved > 0:
            evidence.append(
                Evidence("reserved memory in unusable pieces", round(split / reserved, 4), None, rank.name, "share")
            )
        if _number(last, "ooms") > 0:
            evidence.append(Evidence("allocations that failed", round(_number(last, "ooms")), None, rank.name))
        worst = Finding(
            Class.ALLOCATOR,
            f"PyTorch's allocator flushed its cache on the device {retries:.0f} times to serve a request"
            f"{f'; {size(split)} of {size(reserved)} reserved is fragmented' if split else ''}.",
            tuple(evidence),
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Use fewer different shapes (pad, or sort by length), free "
            "what is not needed (del outputs, zero_grad(set_to_none=True)), or take a smaller batch.",
            share,
            confidence=Confidence("medium", "the time is estimated"),
        )  # fmt: skip
    return worst
