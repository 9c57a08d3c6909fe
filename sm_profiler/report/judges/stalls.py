"""Single long steps: with a period or without."""

from __future__ import annotations

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Rank
from sm_profiler.report.judges.judge_context import Case, confidence, duration, input_bursts, percent
from sm_profiler.report.model import Evidence, Finding

WHERE = {
    "wait": "while waiting for data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "outside": "outside the phases",
    "unknown": "in a part that was not recorded",
}


def _worst(case: Case) -> Rank | None:
    ranks = [rank for rank in case.ranks if rank.stalls.count and not input_bursts(rank, case.facts)]
    return max(ranks, key=lambda rank: rank.stall_share, default=None)


def judge_periodic(case: Case) -> Finding | None:
    """Every N-th step is long."""
    rank = _worst(case)
    if rank is None or rank.stalls.period is None or rank.stall_share < policy.STALL_COST.value:
        return None
    stalls, period = rank.stalls, rank.stalls.period
    about = "" if stalls.exact else "about "
    where = WHERE[stalls.where]
    return Finding(
        Class.PERIODIC_STALL,
        f"Every {about}{period} steps one takes {duration(stalls.typical)} instead of {duration(stalls.median)}, {where}; that costs "
        f"{percent(rank.stall_share)} of the loop.",
        (
            Evidence(
                "time lost in long steps", round(rank.stall_share, 4), policy.STALL_COST.value, rank.name, "share"
            ),
            Evidence("period", period, None, rank.name, "steps"),
            Evidence("long steps", stalls.count, policy.PERIOD_REPEATS.value, rank.name, held="judged from"),
            Evidence(
                "a long step takes",
                round(stalls.typical * 1e3, 3),
                round(stalls.median * 1e3, 3),
                rank.name,
                "ms",
                "usually",
            ),
        ),
        _periodic_advice(stalls.where, period, case),
        rank.stall_share,
        confidence=confidence(case, rank.stall_share, policy.STALL_COST.value, sure=stalls.exact),
    )


def _periodic_advice(where: str, period: int, case: Case) -> str:
    if where == "wait":
        workers = case.facts.loader.num_workers
        start = "The loader's workers start anew" if workers > 0 else "The dataset or the loader starts anew"
        return f"{start} every {period} steps (an epoch?): persistent_workers=True, and a cheap __iter__ of dataset and sampler."
    if where in ("outside", "unknown"):
        return (
            f"Look for what the script does every {period} steps between optimizer and next batch: checkpoint, evaluation, logging, "
            "image summaries. Do it less often, or in a thread or process of its own (asynchronous checkpoint)."
        )
    return (
        f"Look for what happens every {period} steps inside this phase: a callback, a hook, a change of shapes that compiles or "
        "allocates anew, a synchronisation."
    )


def judge_outliers(case: Case) -> Finding | None:
    """Rare long steps without a period."""
    rank = _worst(case)
    if (
        rank is None
        or rank.stalls.period is not None
        or rank.stall_share < policy.OUTLIER_COST.value
        or not rank.stalls.is_rare
        or rank.stalls.typical < policy.OUTLIER_LENGTH.value * rank.stalls.median
        or rank.stalls.agreement < policy.SAME_PART.value
    ):
        return None
    stalls = rank.stalls
    return Finding(
        Class.STEP_OUTLIERS,
        f"{stalls.count} of {len(rank.turns)} steps take {duration(stalls.typical)} instead of {duration(stalls.median)}, "
        f"{WHERE[stalls.where]}, without a period; they cost {percent(rank.stall_share)} of the loop.",
        (
            Evidence(
                "time lost in long steps", round(rank.stall_share, 4), policy.OUTLIER_COST.value, rank.name, "share"
            ),
            Evidence("long steps", stalls.count, None, rank.name),
            Evidence(
                "a long step takes",
                round(stalls.typical * 1e3, 3),
                round(stalls.median * 1e3, 3),
                rank.name,
                "ms",
                "usually",
            ),
        ),
        "See in the timeline what coincides with them: odd samples (very long sequences, large images), retries of a remote "
        "store, shapes that compile anew, other load on the machine.",
        rank.stall_share,
        confidence=confidence(case, rank.stall_share, policy.OUTLIER_COST.value),
    )
