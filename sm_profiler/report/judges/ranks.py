"""Several processes: who holds the others back, and what they spend on talking to each other."""

from __future__ import annotations

import numpy as np

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Rank
from sm_profiler.report.judges.judge_context import Case, confidence, duration, percent
from sm_profiler.report.judges.stalls import WHERE
from sm_profiler.report.model import Evidence, Finding
from sm_profiler.report.step_fold import COMMUNICATION

# Where ranks wait for each other, most usual place first; and where work may differ between them.
MEETINGS = ("backward", "optimizer", "outside")
WORK = ("wait", "forward", "outside", "optimizer", "backward")


def judge_straggler(case: Case) -> Finding | None:
    """The rank that waits least for the others is the one waited for."""
    ranks = case.ranks
    if len(ranks) < 2 or not _in_step(ranks):  # noqa: PLR2004 - what the number means stands in the line
        return None
    turn = float(np.median([rank.turns.length.mean() for rank in ranks]))
    means = {part: np.asarray([rank.usual(part, without_stalls=False) for rank in ranks]) for part in WORK}
    best: tuple[float, int, str, str] | None = None
    for meeting in MEETINGS:
        for part in WORK:
            if part == meeting or part in MEETINGS[: MEETINGS.index(meeting)]:
                continue
            culprit = int(means[part].argmax())
            others = np.arange(len(ranks)) != culprit
            excess = means[part][culprit] - float(np.median(means[part][others]))
            waited = float(np.median(means[meeting][others])) - means[meeting][culprit]
            lost = min(excess, waited)
            if waited >= 0.5 * excess and (best is None or lost > best[0]):
                best = lost, culprit, part, meeting
        if best is not None and best[0] / turn >= policy.STRAGGLER.value:
            break
    if best is None or best[0] / turn < policy.STRAGGLER.value:
        return None
    lost, culprit, part, meeting = best
    rank, share = ranks[culprit], best[0] / turn
    mine, theirs = means[part][culprit], float(np.median(np.delete(means[part], culprit)))
    return Finding(
        Class.STRAGGLER,
        f"Rank {rank.name} holds the others back: it spends {duration(mine)} a step {WHERE[part]}, the others {duration(theirs)}; "
        f"they wait for it {percent(share)} of the time.",
        (
            Evidence("time the other ranks wait for this one", round(share, 4), policy.STRAGGLER.value, rank.name, "share"),
            Evidence(f"mean time a step {WHERE[part]}", round(mine * 1e3, 3), round(theirs * 1e3, 3), rank.name, "ms", "others"),
            Evidence(
                f"mean time a step {WHERE[meeting]}, where ranks meet", round(means[meeting][culprit] * 1e3, 3),
                round(float(np.median(np.delete(means[meeting], culprit))) * 1e3, 3), rank.name, "ms", "others",
            ),
        ),
        _advice(rank, part),
        share,
        confidence=confidence(case, share, policy.STRAGGLER.value),
    )  # fmt: skip


def _advice(rank: Rank, part: str) -> str:
    where = f"node {rank.node}, process {rank.name}"
    if part == "wait":
        return f"Compare {where} with the others: its share of the data (size, order, length of samples), its disk, its loader's workers."
    if part == "outside":
        return f"Look for what only {where} does at each step: logging, checkpoints, metrics on rank 0. Move it off the step, or share it."
    return f"Compare {where} with the others: larger samples, throttled clocks, other load on the machine, work that only this rank does."


def _in_step(ranks: tuple[Rank, ...]) -> bool:
    """Ranks that wait for each other have turns of the same length."""
    lengths = np.asarray([rank.turns.length.mean() for rank in ranks])
    return bool(np.ptp(lengths) <= policy.IN_STEP.value * lengths.mean())


def judge_communication(case: Case) -> Finding | None:
    """Collectives take a large part of the steps in which they were recorded."""
    shares = []
    for rank in case.ranks:
        rows = (rank.steps.parts[:, COMMUNICATION] > 0) & rank.train
        if rows.sum() >= policy.MIN_STEPS.value:
            shares.append(float(rank.steps.parts[rows, COMMUNICATION].sum() / rank.steps.duration[rows].sum()))
    share = min(float(np.mean(shares)), 1.0) if shares else 0.0
    if share < policy.COMMUNICATION.value:
        return None
    return Finding(
        Class.COMMUNICATION_BOUND,
        f"Collective communication takes {percent(share)} of a training step.",
        (
            Evidence(
                "time in collectives, in the steps where they were recorded",
                round(share, 4),
                policy.COMMUNICATION.value,
                unit="share",
            ),
        ),
        "Send less or hide more: gradient accumulation with no_sync(), bf16 gradients (a DDP communication hook), larger buckets, EFA "
        "between nodes, and fewer, larger instances.",
        share,
        confidence=confidence(case, share, policy.COMMUNICATION.value, sure=False),
    )
