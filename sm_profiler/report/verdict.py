"""Reduce the findings of all judges to one verdict."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.report import parts, policy
from sm_profiler.report.classes import Class
from sm_profiler.report.explaining import without_symptoms
from sm_profiler.report.formatting import percent
from sm_profiler.report.judges import JUDGES, JudgeContext
from sm_profiler.report.judges.loop import launches_unknown, outside_share
from sm_profiler.report.judges.slowdown import largest_slowdown
from sm_profiler.report.judges.unseen_waits import waits_unseen
from sm_profiler.report.model import Evidence, Finding, Location, Verdict
from sm_profiler.report.where import beside_the_phases, with_locations
from sm_profiler.rules.profiler_report import one_line

NO_SINGLE_CAUSE = "No single cause"
MAX_GPUS = 4  # in a sentence
SHARED = "Others use the machine"
_TIER = {kind: tier for tier, kinds in enumerate(policy.PRECEDENCE) for kind in kinds}


def decide(context: JudgeContext, broken: dict[str, str] | None = None) -> Verdict:
    """Call every judge and pick the finding that leads.

    Args:
        context: what there is to judge.
        broken: receives the names of judges that raise, each with one line about the error; default: they may raise.
    """
    findings = []
    for judge in JUDGES:
        try:
            finding = judge(context)
        except Exception as error:
            if broken is None:
                raise
            broken[judge.__name__] = one_line(error)
            continue
        seen = context.beside_gpu(finding) if finding is not None else None
        if seen is not None and not context.gpu_hides(seen.kind):
            findings.append(seen)
    findings = without_symptoms(findings)
    if all(finding.kind.is_healthy for finding in findings):
        findings.append(_healthy(context) or _inconclusive(context))
    worth = {finding.kind: _worth(finding, findings) for finding in findings}
    ranked = sorted(findings, key=lambda finding: (_TIER[finding.kind], -worth[finding.kind]))
    main, also = ranked[0], [finding for finding in ranked[1:] if not finding.kind.is_healthy]
    if any(worth[other.kind] >= policy.CLOSE * worth[main.kind] for other in also if other.of == main.of):
        main = _not_certain(main)
    verdict = Verdict(main, tuple(also), tuple(not_judged(context)))
    try:
        return with_locations(verdict, context.metrics)
    except Exception as error:
        if broken is None:
            raise
        broken[with_locations.__name__] = one_line(error)
        return verdict


def _worth(finding: Finding, findings: list[Finding]) -> float:
    """Return the share of the time that the repair of a finding is expected to gain."""
    causes = [one.share_of_time for one in findings if finding.kind in policy.EXPLAINS.get(one.kind, ())]
    left = max(finding.weight - max(causes, default=0.0), 0.0)
    return left * policy.PROBABILITY[finding.confidence]


def _not_certain(finding: Finding) -> Finding:
    return attrs.evolve(finding, confidence="medium") if finding.confidence == "high" else finding


def _healthy(context: JudgeContext) -> Finding | None:
    """Return BALANCED if there are enough steps to judge from."""
    if not context.ranks:
        return None
    computing = ("between", *(part.key for part in parts.phases()))
    phases = context.mean(lambda rank: sum(rank.share(key) for key in computing))
    evaluation = context.mean(lambda rank: rank.share("evaluation"))
    long = context.mean(lambda rank: rank.stall_share)
    unexplained = 1 - phases - evaluation + long
    evidence = [Evidence("time in forward, backward and optimizer", round(phases, 4), unit="share")]
    if context.waits_known:
        wait = context.metrics.average_share("wait")
        name = "time in the training loop spent waiting for data"
        evidence.append(Evidence(name, round(wait, 4), policy.INPUT_WAIT, unit="share"))
    if evaluation > 0:
        evidence.append(Evidence("time in evaluation", round(evaluation, 4), policy.EVALUATION, unit="share"))
    if long >= policy.NEAR * policy.STALL_COST:
        evidence.append(Evidence("time lost in long steps", round(long, 4), policy.OUTLIER_COST, unit="share"))
    if context.core_wait >= policy.CORE_WAIT:
        name = "time the main thread waits for a core"
        evidence.append(Evidence(name, round(context.core_wait, 4), policy.CORE_WAIT, unit="share"))
    where: tuple[Location, ...] = ()
    label = Class.BALANCED.label
    text = f"No bottleneck found: the job computes {percent(phases + evaluation)} of the time."
    advice = (
        f"Nothing needs repair. To go faster, try mixed precision, {context.stack.compiler}, a larger batch, or faster hardware, and "
        "compare the runs with 'sm-profiler compare'."
    )
    if unexplained >= policy.UNEXPLAINED:
        text = f"There is no single cause, but {percent(min(unexplained, 1.0))} of the loop is not spent computing."
        advice = (
            "Mark what the loop does beside the model with 'with hook.phase(name):', so that it is measured by name, and let the "
            "job run longer."
        )
        where, label = beside_the_phases(context.metrics), NO_SINGLE_CAUSE
    unseen = waits_unseen(context)
    if unseen >= policy.UNSEEN_WAITS:
        text = f"No bottleneck found, but numpy reads JAX's arrays {percent(unseen)} of the time, and may wait for them unseen."
        advice = "Read arrays with jax.device_get(…) instead of numpy, so that these waits count as computing."
    if context.shared_wait >= policy.SHARED:
        waited = percent(context.shared_wait)
        if context.shared_wait >= policy.MOSTLY_SHARED:
            text = f"Other processes use the machine: the training waits for a core {waited} of the time, which hides any other cause."
            advice, label = (
                "Give the job a machine of its own, or fewer processes beside it, and profile it again.",
                SHARED,
            )
        else:
            text += f" Other processes use the machine: the training waits for a core {waited} of the time."
            advice = f"Give the job a machine of its own, or fewer processes beside it. {advice}"
    return Finding(
        Class.BALANCED,
        text,
        tuple(evidence),
        advice,
        0.0,
        confidence=_confidence_in_health(context, unexplained),
        where=where,
        label=label,
    )


def _confidence_in_health(context: JudgeContext, unexplained: float) -> str:
    """Return the confidence that nothing needs repair: high only if no finding is near and nothing is left unexplained.

    Other programs that take the cores stretch what computes, and so hide what waits.
    """
    if unexplained >= policy.MOSTLY_UNEXPLAINED or context.shared_wait >= policy.SHARED:
        return "low"
    steady = context.steps >= policy.STEADY_STEPS
    blind = not context.waits_known and not context.metrics.gpus and not any(r.waits_seen for r in context.ranks)
    others = (
        context.shared_wait >= policy.CORE_WAIT or largest_slowdown(context) is not None
    )  # none that is the script's
    if not steady or blind or others or unexplained >= policy.UNEXPLAINED or launches_unknown(context):
        return "medium"
    near = (
        (context.wait, policy.INPUT_WAIT),
        (outside_share(context), policy.OUTSIDE),
        (context.mean(lambda rank: rank.stall_share), policy.OUTLIER_COST),
        (context.mean(lambda rank: rank.gc / rank.loop if rank.loop else 0.0), policy.GC_SHARE),
        (context.metrics.average_share("evaluation"), policy.EVALUATION),
        (context.mean(lambda rank: rank.share_of_iterations("optimizer")), policy.OPTIMIZER),
    )
    return "medium" if any(value >= policy.NEAR * threshold for value, threshold in near) else "high"


def _inconclusive(context: JudgeContext) -> Finding:
    metrics = context.metrics
    steps = sum(int(rank.train.sum()) for rank in metrics.ranks)
    evidence = [Evidence("training steps recorded", steps, policy.MIN_STEPS, held="judged from")]
    gpu, cpu = context.gpu_mean, metrics.mean_of("cpu")
    if gpu is not None:
        evidence.append(Evidence("mean GPU use", round(gpu, 1), policy.COMPUTE, unit="percent", held="good from"))
    if cpu is not None:
        evidence.append(Evidence("mean CPU use", round(cpu, 1), unit="percent"))
    if metrics.ranks:
        text = f"Too few training steps to judge: {steps} recorded, {policy.MIN_STEPS:.0f} needed."
        advice = "Let the job run longer; 'sm-profiler report --follow' keeps the report current."
    elif metrics.metadata:
        text = f"The hook was on, but no training step {'is over yet' if metrics.running else 'was completed'}."
        advice = (
            "Look into the script's output for an error in its first step. Steps that the hook does not recognize can be marked "
            "with 'with hook.step():'."
        )
    elif metrics.system.rows:
        seen = f" (mean GPU use {gpu:.0f} %)" if gpu is not None else ""
        text = f"Only system metrics were recorded{seen}; they do not show what the training loop waits for."
        advice = (
            "Record steps and phases: start the script with 'sm-profiler run', set SM_PROFILER_AUTO=1 in the container, or call "
            "Hook.create_from_config() in the script. Steps, phases and waits are then recorded all the time."
        )
    else:
        text = "There is no data to judge: neither system metrics nor training steps were found."
        advice = (
            "Check that the profiler was on (profiler_config of the estimator, or 'sm-profiler run') and that SOURCE is its "
            "output."
        )
    return Finding(Class.INCONCLUSIVE, text, tuple(evidence), advice, 0.0, confidence="low")


def not_judged(context: JudgeContext) -> list[tuple[str, str]]:
    """Return what could not be judged, each with the reason or what to switch on."""
    metrics, missing = context.metrics, []
    if not metrics.ranks:
        missing.append(
            ("the training loop", "no steps recorded; start the script with 'sm-profiler run' or SM_PROFILER_AUTO=1")
        )
    elif not context.waits_known:
        missing.append(
            (
                "waiting for data over the whole loop",
                "recorded in the dataloader window only; sm-profiler's hook always records it",
            )
        )
    if metrics.others_gpus:
        names = ", ".join(f"{device} of {node}" for node, device in metrics.others_gpus[:MAX_GPUS])
        more = " and others" if len(metrics.others_gpus) > MAX_GPUS else ""
        missing.append(("GPU use", f"the training used no GPU; other programs kept {names}{more} busy"))
    elif not metrics.gpus:
        missing.append(("GPU use", "no GPU metrics; a CPU instance, or the monitor found no driver"))
    if len(metrics.ranks) > 1 and not any(rank.communication for rank in metrics.ranks):
        missing.append(
            (
                "communication",
                "no collectives recorded; they need a detailed window, or the timeline of Horovod or SMDDP",
            )
        )
    if not metrics.system.rows:
        missing.append(("system metrics", "none recorded; run the monitor beside the job"))
    if not metrics.memory and not np.isfinite(metrics.mean_of("memory") or np.nan):
        missing.append(("memory growth", "no memory samples"))
    return missing
