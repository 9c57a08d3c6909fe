"""What the loop does besides computing: time outside the phases, tiny steps, collections, the optimizer."""

from __future__ import annotations

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Rank
from sm_profiler.report.judges.judge_context import Case, confidence, duration, mean_or_none, percent
from sm_profiler.report.model import Evidence, Finding


def outside_share(case: Case) -> float:
    """Share of the turns that is neither phase nor wait, long turns and collections left out.

    The smaller of mean and median: what lies outside in some steps only is no matter of every step.
    """

    def of(rank: Rank) -> float:
        length = rank.typical("length")
        median = rank.typical("outside") / length if length > 0 else 0.0
        return min(rank.share_of_turns("outside", without_stalls=True), median)

    collections = case.mean(lambda rank: max(rank.gc - rank.gc_in_wait, 0.0) / rank.loop if rank.loop else 0.0)
    return max(case.mean(of) - collections, 0.0)


def judge_sync(case: Case) -> Finding | None:
    """Logging, `.item()`, metrics or checkpoints at every step."""
    share = outside_share(case)
    typical = case.mean(lambda rank: rank.usual("outside"))
    if share < policy.OUTSIDE.value or typical * 1e3 < policy.OUTSIDE_MS.value:
        return None
    turn = case.mean(lambda rank: rank.usual("length"))
    return Finding(
        Class.SYNC_BOUND,
        f"{percent(share)} of a training step lies outside forward, backward, optimizer and waiting for data: {duration(typical)} of a "
        f"typical step of {duration(turn)}.",
        (
            Evidence(
                "time of a training step outside every phase and wait",
                round(share, 4),
                policy.OUTSIDE.value,
                unit="share",
            ),
            Evidence("the same in a typical step", round(typical * 1e3, 3), policy.OUTSIDE_MS.value, unit="ms"),
        ),
        "Look at what runs at every step besides the model: logging, print, .item() or .cpu() of the loss, metrics, writing "
        "files. Do it every 50th step, or keep values on the device and read them once. A Python window (cProfile) names it.",
        share,
        confidence=confidence(case, share, policy.OUTSIDE.value, sure=case.waits_known),
    )


def is_tiny(case: Case) -> bool:
    """A typical turn is so short that launching dominates it."""
    turn = case.mean(lambda rank: rank.typical("length"))
    return bool(case.ranks) and turn * 1e3 <= policy.TINY_STEP_MS.value


def judge_host(case: Case) -> Finding | None:
    """Small work per step: Python and launches dominate, nothing waits for input."""
    if not case.ranks:
        return None
    return _never_used(case) or _tiny_steps(case) or _gpu_starves_in_phases(case)


def _tiny_steps(case: Case) -> Finding | None:
    wait = case.mean(lambda rank: rank.typical("wait"))
    outside = case.mean(lambda rank: rank.typical("outside"))
    if not is_tiny(case) or wait * 1e3 >= policy.INPUT_WAIT_MS.value or outside * 1e3 >= policy.OUTSIDE_MS.value:
        return None
    gpu = case.gpu_mean
    if gpu is not None and gpu >= policy.COMPUTE.value:
        return None
    turn = case.mean(lambda rank: rank.typical("length"))
    rate = case.facts.steps_per_second or 1 / turn
    return Finding(
        Class.HOST_BOUND,
        f"Steps of {duration(turn)} are too small: Python and the launch of operators take most of them, not the arithmetic.",
        (
            Evidence(
                "typical turn of the loop", round(turn * 1e3, 3), policy.TINY_STEP_MS.value, unit="ms", held="good from"
            ),
            Evidence("steps a second", round(rate, 1)),
        ),
        "Give each step more work: a larger batch (raise the learning rate with it), several batches per step, or torch.compile "
        "/ CUDA graphs to launch less. A GPU gains nothing for a model this small.",
        min(max(1 - case.mean(lambda rank: rank.share_of_turns("backward")), 0.3), 0.9),
        confidence=confidence(case, policy.TINY_STEP_MS.value / max(turn * 1e3, 1e-6), 1.0, sure=case.waits_known),
    )


def _gpu_starves_in_phases(case: Case) -> Finding | None:
    """The loop is inside its phases nearly all the time, and the GPU is idle all the same."""
    gpu, idle = case.gpu_mean, case.gpu_idle
    if (
        gpu is None
        or idle is None
        or case.wait >= policy.INPUT_WAIT.value
        or outside_share(case) >= policy.OUTSIDE.value
    ):
        return None
    if gpu >= policy.PHASES_GPU_LOW.value and idle < policy.GPU_IDLE_IN_PHASES.value:
        return None
    busiest = case.gpu_busiest
    if busiest is not None and busiest >= policy.COMPUTE.value:
        return None  # one GPU is fed well: the others are a matter of balance
    if (
        not case.waits_known
        and max(case.rule_share("CPUBottleneck"), case.rule_share("IOBottleneck")) >= policy.INPUT_SYSTEM.value
    ):
        return None  # the input judge's matter
    memory = mean_or_none([one.memory for one in case.facts.gpus])
    lost = 1 - gpu / 100
    evidence = [
        Evidence(
            "mean GPU use in the loop", round(gpu, 1), policy.PHASES_GPU_LOW.value, unit="percent", held="good from"
        ),
        Evidence("GPU samples below 10 %", round(idle, 4), policy.GPU_IDLE_IN_PHASES.value, unit="share"),
    ]
    if memory is not None:
        evidence.append(Evidence("mean GPU memory in use", round(memory, 1), unit="percent"))
    return Finding(
        Class.HOST_BOUND,
        f"The GPU works only {gpu:.0f} % of the time although the loop hardly waits for data: each step gives it too little work, "
        "or the host stops to look at results.",
        tuple(evidence),
        "Try a larger batch (GPU memory has room)" * (memory is not None and memory < policy.GPU_MEMORY_ROOM.value)
        + "Look for blocking calls (.item(), .cpu(), print of tensors)"
        * (memory is None or memory >= policy.GPU_MEMORY_ROOM.value)
        + ", then torch.compile or CUDA graphs; a detailed window shows the gaps between kernels.",
        lost,
        confidence=confidence(case, policy.PHASES_GPU_LOW.value / max(gpu, 1.0), 1.0, sure=False),
    )


def _never_used(case: Case) -> Finding | None:
    gpus = case.facts.gpus
    gpu = case.gpu_mean
    if not gpus or gpu is None or gpu > policy.GPU_NEVER.value:
        return None
    return Finding(
        Class.HOST_BOUND, "The GPU was never used: the training ran on the CPU.",
        (Evidence("mean GPU use in the loop", round(gpu, 2), policy.GPU_NEVER.value, unit="percent", held="used from"),),
        'Move model and batches to the device (model.to("cuda"), batch.to("cuda")) and check that the container has a CUDA build '
        "of the framework; or take a CPU instance.",
        0.95, confidence="high",
    )  # fmt: skip


def judge_gc(case: Case) -> Finding | None:
    """Python's garbage collector stops the loop."""
    share = case.mean(lambda rank: rank.gc / rank.loop if rank.loop else 0.0)
    if share < policy.GC_SHARE.value:
        return None
    spent = case.mean(lambda rank: rank.gc)
    return Finding(
        Class.GC_BOUND,
        f"Python's garbage collector stops the loop {percent(share)} of the time ({duration(spent)} in all).",
        (Evidence("time in collections of 1 ms and more", round(share, 4), policy.GC_SHARE.value, unit="share"),),
        "Call gc.freeze() after building model and dataset, then gc.disable() with a gc.collect() every few hundred steps; and keep "
        "large numbers of small Python objects (lists of dicts, per-sample records) in arrays instead.",
        share,
        confidence=confidence(case, share, policy.GC_SHARE.value),
    )


def judge_optimizer(case: Case) -> Finding | None:
    """The optimizer takes longer than the passes."""
    share = case.mean(lambda rank: rank.share_of_turns("optimizer"))
    limit = policy.OPTIMIZER_TINY.value if is_tiny(case) else policy.OPTIMIZER.value
    if share < limit:
        return None
    typical = case.mean(lambda rank: rank.typical("optimizer"))
    return Finding(
        Class.OPTIMIZER_BOUND,
        f"The optimizer takes {percent(share)} of a training step ({duration(typical)}).",
        (
            Evidence("time in optimizer.step()", round(share, 4), limit, unit="share"),
            Evidence("optimizer in a typical step", round(typical * 1e3, 3), unit="ms"),
        ),
        "Use the fused or foreach implementation (fused=True), step less often (gradient accumulation), or leave frozen and sparse "
        "parameters out of it; check that no hook or clipping loop runs parameter by parameter.",
        share,
        confidence=confidence(case, share, limit),
    )
