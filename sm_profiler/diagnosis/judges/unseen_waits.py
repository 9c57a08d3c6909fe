"""Waits for results that the hook cannot see: numpy reads an array of JAX in C, and on a CPU waits there until it is computed."""

from __future__ import annotations

import re

import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.sample_fold import Sampled
from sm_profiler.metrics.step_fold import RESULTS

CONVERTS = re.compile(r"\b(?:np|onp|numpy)\.(?:as\w*array|ascontiguousarray|array|copyto|float\d+)\b|\bmemoryview\(")
PHASES = ("outside", "between", "end")
JAX = "jax"


def long_steps_may_wait(rank: Rank, context: JudgeContext) -> bool:
    """Return whether the long steps of a process are those that wait, unseen, for what the steps before them compute.

    Their samples lie in lines that hand arrays to numpy, and no wait for results was recorded in them: after one, nothing is
    left to wait for.
    """
    if not _is_possible(rank, context) or not rank.stalls.count:
        return False
    rows = np.flatnonzero(rank.train)
    places = rank.iterations.place[rank.stalls.long]
    results = rank.steps.seconds(RESULTS)[rows[places[places < len(rows)]]]
    if len(results) and float((results > 0).mean()) >= policy.EXPLAINED:
        return False
    long = [one for one in _sampled(rank, context) if one.long and one.phase in PHASES]
    taken = sum(one.seconds for one in long)
    return taken > 0 and sum(one.seconds for one in long if _converts(one, context)) >= policy.EXPLAINED * taken


def waits_unseen(context: JudgeContext) -> float:
    """Return the share of the loop in lines that hand arrays of JAX to numpy, beside the phases; the least of the ranks."""

    def of(rank: Rank) -> float:
        if not _is_possible(rank, context) or rank.loop <= 0:
            return 0.0
        found = [one for one in _sampled(rank, context) if one.phase in PHASES and _converts(one, context)]
        return min(sum(one.seconds for one in found) / rank.loop, 1.0)

    return min((of(rank) for rank in context.ranks), default=0.0)


def _is_possible(rank: Rank, context: JudgeContext) -> bool:
    """Return whether a process computes with JAX, and not on a GPU: from there arrays are copied, which the hook sees."""
    frameworks = {str(one.get("framework")) for one in context.metrics.metadata}
    return frameworks == {JAX} and not context.metrics.gpus and not rank.on_device


def _sampled(rank: Rank, context: JudgeContext) -> list[Sampled]:
    return [one for one in context.metrics.samples.stacks if one.process == rank.name and one.places]


def _converts(one: Sampled, context: JudgeContext) -> bool:
    """Return whether a stack ends in a line that hands an array to numpy, or in JAX, which does so for a tree."""
    in_tree = not one.leaf or "tree" in one.leaf
    return in_tree and CONVERTS.search(context.metrics.samples.source(one.places[-1])) is not None
