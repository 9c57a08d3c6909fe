"""From findings to one verdict: precedence, healthy classes, and what could not be judged."""

from __future__ import annotations

import numpy as np

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.judges import JUDGES, Case
from sm_profiler.report.judges.judge_context import percent
from sm_profiler.report.model import Evidence, Finding, Verdict

_TIER = {kind: tier for tier, kinds in enumerate(policy.PRECEDENCE) for kind in kinds}


def decide(case: Case) -> Verdict:
    """Ask every judge, then pick the finding that leads."""
    findings = [
        finding for judge in JUDGES if (finding := judge(case)) is not None and not case.gpu_hides(finding.kind)
    ]
    missing = not_judged(case)
    if not findings or all(finding.kind.is_healthy for finding in findings):
        findings.append(_healthy(case) or _inconclusive(case))
    ranked = sorted(findings, key=lambda finding: (_TIER[finding.kind], -finding.weight))
    main, also = ranked[0], ranked[1:]
    if not main.kind.is_healthy:
        also = [finding for finding in also if not finding.kind.is_healthy]
    return Verdict(main, tuple(also), tuple(missing))


def _healthy(case: Case) -> Finding | None:
    """Nothing above its threshold, and enough data to say so."""
    if not case.ranks:
        return None
    if not case.waits_known and not case.facts.gpus:
        waits = max((rank.waits_seen for rank in case.ranks), default=0.0)
        if waits == 0:
            return _balanced(case, "medium")
    return _balanced(
        case, "high" if min(len(rank.turns) for rank in case.ranks) >= policy.STEADY_STEPS.value else "medium"
    )


def _balanced(case: Case, confidence: str) -> Finding:
    phases = case.mean(lambda rank: sum(rank.share(name) for name in ("forward", "backward", "optimizer", "between")))
    evaluation = case.mean(lambda rank: rank.share("evaluation"))
    used = [Evidence("time in forward, backward and optimizer", round(phases, 4), unit="share")]
    if case.waits_known:
        wait = case.facts.average_share("wait")
        what = "time in the training loop spent waiting for data"
        used.append(Evidence(what, round(wait, 4), policy.INPUT_WAIT.value, unit="share"))
    if evaluation > 0:
        used.append(Evidence("time in evaluation", round(evaluation, 4), policy.EVALUATION.value, unit="share"))
    return Finding(
        Class.BALANCED, f"Nothing holds this job back: it computes {percent(phases + evaluation)} of the time.", tuple(used),
        "Nothing to repair. To go faster: mixed precision, torch.compile, a larger batch, or faster hardware. Compare before and "
        "after with 'sm-profiler compare'.",
        0.0, confidence=confidence,
    )  # fmt: skip


def _inconclusive(case: Case) -> Finding:
    facts = case.facts
    evidence = [
        Evidence(
            "training steps recorded",
            sum(int(rank.train.sum()) for rank in facts.ranks),
            policy.MIN_STEPS.value,
            held="judged from",
        )
    ]
    gpu = case.gpu_mean
    if gpu is not None:
        evidence.append(Evidence("mean GPU use", round(gpu, 1), policy.COMPUTE.value, unit="percent", held="good from"))
    cpu = facts.mean_of("cpu")
    if cpu is not None:
        evidence.append(Evidence("mean CPU use", round(cpu, 1), unit="percent"))
    if facts.ranks:
        text = f"Too few training steps to judge: {evidence[0].value} recorded, {policy.MIN_STEPS.value:.0f} needed."
        advice = (
            "Let the job run longer, or look again when it has: sm-profiler report --follow keeps the report current."
        )
    elif facts.system.rows:
        seen = f" (mean GPU use {gpu:.0f} %)" if gpu is not None else ""
        text = f"There are system metrics only{seen}: without training steps nobody can say what the job waits for."
        advice = (
            "Switch on step and phase recording: start the script with 'sm-profiler run', set SM_PROFILER_AUTO=1 in the container, or "
            "call Hook.create_from_config() in the script; steps, phases and waits are then recorded all the time."
        )
    else:
        text = "There is no data to judge: neither system metrics nor training steps were found."
        advice = "Check that the profiler was on (profiler_config of the estimator, or 'sm-profiler run') and that the source is its output."
    return Finding(Class.INCONCLUSIVE, text, tuple(evidence), advice, 0.0, confidence="low")


def not_judged(case: Case) -> list[tuple[str, str]]:
    """What no judge could look at, and what to switch on."""
    facts, missing = case.facts, []
    if not facts.ranks:
        missing.append(
            ("the training loop", "no steps recorded: start the script with 'sm-profiler run' or SM_PROFILER_AUTO=1")
        )
    elif not case.waits_known:
        missing.append(
            (
                "waiting for data over the whole loop",
                "recorded only inside the dataloader window; the hook of sm-profiler records it always",
            )
        )
    if not facts.gpus:
        missing.append(("GPU use", "no GPU metrics: a CPU instance, or the monitor found no driver"))
    if len(facts.ranks) > 1 and not any(rank.communication for rank in facts.ranks):
        missing.append(
            ("communication", "no collectives recorded: they need a detailed window, or Horovod's or SMDDP's timeline")
        )
    if not facts.system.rows:
        missing.append(("system metrics", "none recorded: run the monitor beside the job"))
    if not facts.memory and not np.isfinite(facts.mean_of("memory") or np.nan):
        missing.append(("memory growth", "no memory samples"))
    return missing
