"""Judges of the loop beside computing: time outside the phases, tiny steps, garbage collection, the optimizer."""

from __future__ import annotations

import math
import re
from collections import defaultdict

import attrs
import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.judges.judge_context import JudgeContext, declared_shares, mean_or_none
from sm_profiler.diagnosis.judges.one_by_one import judge_one_by_one
from sm_profiler.diagnosis.judges.stack import KERAS
from sm_profiler.diagnosis.judges.unseen_waits import waits_unseen
from sm_profiler.diagnosis.judges.written import BESIDE_THE_PHASES
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.diagnosis.where import BESIDE_THE_LOOP, IMPORT, lines_of_samples
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, number, percent, shorten
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.sample_fold import Place
from sm_profiler.metrics.step_fold import GC
from sm_profiler.printable import printable

MAX_NAME = 40  # of a phase, in a sentence
UPDATES = re.compile(r"\.grad\b|\bgrads?\b|\.(add|sub|mul|addcdiv|addcmul|lerp|copy|zero)_\(")  # of parameters, by hand
# Innermost functions that compute gradients without a call of backward(): torch.autograd.grad, torch.func.
GRADIENTS = re.compile(r"^torch\.(_functorch|func|_decomp|autograd\.(graph|functional|_make_grads|grad$))\b")
READS = re.compile(r"\.(item|cpu|tolist|numpy)\(\)|synchronize\(|\bfloat\(\w*loss")  # and wait for the device


def outside_share(context: JudgeContext) -> float:
    """Return the share of the iterations outside phases and waits, without long iterations and collections.

    The smaller of mean and median, because what happens in some steps only is not a cost of every step. A thread that
    waits for a core does so in any part of a step: medians of the parts are without these waits, that of the step is not.
    """

    def of(rank: Rank) -> float:
        length = _usual_length(rank)
        median = rank.median("outside") / length if length > 0 else 0.0
        return min(rank.share_of_iterations("outside", without_stalls=True), median)

    collections = context.mean(lambda rank: max(rank.gc - rank.gc_in_wait, 0.0) / rank.loop if rank.loop else 0.0)
    return max(context.mean(of) - collections, 0.0)


def _usual_length(rank: Rank) -> float:
    return sum(rank.median(key) for key in parts.iteration_keys())


def usual_length(context: JudgeContext) -> float:
    """Return the seconds of a usual step, of which `outside_share` is a share: the sum of the medians of its parts."""
    return context.mean(_usual_length)


def other_share(context: JudgeContext) -> float:
    """Return the same without what has a name of its own: saving, logging, callbacks, making batches, copies."""
    return outside_share(context) * context.unnamed()


_LARGER_BATCH = " Steps this short make per-step trainer overhead visible; a larger batch means fewer steps."


def judge_sync(context: JudgeContext) -> Finding | None:
    """Find logging, `.item()`, metrics or checkpoints at every step."""
    update = _update_by_hand(context)
    limit, rest = _beside_the_model(context, update)
    share, iteration = other_share(context) * rest, usual_length(context)
    outside = share * iteration
    if share < limit or outside * 1e3 < policy.OUTSIDE_MS or _is_small_for_trainer(context):
        return _waits_for_gpu(context)
    return Finding(
        Class.SYNC_BOUND,
        f"{percent(share)} of each training step is spent outside the model, {'its update' if update else 'the optimizer'} and data "
        f"loading: {duration(outside)} of a typical step of {duration(iteration)}.",
        (
            Evidence("time of a training step in other code", round(share, 4), limit, unit="share"),
            Evidence("the same in a typical step", round(outside * 1e3, 3), policy.OUTSIDE_MS, unit="ms"),
        ),
        "Check what runs at every step besides the model: preparing batches, metrics, logging, .item() of the loss, an average "
        "of the weights, writing files. Let loader workers prepare batches, and do the rest, including reads from the device, "
        "only every 50 steps."
        f"{_LARGER_BATCH if iteration * 1e3 < policy.SMALL_STEP_MS else ''}",
        share,
        confidence=context.confidence(
            share,
            limit,
            sure=context.waits_known,
            error=context.share_error(lambda one: one.iterations.of("outside")),
        ),
    )


def _is_small_for_trainer(context: JudgeContext) -> bool:
    """Return whether steps are small, and what lies beside their phases is code of a library whose loop the script calls.

    Then one line of the script, such as `model.fit(…)`, is the innermost one of several phases and of what lies beside them.
    Keras's loop runs code of the script in callbacks only, which are no part of a step, so that samples must show
    otherwise. What a trainer does at each step costs the same however large the batch is.
    """
    if _typical(context, "length") * 1e3 >= policy.SMALL_STEP_MS:
        return False
    stacks = [one for one in context.metrics.samples.stacks if one.places and not one.long]
    names = {"wait", *(part.key for part in parts.phases())}
    phases: dict[Place, set[str]] = defaultdict(set)
    for one in stacks:
        if one.phase in names:
            phases[one.places[-1]].add(one.phase)
    calls = {place for place, found in phases.items() if len(found) > 1}
    beside = [one for one in stacks if one.phase in BESIDE_THE_PHASES]
    trainers = sum(one.count for one in beside if one.places[-1] in calls)
    scripts = sum(one.count for one in beside if one.places[-1] not in calls)
    chance = policy.SURE_SIGMAS * math.sqrt(trainers + scripts)
    return trainers - scripts > (-chance if context.stack is KERAS else chance)


def _waits_for_gpu(context: JudgeContext) -> Finding | None:
    """Find lines that read results from a GPU which is idle afterwards, because nothing was launched ahead."""
    spare, gpu = context.gpu_spare, context.gpu_mean
    if gpu is None or gpu <= thresholds.GPU_NEVER:
        return None
    samples = context.metrics.samples
    inside = [one for one in samples.stacks if one.places and not one.long and one.phase not in BESIDE_THE_LOOP]
    reads = [one for one in inside if READS.search(samples.source(one.places[-1]))]
    total = sum(one.seconds for one in inside)
    waits = sum(one.seconds for one in reads) / total if total > 0 else 0.0
    share = min(waits, spare)
    if share < policy.OUTSIDE or sum(one.count for one in reads) < policy.TRANSFER_SAMPLES:
        return None
    return Finding(
        Class.SYNC_BOUND,
        f"The training thread waits {percent(waits)} of the loop in lines that read results from the GPU, which is idle "
        f"{percent(spare)} of the time because nothing is launched ahead.",
        (
            Evidence("time of the training thread in these lines", round(waits, 4), policy.OUTSIDE, unit="share"),
            Evidence("time in which the GPU is idle", round(spare, 4), policy.OUTSIDE, unit="share"),
        ),
        "Keep losses, norms and metrics on the device and read them every 50th step, all at once: torch.stack(values).cpu().",
        share,
        confidence=Confidence("medium", "the part of the idle time that these lines cause is unknown"),
        where=lines_of_samples(
            context.metrics,
            lambda one: bool(one.places) and not one.long and READS.search(samples.source(one.places[-1])) is not None,
        ),
    )


def _beside_the_model(context: JudgeContext, update: float | None) -> tuple[float, float]:
    """Return from which share of a step the time outside the phases is a finding, and how much of it is not the model's.

    Args:
        context: what there is to judge.
        update: what `_update_by_hand` returns.
    """
    limit = policy.OUTSIDE_BY_HAND if update is None else policy.OUTSIDE
    return limit, (1 - (update or 0.0)) * (1 - _gradients_by_hand(context))


def _update_by_hand(context: JudgeContext) -> float | None:
    """Return the share of the time outside the phases in which the script updates its parameters itself; None if unknown."""
    if any(rank.slices["optimizer"] for rank in context.ranks):
        return 0.0
    samples = context.metrics.samples
    beside = [one for one in samples.stacks if one.places and not one.long and one.phase in BESIDE_THE_PHASES]
    update = [one for one in beside if UPDATES.search(samples.source(one.places[-1]))]
    if sum(one.count for one in beside) < policy.OUTSIDE_SAMPLES or not update:
        return None
    return sum(one.seconds for one in update) / sum(one.seconds for one in beside)


def _gradients_by_hand(context: JudgeContext) -> float:
    """Return the share of the time outside the phases in lines that compute gradients as functions of their inputs.

    The hook times forward() and backward(); torch.func.grad, vmap and torch.autograd.grad are neither. A line of which a
    part was timed as backward() is none of them, though samples at its edges may lie outside the phase.
    """
    stacks = context.metrics.samples.stacks
    timed = {one.places[-1] for one in stacks if one.places and one.phase == "backward"}
    beside = [
        one for one in stacks if one.places and not one.long and one.phase in BESIDE_THE_PHASES and one.leaf != IMPORT
    ]
    lines = {one.places[-1] for one in beside if GRADIENTS.search(one.leaf)} - timed
    seconds = sum(one.seconds for one in beside)
    return sum(one.seconds for one in beside if not lines.isdisjoint(one.places)) / seconds if seconds > 0 else 0.0


def judge_declared(context: JudgeContext) -> Finding | None:
    """Find a phase that the script declared and that takes much of the loop."""
    shares = declared_shares(context.ranks)
    if not shares or shares[0][1] < policy.USER_PHASE:
        return None
    name, share = shares[0]
    shown = shorten(printable(name), MAX_NAME)
    steps = sum(len(rank.iterations) for rank in context.ranks)
    a_step = sum(rank.declared.get(name, 0.0) for rank in context.ranks) / max(steps, 1)
    return Finding(
        Class.USER_PHASE,
        f"The script's phase “{shown}” takes {percent(share)} of the training loop: {duration(a_step)} a step.",
        (
            Evidence(f"time in the phase “{shown}”", round(share, 4), policy.USER_PHASE, unit="share"),
            Evidence("the same per step", round(a_step * 1e3, 3), unit="ms"),
        ),
        f"Make “{shown}” cheaper, do it less often, or move it out of the loop: into loader workers, another process, or before "
        "the training. Declare phases inside it to see which of its parts takes the time.",
        share,
        confidence=context.confidence(
            share, policy.USER_PHASE, error=context.share_error(lambda one: one.iterations.of(parts.DECLARED))
        ),
        where=lines_of_samples(context.metrics, lambda one: one.phase == name),
    )


def is_tiny(context: JudgeContext) -> bool:
    """Return whether a typical iteration is so short that launching operators dominates it."""
    return bool(context.ranks) and _typical(context, "length") * 1e3 <= tiny_ms(context)


def tiny_ms(context: JudgeContext) -> float:
    """Return the milliseconds below which launching dominates a step: less if its phases are compiled calls."""
    phases = context.mean(lambda rank: sum(rank.share_of_iterations(part.key) for part in parts.phases()))
    of_calls = context.mean(lambda rank: rank.share_of_iterations("compiled"))
    compiled = 0 < policy.ONE_CALL * phases <= of_calls
    if not compiled:
        return float(policy.TINY_STEP_MS)
    return float(policy.TINY_GRAPH_MS if context.stack.one_by_one else policy.TINY_COMPILED_MS)


def _part_of_training(context: JudgeContext) -> float:
    """Return the share of the loop that is not evaluation."""
    return max(1 - context.metrics.average_share("evaluation"), 0.0)


def _part_of_usual_steps(context: JudgeContext) -> float:
    """Return the share of the loop that its training steps would take if all were as long as the typical one."""
    mean = context.mean(lambda rank: rank.mean("length", without_stalls=False))
    return (min(_typical(context, "length") / mean, 1.0) if mean > 0 else 1.0) * _part_of_training(context)


def _typical(context: JudgeContext, key: str) -> float:
    return context.mean(lambda rank: rank.median(key))


@attrs.frozen
class Launches:
    """Operators of a typical step and their cost, however little they compute.

    Attributes:
        operators: operators a step.
        fixed: seconds an operator takes at least on this machine.
        step: seconds of the steps beside which it was calibrated, without waiting for a core; None if not recorded.
        eager: Python launches all of them, in a framework that compiles steps.
    """

    operators: float
    fixed: float
    step: float | None = None
    eager: bool = False

    @property
    def seconds(self) -> float:
        """Seconds a step that do not depend on the size of the batch."""
        return self.operators * self.fixed


def launches_of(context: JudgeContext) -> Launches | None:
    """Return the operators that the hook counted and the cost that it calibrated; None without a complete record.

    Of the counted steps it is the one in the middle, the cheaper one of two: a step in which the script does more, now and
    then, is none that a larger batch makes cheaper.
    """
    records = context.metrics.records.get(event_names.OPERATORS)
    found = []
    for record in records.longest if records else ():
        count, fixed_us = number(record.args.get("operators")), number(record.args.get("fixed_us"))
        if count > 0 and fixed_us > 0 and "call_us" not in record.args:
            step = number(record.args.get("step_us")) / 1e6 or None
            found.append(Launches(count, fixed_us / 1e6, step, record.args.get("eager") is True))
    if not found:
        return None
    usual = sorted(found, key=lambda one: one.seconds)[(len(found) - 1) // 2]
    steps = [one.step for one in found if one.step]
    return attrs.evolve(usual, step=float(np.median(steps)) if steps else None)


def launches_unknown(context: JudgeContext) -> bool:
    """Return whether steps are short enough that launches may dominate them, while operators were not counted."""
    short = bool(context.ranks) and _typical(context, "length") * 1e3 < policy.SMALL_STEP_MS
    return short and not context.metrics.gpus and launches_of(context) is None


def judge_host(context: JudgeContext) -> Finding | None:
    """Find steps dominated by Python and operator launches, and GPUs that the host does not keep busy."""
    if not context.ranks:
        return None
    return _never_used(context) or judge_one_by_one(context) or _launches(context) or gpu_idle_in_phases(context)


def _launches(context: JudgeContext) -> Finding | None:
    gpu = context.gpu_mean
    if gpu is not None and gpu > thresholds.GPU_NEVER and context.gpu_spare < policy.LAUNCHES_LATE:
        return None
    launches = launches_of(context)
    if launches is None:
        return _tiny_steps(context)
    return _measured_launches(context, launches) or _loop_of_python(context, launches)


_SMALL_STEPS_ADVICE = (
    "Give each step more work: a larger batch (and a larger learning rate), several batches per step, or fewer launches "
    "with {}. A GPU does not speed up a model this small."
)


def _measured_launches(context: JudgeContext, launches: Launches) -> Finding | None:
    """Find steps in which the fixed cost of the operators takes most of the time."""
    step = launches.step or _typical(context, "length")
    share = min(launches.seconds / step, 1.0) if step > 0 else 0.0
    limit = policy.LAUNCHES_TINY if step * 1e3 <= policy.TINY_STEP_MS else policy.LAUNCHES
    if share < limit:
        return None
    cost = f"{launches.operators:,.0f} operators at {duration(launches.fixed)} each"
    why = ": the loop runs without tf.function" if launches.eager else ", however little they compute"
    first = f"{context.stack.compiles_steps} " if launches.eager else ""
    return Finding(
        Class.HOST_BOUND,
        f"About {percent(share)} of a step of {duration(step)} is the fixed cost of launching {cost}{why}.",
        (
            Evidence("fixed cost of the operators of a typical step", round(share, 4), limit, unit="share"),
            Evidence("operators a step", round(launches.operators)),
            Evidence("fixed cost of an operator on this machine", round(launches.fixed * 1e3, 5), unit="ms"),
        ),
        first + _SMALL_STEPS_ADVICE.format(context.stack.fewer_launches),
        share * _part_of_usual_steps(context),
        confidence=context.confidence(share, limit, error=policy.LAUNCHES_ERROR * share),
        larger_batch=True,
    )


def _loop_of_python(context: JudgeContext, launches: Launches) -> Finding | None:
    """Find tiny steps of which the loop's own Python, beside the phases, takes as much as in a finding of `judge_sync`.

    It is a fraction of a millisecond, and so nothing that could be logged or written less often. Steps that are one call
    of a compiled function are judged by their operators alone.
    """
    step, outside, share = _typical(context, "length"), _typical(context, "outside"), outside_share(context)
    limit, rest = _beside_the_model(context, _update_by_hand(context))
    share, outside = share * rest, outside * rest
    compiled, of_trainer = tiny_ms(context) < policy.TINY_STEP_MS, _is_small_for_trainer(context)
    if compiled or share < limit or step <= 0:
        return None
    if not of_trainer and (not is_tiny(context) or outside * 1e3 >= policy.OUTSIDE_MS):
        return None
    launching = min(launches.seconds / (launches.step or step), 1.0)
    whose = "the trainer's own code" if of_trainer else "the loop's own Python code"
    return Finding(
        Class.HOST_BOUND,
        f"Steps of {duration(step)} are too small: {percent(share)} of each is {whose}, and launching "
        f"{launches.operators:,.0f} operators takes {percent(launching)} more, however little they compute.",
        (
            Evidence(
                "typical iteration of the loop", round(step * 1e3, 3), tiny_ms(context), unit="ms", held="good from"
            ),
            Evidence("time of a training step outside its phases", round(share, 4), limit, unit="share"),
            Evidence("fixed cost of the operators of a typical step", round(launching, 4), unit="share"),
        ),
        _SMALL_STEPS_ADVICE.format(context.stack.fewer_launches),
        min(share + launching, 1.0) * _part_of_training(context),
        confidence=context.confidence(share, limit, sure=False),
        larger_batch=True,
    )


def _tiny_steps(context: JudgeContext) -> Finding | None:
    """Find steps so short that launches dominate them on any machine, if operators were not counted."""
    wait, outside = _typical(context, "wait"), _typical(context, "outside") * (1 - _gradients_by_hand(context))
    if not is_tiny(context) or wait * 1e3 >= policy.INPUT_WAIT_MS or outside * 1e3 >= policy.OUTSIDE_MS:
        return None
    if waits_unseen(context) >= policy.UNSEEN_WAITS:  # steps end long before they have run
        return None
    limit = tiny_ms(context)
    iteration = _typical(context, "length")
    rate = context.metrics.steps_per_second or 1 / max(iteration, 1e-9)
    overhead = 1 - context.mean(lambda rank: rank.share_of_iterations("backward"))
    return Finding(
        Class.HOST_BOUND,
        f"Steps of {duration(iteration)} are too small: most of their time is Python and operator launches, not arithmetic.",
        (
            Evidence(
                "typical iteration of the loop", round(iteration * 1e3, 3), limit, unit="ms", held="good from"
            ),
            Evidence("steps per second", round(rate, 1)),
        ),
        _SMALL_STEPS_ADVICE.format(context.stack.fewer_launches),
        min(max(overhead, policy.TINY_STEP_MIN_LOSS), policy.TINY_STEP_MAX_LOSS) * _part_of_training(context),
        confidence=context.confidence(limit / max(iteration * 1e3, 1e-6), 1.0, sure=False),
        larger_batch=True,
    )  # fmt: skip


def launches_may_explain(context: JudgeContext) -> bool:
    """Return whether launching operators may take the time in which the GPU is idle; True if they were not counted."""
    launches, step = launches_of(context), _typical(context, "length")
    return launches is None or launches.seconds * policy.LAUNCHES_ON_GPU >= context.gpu_spare * step


def gpu_idle_in_phases(context: JudgeContext) -> Finding | None:
    """Find GPUs that are idle although the loop is nearly always in its phases."""
    gpu, idle = context.gpu_mean, context.gpu_idle
    if gpu is None or idle is None or context.wait >= policy.INPUT_WAIT or outside_share(context) >= policy.OUTSIDE:
        return None
    if gpu >= policy.PHASES_GPU_LOW and idle < policy.GPU_IDLE_IN_PHASES:
        return None
    busiest = context.gpu_busiest
    if busiest is not None and busiest >= policy.COMPUTE:
        return None  # one GPU is kept busy, so the load is unbalanced
    bottleneck = max(context.busy_cores, context.rule_share("IOBottleneck"))
    if not context.waits_known and bottleneck >= policy.INPUT_SYSTEM:
        return None  # an input problem
    memory = mean_or_none([one.memory for one in context.metrics.gpus])
    evidence = [
        Evidence("mean GPU use in the loop", round(gpu, 1), policy.PHASES_GPU_LOW, unit="percent", held="good from"),
        Evidence("GPU samples below 10 %", round(idle, 4), policy.GPU_IDLE_IN_PHASES, unit="share"),
    ]
    if memory is not None:
        evidence.append(Evidence("mean GPU memory in use", round(memory, 1), unit="percent"))
    has_room = memory is not None and memory < policy.GPU_MEMORY_FREE
    first = (
        "Try a larger batch (GPU memory is free)"
        if has_room
        else "Check for blocking calls (.item(), .cpu(), print of tensors)"
    )
    why = "each step gives it too little work, or the host stops to read results"
    advice = f"{first}, then {context.stack.fewer_launches}; a detailed window shows the gaps between kernels."
    explained = launches_may_explain(context)
    if not explained:
        why = "the host computes or waits in the phases themselves, far longer than launching their operators takes"
        advice = (
            "Look at the lines below: code on the CPU in the model, libraries that prepare each new shape (pad batches to a few "
            "lengths), blocking calls. A detailed window shows what the host did in the gaps between kernels."
        )
    return Finding(
        Class.HOST_BOUND,
        f"The GPU is busy only {gpu:.0f} % of the time although the loop hardly waits for data: {why}.",
        tuple(evidence),
        advice,
        1 - gpu / 100,
        confidence=context.confidence(policy.PHASES_GPU_LOW / max(gpu, 1.0), 1.0, sure=False),
        larger_batch=has_room and explained,
    )


def _never_used(context: JudgeContext) -> Finding | None:
    gpu = context.gpu_mean
    if gpu is None or gpu > thresholds.GPU_NEVER:
        return None
    return Finding(
        Class.HOST_BOUND,
        "The GPU was never used: the training ran on the CPU.",
        (Evidence("mean GPU use in the loop", round(gpu, 2), thresholds.GPU_NEVER, unit="percent", held="used from"),),
        'Move the model and the batches to the device (model.to("cuda"), batch.to("cuda")) and check that the container has a '
        "CUDA build of the framework; otherwise use a CPU instance.",
        policy.NEVER_USED_LOSS,
        confidence="high",
    )


def judge_gc(context: JudgeContext) -> Finding | None:
    """Find pauses by Python's garbage collector."""
    spent = context.mean(lambda rank: rank.gc - _collected_while_compiling(rank, context))
    share = context.mean(
        lambda rank: (rank.gc - _collected_while_compiling(rank, context)) / rank.loop if rank.loop else 0.0
    )
    if share < limits.FLOOR:
        return None
    return Finding(
        Class.GC_BOUND,
        f"Python's garbage collector pauses the loop {percent(share)} of the time ({duration(spent)} in total).",
        (Evidence("time in collections of 1 ms and more", round(share, 4), limits.FLOOR, unit="share"),),
        "Call gc.freeze() after building the model and the dataset, then gc.disable() with a gc.collect() every few hundred "
        "steps. Keep large numbers of small Python objects (lists of dicts, per-sample records) in arrays instead.",
        share,
        confidence=context.confidence(share, limits.FLOOR, error=context.share_error(lambda one: one.iterations.gc)),
    )


def _collected_while_compiling(rank: Rank, context: JudgeContext) -> float:
    """Return the seconds of collections in steps that compiled a function, at most as long as that took."""
    found = context.metrics.records.get(event_names.COMPILE)
    own = [one for one in found.of(rank.name) if one.seconds > 0] if found else []
    if not own or not len(rank.steps):
        return 0.0
    row = np.searchsorted(rank.steps.start, [one.start * 1e6 for one in own], side="right") - 1
    compiled = np.bincount(np.maximum(row, 0), [one.seconds for one in own], len(rank.steps))
    return min(float(np.minimum(rank.steps.seconds(GC), compiled).sum()), rank.gc)


def judge_optimizer(context: JudgeContext) -> Finding | None:
    """Find an optimizer that takes longer than the passes."""
    share = context.mean(lambda rank: rank.share_of_iterations("optimizer"))
    limit = policy.OPTIMIZER_TINY if is_tiny(context) else policy.OPTIMIZER
    launches = launches_of(context)
    eager = launches is not None and launches.eager and _measured_launches(context, launches) is not None
    if share < limit or eager:  # launches its operators from Python, as all of the step
        return None
    optimizer = context.mean(lambda rank: rank.median("optimizer"))
    return Finding(
        Class.OPTIMIZER_BOUND,
        f"The optimizer takes {percent(share)} of a training step ({duration(optimizer)}).",
        (
            Evidence("time in optimizer.step()", round(share, 4), limit, unit="share"),
            Evidence("optimizer in a typical step", round(optimizer * 1e3, 3), unit="ms"),
        ),
        f"{context.stack.optimizer} Step less often (gradient accumulation), or exclude frozen and sparse parameters; check "
        "that no hook or clipping loop runs parameter by parameter.",
        share,
        confidence=context.confidence(
            share, limit, error=context.share_error(lambda one: one.iterations.of("optimizer"))
        ),
    )
