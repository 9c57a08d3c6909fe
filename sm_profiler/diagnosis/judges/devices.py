"""Judges of the accelerators: fully used, unevenly used, or busy with what they are slow at."""

from __future__ import annotations

import math

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import CLOSE_TO_LIMIT, Confidence
from sm_profiler.diagnosis.judges.judge_context import JudgeContext, mean_or_none
from sm_profiler.diagnosis.model import Evidence, Finding


def judge_unbalanced(context: JudgeContext) -> Finding | None:
    """Find a node whose GPUs are used unevenly."""
    worst: tuple[float, str] | None = None
    by_node: dict[str, list[tuple[float, str]]] = {}
    for gpu in context.metrics.gpus:
        by_node.setdefault(gpu.node, []).append((gpu.mean, gpu.name))
    for node, means in by_node.items():
        means[:] = [one for one in means if math.isfinite(one[0])]
        gap = max(means)[0] - min(means)[0] if means else 0.0
        if gap >= policy.UNBALANCED and (worst is None or gap > worst[0]):
            worst = gap, node
    if worst is None:
        return None
    gap, node = worst
    (high, most_used), (low, least_used) = max(by_node[node]), min(by_node[node])
    mean = mean_or_none([value for value, _ in by_node[node]]) or 0.0
    return Finding(
        Class.UNBALANCED_GPUS,
        f"The GPUs of {node} are used unevenly: {most_used} is busy {high:.0f} % of the time, {least_used} {low:.0f} %.",
        (
            Evidence(
                "difference between the most-utilized and the least-utilized GPU", round(gap, 1), policy.UNBALANCED,
                node, "percent",
            ),
        ),
        "Give each GPU its own process (DistributedDataParallel instead of DataParallel) and check that torchrun starts one "
        "process per GPU; otherwise use an instance with fewer GPUs.",
        1 - mean / high if high else 0.0,
        confidence="high" if gap >= policy.CLEARLY * policy.UNBALANCED else Confidence("medium", CLOSE_TO_LIMIT),
    )  # fmt: skip


def judge_tensor_cores(context: JudgeContext) -> Finding | None:
    """Find GPUs that compute all the time with their units for single or double precision."""
    used = [one for one in ("gpu_single", "gpu_double") if (context.gpu_counter(one) or 0.0) >= policy.PLAIN_BUSY]
    tensor, gpu = context.gpu_counter("gpu_tensor"), context.gpu_mean
    if tensor is None or tensor >= policy.TENSOR_IDLE or not used or gpu is None or gpu < policy.COMPUTE:
        return None
    plain = context.gpu_counter(used[0]) or 0.0
    precision = "single" if used[0] == "gpu_single" else "double"
    return Finding(
        Class.TENSOR_CORES_UNUSED,
        f"The GPU computes in {precision} precision {plain:.0f} % of the time, and hardly ever with its tensor cores ({tensor:.0f} %).",
        (
            Evidence(f"units for {precision} precision busy", round(plain, 1), policy.PLAIN_BUSY, unit="percent"),
            Evidence("tensor cores busy", round(tensor, 2), policy.TENSOR_IDLE, unit="percent", held="good from"),
            Evidence("mean GPU use in the loop", round(gpu, 1), unit="percent"),
        ),
        ("" if precision == "single" else "Check which tensors are float64, the default of numpy, and convert them. ")
        + f"Use mixed precision: {context.stack.half_precision}. Keep sizes multiples of 8.",
        min(plain / policy.PLAIN_MOST, 1.0) * gpu / 100,
        confidence=context.confidence(plain, policy.PLAIN_BUSY),
    )  # fmt: skip


def judge_bandwidth(context: JudgeContext) -> Finding | None:
    """Find GPUs that spend their time on reading and writing their memory."""
    used, gpu = context.gpu_counter("gpu_bandwidth"), context.gpu_mean
    if used is None or used < policy.BANDWIDTH or gpu is None or gpu < policy.COMPUTE:
        return None
    evidence = [
        Evidence("memory bandwidth of the GPU in use", round(used, 1), policy.BANDWIDTH, unit="percent"),
        Evidence("mean GPU use in the loop", round(gpu, 1), unit="percent"),
    ]
    tensor = context.gpu_counter("gpu_tensor")
    if tensor is not None:
        evidence.append(Evidence("tensor cores busy", round(tensor, 2), unit="percent"))
    return Finding(
        Class.MEMORY_BANDWIDTH_BOUND,
        f"The GPU is limited by its memory: {used:.0f} % of the bandwidth is in use, on average over the loop.",
        tuple(evidence),
        f"Fuse what reads and writes: {context.stack.fusing}. Half precision halves the bytes: {context.stack.half_precision}. "
        "A detailed window names the operators.",
        min(used / policy.BANDWIDTH_MOST, 1.0) * gpu / 100,
        confidence="high" if used >= policy.BANDWIDTH_CLEAR and context.steps >= policy.STEADY_STEPS else "medium",
    )


def judge_compute(context: JudgeContext) -> Finding | None:
    """Find a job whose GPUs are busy, as they should be."""
    gpu = context.gpu_mean
    if gpu is None or gpu < policy.COMPUTE:
        return None
    return Finding(
        Class.COMPUTE_BOUND,
        f"The GPU is busy {gpu:.0f} % of the time: the job is limited by the accelerator, as it should be.",
        (Evidence("mean GPU use in the loop", round(gpu, 1), policy.COMPUTE, unit="percent", held="good from"),),
        f"To go faster, use mixed precision ({context.stack.half_precision}) and fuse operators: {context.stack.fusing}. After "
        "that, use more or faster GPUs.",
        0.0,
        confidence="high" if context.ranks else "medium",
    )
