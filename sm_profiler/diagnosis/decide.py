"""Reduce the findings of all judges to one verdict."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import MOSTLY_IDLE, Class
from sm_profiler.diagnosis.confidence import OTHERS_WORK, Confidence, few_steps
from sm_profiler.diagnosis.damage import disk_failure
from sm_profiler.diagnosis.extensions import more_judges
from sm_profiler.diagnosis.gain_ranking import Ranked, rank_by_gain
from sm_profiler.diagnosis.judges import JUDGES, JudgeContext
from sm_profiler.diagnosis.judges.judge_context import NO_LOADER
from sm_profiler.diagnosis.judges.loop import launches_unknown, outside_share
from sm_profiler.diagnosis.judges.slowdown import largest_slowdown
from sm_profiler.diagnosis.judges.unseen_waits import waits_unseen
from sm_profiler.diagnosis.loop_ledger import RUNNING, totals_of
from sm_profiler.diagnosis.model import Evidence, Finding, Location, Verdict
from sm_profiler.diagnosis.where import beside_the_phases, with_locations
from sm_profiler.folding.engine import error_line
from sm_profiler.formatting import percent, plural
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.unrecorded import how_to_record, why_no_steps

NO_SINGLE_CAUSE = "No single cause"
MAX_GPUS = 4  # in a sentence
UNEXPLAINED = "much of the loop is unexplained"
SHARED = "Machine shared with other processes"
# No faster step matters in a training that has stopped; ranks hang because one of them is gone.
STOPPED = (Class.DEAD_RANK, Class.UNEQUAL_STEPS, Class.HANG)


def decide(context: JudgeContext, broken: dict[str, str] | None = None) -> Verdict:
    """Find the causes of lost time: of those recognized, the one whose repair certainly saves most leads.

    It is repaired in the ledger, and the others are asked again, until nothing is worth it: symptoms vanish with their cause.

    Args:
        context: what there is to judge.
        broken: receives the names of judges that raise, each with one line about the error; default: they may raise.
    """
    found = _recognized(context, broken)
    healthy = [one for one in found if one.kind.is_healthy]
    named = _of_training([one for one in found if not one.kind.is_healthy], context)
    ranked = rank_by_gain(named, context)
    if not ranked:
        ranked = [Ranked(healthy[0] if healthy else _healthy(context) or _inconclusive(context), 0.0)]
    main, also = ranked[0].finding, [one.finding for one in ranked[1:]]
    if any(one.certain >= policy.CLOSE * ranked[0].certain for one in ranked[1:] if one.finding.of == main.of):
        main = _not_certain(main, "another finding costs about as much")
    verdict = Verdict(main, tuple(also), tuple(not_judged(context)), context.shared_wait)
    try:
        return with_locations(verdict, context.metrics)
    except Exception as error:
        if broken is None:
            raise
        broken[with_locations.__name__] = error_line(error)
        return verdict


def _recognized(context: JudgeContext, broken: dict[str, str] | None) -> list[Finding]:
    """Return the findings of all judges."""
    found = []
    for judge in (*JUDGES, *more_judges()):
        try:
            finding = judge(context)
        except Exception as error:
            if broken is None:
                raise
            broken[judge.__name__] = error_line(error)
            continue
        if finding is not None:
            found.append(finding)
    return found


def _of_training(findings: list[Finding], context: JudgeContext) -> list[Finding]:
    """Return the findings without those about a loop that did not train, and with a healthy loop named as such."""
    ranks = context.metrics.ranks
    if ranks and not any(rank.train_steps for rank in ranks):
        return [one for one in findings if one.of != "loop"]
    if [one.kind for one in findings] != [Class.INITIALIZATION_BOUND]:
        return findings
    start, healthy = findings[0], _healthy(context)
    if context.metrics.duration < policy.SHORT_RUN_S:
        start = _not_certain(start, "a short run")
    if healthy is not None and healthy.label == healthy.kind.label:
        rest = f"{start.headline[:1].lower()}{start.headline[1:]}"
        start = replace(start, headline=f"The loop is healthy; the start is what is left: {rest}")
    return [start]


def _not_certain(finding: Finding, reason: str) -> Finding:
    return replace(finding, confidence=Confidence("medium", reason)) if finding.confidence == "high" else finding


def _healthy(context: JudgeContext) -> Finding | None:
    """Return BALANCED if there are enough steps to judge from."""
    if not context.ranks:
        return None
    computing = ("between", *(part.key for part in parts.phases()))
    phases = context.mean(lambda rank: sum(rank.share(key) for key in computing))
    totals = totals_of(context.metrics)
    phases += totals.share(RUNNING) if totals else 0.0
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
    if long >= policy.NEAR * limits.FLOOR:
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
        advice = "Wrap work outside the model in 'with hook.phase(name):' so that it shows up by name, and let the job run longer."
        text += _why_not_waiting(context)
        where, label = beside_the_phases(context.metrics), NO_SINGLE_CAUSE
    unseen = waits_unseen(context)
    if unseen >= policy.UNSEEN_WAITS:
        text = f"No bottleneck found, but {percent(unseen)} of the time is spent in NumPy reads of JAX arrays, which may block on pending computation."
        advice = "Read arrays with jax.device_get(…) instead of numpy, so that these waits count as computing."
    if context.shared_wait >= policy.SHARED:
        waited = percent(context.shared_wait)
        if context.shared_wait >= policy.MOSTLY_SHARED:
            text = f"Other processes use the machine: the training waits for a core {waited} of the time, which hides any other cause."
            advice, label = (
                "Run the job on a dedicated machine, or with fewer other processes, and profile it again.",
                SHARED,
            )
        else:
            text += f" Other processes use the machine: the training waits for a core {waited} of the time."
            advice = f"Run the job on a dedicated machine, or with fewer other processes. {advice}"
    healthy = Finding(
        Class.BALANCED,
        text,
        tuple(evidence),
        advice,
        0.0,
        confidence=_confidence_in_health(context, unexplained),
        where=where,
        label=label,
    )
    return _with_idle_gpu(healthy, context.gpu_mean) if label == Class.BALANCED.label else healthy


def _with_idle_gpu(healthy: Finding, gpu: float | None) -> Finding:
    """Return an open finding instead of a healthy one if the GPU is idle most of the time."""
    if gpu is None or gpu >= policy.IDLE_GPU:
        return healthy
    return replace(
        healthy,
        headline=f"The GPU is busy only {gpu:.0f} % of the time, and no single cause explains it.",
        evidence=(
            *healthy.evidence,
            Evidence("mean GPU use in the loop", round(gpu, 1), policy.COMPUTE, unit="percent", held="good from"),
        ),
        next_step="Record a detailed window while the loop runs: it shows what the host does while the GPU is idle. A larger batch "
        "often helps.",
        label=MOSTLY_IDLE,
        confidence=Confidence("low", "no cause explains it"),
    )


def _why_not_waiting(context: JudgeContext) -> str:
    """Return why waiting for data is not named as the cause although its share exceeds the limit; "" if it does not."""
    share = context.metrics.average_share("wait")
    if not context.waits_known or share < policy.INPUT_WAIT:
        return ""
    if context.wait < policy.INPUT_WAIT:
        return (
            f" Waiting for data ({percent(share)}) is not named as the cause: it lies in a few long waits, and takes "
            f"{percent(context.wait)} of the other steps."
        )
    return f" Waiting for data ({percent(share)}) is not named as the cause: the GPU computes meanwhile."


def _confidence_in_health(context: JudgeContext, unexplained: float) -> str:
    """Return the confidence that nothing needs repair: high only if no finding is near and nothing is left unexplained.

    Other programs that take the cores stretch what computes, and so hide what waits.
    """
    if context.shared_wait >= policy.SHARED:
        return Confidence("low", OTHERS_WORK)
    if unexplained >= policy.MOSTLY_UNEXPLAINED:
        return Confidence("low", UNEXPLAINED)
    steady = context.steps >= policy.STEADY_STEPS
    blind = not context.waits_known and not context.metrics.gpus and not any(r.waits_seen for r in context.ranks)
    others = (
        context.shared_wait >= policy.CORE_WAIT or largest_slowdown(context) is not None
    )  # none that is the script's
    reasons = (
        (not steady, few_steps(context.steps)),
        (blind, "waits for data were not recorded"),
        (others, "something else slows the steps"),
        (unexplained >= policy.UNEXPLAINED, UNEXPLAINED),
        (launches_unknown(context), "the cost of launches is unknown"),
    )
    if reason := next((text for applies, text in reasons if applies), ""):
        return Confidence("medium", reason)
    near = (
        (context.wait, policy.INPUT_WAIT),
        (outside_share(context), policy.OUTSIDE),
        (context.mean(lambda rank: rank.stall_share), policy.OUTLIER_COST),
        (context.mean(lambda rank: rank.gc / rank.loop if rank.loop else 0.0), limits.FLOOR),
        (context.metrics.average_share("evaluation"), policy.EVALUATION),
        (context.mean(lambda rank: rank.share_of_iterations("optimizer")), policy.OPTIMIZER),
    )
    is_near = any(value >= policy.NEAR * threshold for value, threshold in near)
    return Confidence("medium", "a part of the loop is close to its limit") if is_near else "high"


def _inconclusive(context: JudgeContext) -> Finding:
    metrics = context.metrics
    steps = sum(int(rank.train.sum()) for rank in metrics.ranks)
    evidence = [Evidence("training steps recorded", steps, thresholds.MIN_STEPS, held="judged from")]
    gpu, cpu = context.gpu_mean, metrics.mean_of("cpu")
    if gpu is not None:
        evidence.append(Evidence("mean GPU use", round(gpu, 1), policy.COMPUTE, unit="percent", held="good from"))
    if cpu is not None:
        evidence.append(Evidence("mean CPU use", round(cpu, 1), unit="percent"))
    if metrics.ranks:
        text, advice = _too_few(context, steps)
    elif metrics.ending.first_file_s is not None and not metrics.metadata:
        text = "Nothing is recorded as a whole yet: the job is still running."
        advice = (
            f"The first file closes in {metrics.ending.first_file_s:.0f} s. 'sm-profiler watch' and 'sm-profiler serve' read open files, "
            "and 'sm-profiler report --follow' waits for them."
        )
    elif failure := disk_failure(metrics.metadata):
        text = f"The hook was on, but no training step could be stored: {failure}."
        advice = (
            "Free space on the disk of LocalPath, or name another one. SM_PROFILER_LOCAL_MAX limits what a profile keeps "
            "there."
        )
    elif metrics.metadata:
        text = f"The hook was on, but no training step {'is over yet' if metrics.running else 'was completed'}."
        advice = (
            "Look into the script's output for an error in its first step. Steps that the hook does not recognize can be marked "
            "with 'with hook.step():'."
        )
    elif metrics.system.rows and metrics.ending.launched:
        text = "No training step was seen; those of PyTorch, Keras, TensorFlow and JAX are found without changes."
        advice = (
            "A recording by start() must begin before the loop does. In a script without these frameworks, mark each step: 'from "
            "sm_profiler.hook import get_hook', then 'with get_hook().step():'. get_hook() is None in a run without the profiler."
        )
        if metrics.running:
            text = "No training step has been seen so far; the job is still running."
            advice = "'sm-profiler watch' and 'sm-profiler report --follow' show its steps once they begin."
    elif metrics.system.rows:
        seen = f" (mean GPU use {gpu:.0f} %)" if gpu is not None else ""
        why, advice = why_no_steps(metrics)
        text = f"Only system metrics were recorded{seen}; they do not show what the training loop waits for. {why}".rstrip()
    else:
        text = "There is no data to judge: neither system metrics nor training steps were found."
        advice = (
            "Check that the profiler was on (profiler_config of the estimator, or 'sm-profiler run') and that SOURCE is its "
            "output."
        )
    return Finding(Class.INCONCLUSIVE, text, tuple(evidence), advice, 0.0, confidence="low")


def _too_few(context: JudgeContext, recorded: int) -> tuple[str, str]:
    """Return the headline and the advice for a loop that is too short."""
    metrics = context.metrics
    judged = max((len(rank.iterations) for rank in metrics.ranks), default=0)
    if not recorded:
        text = "No training step was recorded, only evaluation."
    else:
        text = (
            f"Too few training steps to judge: {thresholds.MIN_STEPS:.0f} steps from one to the next are needed, and of "
            f"{plural(recorded, 'recorded step')} {judged} can be judged."
        )
    if metrics.running:
        return (
            text,
            "The job is still running: 'sm-profiler watch' and 'sm-profiler report --follow' keep the report current.",
        )
    if metrics.ending.failed:
        return text, "Repair the failure first: the job's log has the whole error. Then run at least 100 steps."
    more = "at least 100 steps, for example by a higher limit of steps or more epochs"
    windows = "; detailed windows, which are not judged, can begin later (--config)" if judged < recorded - 1 else ""
    return text, f"Run {more}{windows}."


def not_judged(context: JudgeContext) -> list[tuple[str, str]]:
    """Return what could not be judged, each with the reason or what to switch on."""
    metrics, missing = context.metrics, []
    if not metrics.ranks:
        missing.append(("the training loop", f"no steps recorded; {how_to_record(metrics)}"))
    elif not context.waits_known:
        why = "recorded in the dataloader window only; sm-profiler's hook records it for the whole loop"
        missing.append(("waiting for data over the whole loop", NO_LOADER if metrics.metadata else why))
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
        missing.append(("system metrics", "none recorded; run the monitor with the job"))
    if not metrics.memory and not np.isfinite(metrics.mean_of("memory") or np.nan):
        missing.append(("memory growth", "no memory samples"))
    return missing
