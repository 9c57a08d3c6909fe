"""Judge of JAX's operations that run one by one, because the script has not compiled them."""

from __future__ import annotations

import re

import attrs
import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.written import BESIDE_THE_PHASES
from sm_profiler.diagnosis.loop_ledger import RUNNING
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.diagnosis.where import lines_of_samples
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, number, percent
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.sample_fold import Sampled

ONE_BY_ONE = "time of a training step in operations that run one by one"
# Innermost functions while JAX launches operations; all other functions of JAX wait for results, compile or call back.
_LAUNCHES = re.compile(
    r"(?:jax\._src\.(?:core|dispatch|pjit|traceback_util|interpreters|lax|numpy|nn|scipy|linear_util|custom_derivatives|random|"
    r"prng|ad_util|ad_checkpoint|api_util|tree_util|util|dtypes|config|typing|op_shardings|sharding_impls|named_sharding|mesh)"
    r"|optax|chex)\b"
)


@attrs.frozen
class _Calls:
    """Gradient functions that are not compiled.

    Attributes:
        operators: operations of a call.
        fixed: seconds that each takes, however little it computes.
        share: part of a call that this is.
    """

    operators: float
    fixed: float
    share: float


def _uncompiled(context: JudgeContext) -> _Calls | None:
    """Return what the hook measured; None if the gradients are compiled."""
    records = context.metrics.records.get(event_names.OPERATORS)
    found = []
    for record in records.longest if records else ():
        count, fixed, call = (number(record.args.get(name)) for name in ("operators", "fixed_us", "call_us"))
        if count > 0 and fixed > 0 and call > 0:
            found.append((count, fixed / 1e6, min(count * fixed / call, 1.0)))
    return _Calls(*map(float, np.median(found, axis=0))) if found else None


def judge_one_by_one(context: JudgeContext) -> Finding | None:
    """Find operations outside compiled functions: a step without jax.jit, or one of which a part is compiled."""
    gpu = context.gpu_mean
    if context.stack.compiler != "jax.jit" or not context.ranks or (gpu is not None and gpu >= policy.COMPUTE):
        return None
    calls = _uncompiled(context)
    compiled = context.mean(lambda rank: rank.share_of_iterations("compiled", without_stalls=True))
    inside = compiled * calls.share if calls is not None else 0.0
    outside, count = _sampled(context)
    share = min(inside + outside, 1.0)
    if share < policy.ONE_BY_ONE:
        return None
    whole = calls is not None
    step = context.mean(lambda rank: rank.median("length"))
    cost = (
        f": {calls.operators:,.0f} operations of the gradients at {duration(calls.fixed)} each, however little they compute"
        if calls is not None
        else ", beside the compiled function"
    )
    evidence = [Evidence(ONE_BY_ONE, round(share, 4), policy.ONE_BY_ONE, unit="share")]
    if calls is not None:
        evidence += [
            Evidence("operations of the gradients", round(calls.operators)),
            Evidence("fixed cost of such an operation on this machine", round(calls.fixed * 1e3, 5), unit="ms"),
        ]
    if outside > 0:
        evidence.append(Evidence("samples in JAX's own Python outside compiled functions", count))
    return Finding(
        Class.HOST_BOUND,
        f"{percent(share)} of each {duration(step)} step goes into dispatching uncompiled JAX operations{cost}.",
        tuple(evidence),
        "Write the step as one function (gradients, the optimizer's update, metrics) and compile it once, before the loop: "
        "step = jax.jit(step)."
        if whole
        else "Move these lines into the compiled function, so that one call runs the whole step: gradients, the optimizer's "
        "update (tx.update and optax.apply_updates) and metrics.",
        share,
        confidence=context.confidence(
            share, policy.ONE_BY_ONE, sure=whole, error=share * policy.LAUNCHES_ERROR if whole else _error(outside, count)
        ),
        where=lines_of_samples(context.metrics, lambda one: _launches(one, inside=whole)),
    )  # fmt: skip


def most_saved(context: JudgeContext) -> float | None:
    """Return the share of a step that compiling it could save at most; None if the gradients are compiled.

    That is all of it but what waits or is the script's own: what the operations compute is fused, too.
    """
    if _uncompiled(context) is None:
        return None
    compiled = context.mean(lambda rank: rank.share_of_iterations("compiled", without_stalls=True))
    return min(compiled + _sampled(context)[0], 1.0)


def _launches(one: Sampled, *, inside: bool) -> bool:
    in_part = one.phase in BESIDE_THE_PHASES or (inside and one.phase == "compiled")
    return in_part and not one.long and _LAUNCHES.match(one.leaf) is not None


def _sampled(context: JudgeContext) -> tuple[float, int]:
    """Return the share of usual steps in which operations are launched outside compiled functions, and the samples of it."""
    stacks = [
        one
        for one in context.metrics.samples.stacks
        if _launches(one, inside=False) and context.seen.activity(one) != RUNNING
    ]
    count = sum(one.count for one in stacks)
    if count < policy.ONE_BY_ONE_SAMPLES:
        return 0.0, count

    def of(rank: Rank) -> float:
        spent = sum(one.seconds for one in stacks if one.process == rank.name)
        usual = float(rank.iterations.length[~rank.stalls.long].sum()) * rank.scale
        return min(spent / usual, 1.0) if usual > 0 else 0.0

    return context.mean(of), count


def _error(share: float, count: int) -> float:
    return float(share * (max(1 - share, 0.0) / max(count, 1)) ** 0.5)
