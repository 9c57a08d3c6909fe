"""Judges of the accelerators: fully used, or unevenly used."""

from __future__ import annotations

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.judges.judge_context import JudgeContext, mean_or_none
from sm_profiler.report.model import Evidence, Finding


def judge_unbalanced(context: JudgeContext) -> Finding | None:
    """Find a node whose GPUs are used unevenly."""
    worst: tuple[float, str] | None = None
    by_node: dict[str, list[tuple[float, str]]] = {}
    for gpu in context.metrics.gpus:
        by_node.setdefault(gpu.node, []).append((gpu.mean, gpu.name))
    for node, means in by_node.items():
        gap = max(means)[0] - min(means)[0]
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
        confidence="high" if gap >= policy.CLEARLY * policy.UNBALANCED else "medium",
    )  # fmt: skip


def judge_compute(context: JudgeContext) -> Finding | None:
    """Find a job whose GPUs are busy, as they should be."""
    gpu = context.gpu_mean
    if gpu is None or gpu < policy.COMPUTE:
        return None
    return Finding(
        Class.COMPUTE_BOUND,
        f"The GPU is busy {gpu:.0f} % of the time: the job is limited by the accelerator, as it should be.",
        (Evidence("mean GPU use in the loop", round(gpu, 1), policy.COMPUTE, unit="percent", held="good from"),),
        "To go faster, reduce the arithmetic: bf16 or fp16 autocast, torch.compile, channels_last, flash attention. After that, "
        "use more or faster GPUs.",
        0.0,
        confidence="high" if context.ranks else "medium",
    )
