"""Judges of several processes: stragglers, and time spent in collectives."""

from __future__ import annotations

import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.formatting import duration, percent
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.step_fold import COMMUNICATION

MEETINGS = ("backward", "optimizer", "outside")  # parts in which ranks wait for each other, the most usual one first


def judge_straggler(context: JudgeContext) -> Finding | None:
    """Find the rank that the others wait for: it has more work and waits less than they do."""
    ranks = context.ranks
    if len(ranks) <= 1 or not in_step(ranks):
        return None
    iteration = float(np.median([rank.iterations.length.mean() for rank in ranks]))
    work = [key for key in parts.iteration_keys() if key not in MEETINGS] + list(reversed(MEETINGS))
    means = {key: np.asarray([rank.mean(key, without_stalls=False) for rank in ranks]) for key in work}
    best: tuple[float, int, str, str] | None = None
    for meeting in MEETINGS:
        for part in work:
            if part == meeting or part in MEETINGS[: MEETINGS.index(meeting)]:
                continue
            slowest = int(means[part].argmax())
            others = np.arange(len(ranks)) != slowest
            excess = means[part][slowest] - float(np.median(means[part][others]))
            waited = float(np.median(means[meeting][others])) - means[meeting][slowest]
            lost = min(excess, waited)
            if waited >= policy.WAITED * excess and (best is None or lost > best[0]):
                best = lost, slowest, part, meeting
        if best is not None and best[0] / iteration >= policy.STRAGGLER:
            break
    if best is None or best[0] / iteration < policy.STRAGGLER:
        return None
    lost, slowest, part, meeting = best
    rank, share = ranks[slowest], lost / iteration
    waits = np.asarray([context.core_wait_of(one) for one in ranks])
    without_core = float(waits[slowest] - np.median(np.delete(waits, slowest)))
    own, theirs = means[part][slowest], float(np.median(np.delete(means[part], slowest)))
    return Finding(
        Class.STRAGGLER,
        f"Rank {rank.name} delays the others: it spends {duration(own)} per step {parts.during(part)}, the others "
        f"{duration(theirs)}. They wait for it {percent(share)} of the time.",
        (
            Evidence("time the other ranks wait for this one", round(share, 4), policy.STRAGGLER, rank.name, "share"),
            Evidence(f"mean time per step {parts.during(part)}", round(own * 1e3, 3), round(theirs * 1e3, 3), rank.name, "ms", "others"),
            Evidence(
                f"mean time per step {parts.during(meeting)}, where ranks meet", round(means[meeting][slowest] * 1e3, 3),
                round(float(np.median(np.delete(means[meeting], slowest))) * 1e3, 3), rank.name, "ms", "others",
            ),
            *(
                [Evidence("time waiting for a core", round(float(waits[slowest]), 4), round(float(waits[slowest]) - without_core, 4), rank.name, "share", "others")]
                if without_core >= policy.CORE_WAIT
                else []
            ),
        ),
        _advice(rank, part),
        share,
        # other processes on the machine may hit any rank, and another one the next time
        confidence="low" if without_core >= policy.EXPLAINED * share else context.confidence(share, policy.STRAGGLER),
    )  # fmt: skip


def _advice(rank: Rank, part: str) -> str:
    process = f"node {rank.node}, process {rank.name}"
    if part == "wait":
        return (
            f"Compare {process} with the others: its share of the data (size, order, length of samples), its disk, its loader "
            "workers."
        )
    if part == "outside":
        return (
            f"Find what only {process} does at each step: logging, checkpoints, metrics on rank 0. Move it out of the step, or "
            "distribute it."
        )
    return (
        f"Compare {process} with the others: larger samples, throttled clocks, other load on the machine, work that only this "
        "rank does."
    )


def in_step(ranks: tuple[Rank, ...]) -> bool:
    """Return whether the ranks wait for each other, so that their iterations are equally long."""
    lengths = np.asarray([rank.iterations.length.mean() for rank in ranks])
    return bool(np.ptp(lengths) <= policy.IN_STEP * lengths.mean())


def judge_communication(context: JudgeContext) -> Finding | None:
    """Find collectives that take a large part of the steps in which they were recorded."""
    shares = []
    for rank in context.ranks:
        communication = rank.steps.seconds(COMMUNICATION)
        rows = (communication > 0) & rank.train
        if rows.sum() >= thresholds.MIN_STEPS:
            shares.append(float(communication[rows].sum() / (rank.steps.duration[rows].sum() / 1e6)))
    share = min(float(np.mean(shares)), 1.0) if shares else 0.0
    if share < policy.COMMUNICATION:
        return None
    return Finding(
        Class.COMMUNICATION_BOUND,
        f"Collective communication takes {percent(share)} of a training step.",
        (
            Evidence(
                "time in collectives, in the steps in which they were recorded", round(share, 4), policy.COMMUNICATION,
                unit="share",
            ),
        ),
        "Send less or overlap more: gradient accumulation with no_sync(), bf16 gradients (a DDP communication hook), larger "
        "buckets, EFA between nodes, or fewer, larger instances.",
        share,
        confidence=context.confidence(share, policy.COMMUNICATION, sure=False),
    )  # fmt: skip
