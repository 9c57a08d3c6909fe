"""The accelerators themselves: busy, or unevenly used."""

from __future__ import annotations

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.judges.judge_context import Case, mean_or_none
from sm_profiler.report.model import Evidence, Finding


def judge_unbalanced(case: Case) -> Finding | None:
    """One GPU of a node works, another does not."""
    worst: tuple[float, str] | None = None
    by_node: dict[str, list[tuple[float, str]]] = {}
    for gpu in case.facts.gpus:
        by_node.setdefault(gpu.node, []).append((gpu.mean, gpu.name))
    for node, means in by_node.items():
        gap = max(means)[0] - min(means)[0]
        if gap >= policy.UNBALANCED.value and (worst is None or gap > worst[0]):
            worst = gap, node
    if worst is None:
        return None
    gap, node = worst
    (high, busiest), (low, laziest) = max(by_node[node]), min(by_node[node])
    mean = mean_or_none([value for value, _ in by_node[node]]) or 0.0
    return Finding(
        Class.UNBALANCED_GPUS,
        f"The GPUs of {node} are used unevenly: {busiest} {high:.0f} % of the time, {laziest} {low:.0f} %.",
        (
            Evidence(
                "difference between busiest and laziest GPU", round(gap, 1), policy.UNBALANCED.value, node, "percent"
            ),
        ),
        "Give each GPU a process of its own (DistributedDataParallel instead of DataParallel) and check that torchrun starts one "
        "process per GPU; or take an instance with fewer GPUs.",
        1 - mean / high if high else 0.0,
        confidence="high" if gap >= policy.CLEARLY.value * policy.UNBALANCED.value else "medium",
    )


def judge_compute(case: Case) -> Finding | None:
    """The accelerator is busy: that is good."""
    gpu = case.gpu_mean
    if gpu is None or gpu < policy.COMPUTE.value:
        return None
    return Finding(
        Class.COMPUTE_BOUND,
        f"The GPU works {gpu:.0f} % of the time: the accelerator itself is the limit, as it should be.",
        (Evidence("mean GPU use in the loop", round(gpu, 1), policy.COMPUTE.value, unit="percent", held="good from"),),
        "To go faster, make the arithmetic cheaper: bf16 or fp16 autocast, torch.compile, channels_last, flash attention; then more or "
        "faster GPUs.",
        0.0,
        confidence="high" if case.ranks else "medium",
    )
