"""Steps that compute too little: time outside the model, small steps, uncompiled operations, slow optimizers, copies."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import UNSEEN
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found, declared_shares, mean_or_none
from sm_profiler.diagnosis.profile.ledger import (
    BESIDE_THE_PHASES,
    COPIES,
    COPYING,
    EVALUATION,
    OTHER,
    PHASE,
    RUNNING,
    TRAINS,
    WAIT,
    updates_in_compiled,
)
from sm_profiler.diagnosis.profile.lines import (
    BESIDE_THE_LOOP,
    STEPS,
    WORKER,
    Lines,
    error_of_part,
    lines_of_phase,
    lines_of_samples,
    other_code,
    short_place,
    window_functions,
)
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.repairing import Saving, all_but
from sm_profiler.diagnosis.stack import KERAS, PYTORCH
from sm_profiler.diagnosis.words import FRAGMENTS
from sm_profiler.formats.recorded import Compile, Operators, place_of
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.sample_fold import Place, Sampled
from sm_profiler.metrics.step_fold import RESULTS
from sm_profiler.printable import printable

DOUBLE = "torch.float64"
MAX_NAME = 40  # of a phase, in a sentence
REST = (OTHER, UNSEEN)  # what no other activity accounts for
_LOSS = re.compile(r"^torch\.nn\.(modules|functional)\.")  # what the model is for
READS = re.compile(r"\.(item|cpu|tolist|numpy)\(\)|synchronize\(|\bfloat\(\w*loss")  # and wait for the device


def outside(case: Case) -> Found | None:
    """Find metrics, `.item()` and the script's own code at every step."""
    (share, step), kept = _of_rest(case), _kept(case)
    if share < kept + limits.FLOOR and ((found := _waits_for_gpu(case)) is not None or not share):
        return found
    spent = share * step

    def saves(loop: Loop) -> Saving:
        """All but what a healthy loop spends between phases and waits, in usual steps, of what other repairs have left."""
        if share < (kept + limits.FLOOR) * loop.total / float(loop.length.sum()):
            return Saving(loop.now * 0.0)
        others = float((loop.training - loop.of_activity(*REST)).sum())
        small = step * (1 - case.shared_wait) < limits.SMALL_STEP_S  # the rest of any time is that of other programs
        most = kept if small else min(kept, limits.FAR)  # Python takes as long in any step
        saving = all_but(loop.usual(*REST), others, (most, limits.REPEAT, 0.0), REST)
        # A line that hands an array to numpy may wait for what the step computes, which no repair saves.
        waits = waits_unseen(case) * loop.total / max(float(saving.seconds.sum()), 1e-12)
        return attrs.evolve(saving, low=max(saving.low - waits, 0.0))

    words = {
        "share": percent(share),
        "optimizer": "the optimizer" if any(rank.seconds["optimizer"] for rank in case.ranks) else "its update",
        "time": duration(spent),
        "step": duration(step),
        "larger_batch": FRAGMENTS["larger_batch"] if step < limits.SMALL_STEP_S else "",
    }
    evidence = (
        Evidence("time of a training step in other code", round(share, 4), unit="share"),
        Evidence("the same in a typical step", round(spent * 1e3, 3), unit="ms"),
    )

    def counts(one: Sampled) -> bool:
        return _is_rest(one, case)

    where, seen = lines_of_samples(case.metrics, counts), [one for one in case.metrics.samples.stacks if counts(one)]
    after = sum(one.seconds for one in seen if one.phase == "between")  # and not before the model is called
    if after > limits.MAJORITY * sum(one.seconds for one in seen):
        # in short steps, what makes a batch before the model is called is sampled in the step, too
        order_is_known = step >= limits.SMALL_STEP_S
        words["ahead"] = FRAGMENTS["after_the_model" if order_is_known else "before_or_after_the_model"]
    else:
        words["ahead"] = FRAGMENTS["ahead_once" if case.would_share_cores(0, share) else "ahead_in_workers"]
    return Found(
        "outside", words, evidence, share, saves=saves,
        doubt="" if case.waits_known else "waits for data were not recorded",
        error=case.share_error("outside"),
        where=where or window_functions(case.metrics),
    )  # fmt: skip


def _of_rest(case: Case) -> tuple[float, float]:
    """Return the share of a usual step in other code, 0 if nothing in it can be left out, and the seconds of the step."""
    share, step = case.usual(*REST)
    if (launches := launches_of(case)) and _launching_share(case, launches) >= limits.HEALTHY:
        per_sample = _launched_per_sample(case, launches)
        share -= per_sample.between if per_sample is not None else 0.0  # which has its own name
    if _one_by_one(case) is not None:  # and so have operations outside compiled functions
        share -= _dispatched(case).share
    return 0.0 if share * step < limits.HANDOVER_S or _is_small_for_trainer(case) else share, step


def _is_rest(one: Sampled, case: Case) -> bool:
    return not one.long and other_code(one) and not _LOSS.search(one.leaf) and case.seen.activity(one) in ("", OTHER)


def one_function(case: Case) -> Found | None:
    """Find a function that the loop calls outside the phases, of a loop whose other code is as short as usual.

    What the loop itself does there is the price of a Python loop; a function of its own can be called less often.
    """
    share, step = _of_rest(case)
    if not 0 < share < _kept(case) + limits.FLOOR:
        return None
    seen = [one for one in case.metrics.samples.stacks if one.places and _is_rest(one, case)]
    counts = Counter[tuple[str, str]]()
    for one in seen:
        called = (key for place in one.places if (key := (place.file, place.function)) not in case.seen.learning)
        if (function := next(called, None)) is not None:
            counts[function] += one.count
    if not counts or not case.seen.learning:  # the loop's own function is not known
        return None
    function, count = counts.most_common(1)[0]
    whole = sum(one.count for one in seen)
    likely = (count + 1) / (whole + 2)  # of few samples, chance may be all
    part = share * likely
    if count < limits.REPEATS or part * step < limits.HANDOVER_S:
        return None

    def inside(one: Sampled) -> bool:
        return function in {(at.file, at.function) for at in one.places}

    words = {
        "function": shorten(printable(function[1]), MAX_NAME), "share": percent(part), "time": duration(part * step),
        "step": duration(step),
    }  # fmt: skip
    evidence = (
        Evidence("time of a training step in this function", round(part, 4), unit="share"),
        Evidence("time of a training step in other code", round(share, 4), unit="share"),
    )
    error = math.hypot(case.share_error("outside"), share * error_of_part([one for one in seen if inside(one)], seen))
    return Found(
        "one_function", words, evidence, part, saves=lambda loop: part_of_share(loop, part, REST), error=error,
        where=lines_of_samples(case.metrics, lambda one: inside(one) and _is_rest(one, case)),
    )  # fmt: skip


def _is_small_for_trainer(case: Case) -> bool:
    """Return whether steps are small, and what surrounds their phases is code of a library whose loop the script calls.

    Then one line of the script, such as `model.fit(…)`, is the innermost one of several phases and of what surrounds them,
    and functions of the library run below it: a script may write its whole step on one line, too.
    Loops of Keras and trainers run code of the script in callbacks only, which are no part of a step, so that samples must
    show otherwise, unless a loop of the script asks Keras for predictions at each step. What a trainer does at each step
    costs the same however large the batch is.
    """
    if case.typical("length") * (1 - case.shared_wait) >= limits.SMALL_STEP_S:
        return False
    stacks = [one for one in case.metrics.samples.stacks if one.places and not one.long]
    names = {"wait", *(part.key for part in parts.phases())}
    phases: dict[Place, set[str]] = defaultdict(set)
    for one in stacks:
        if one.phase in names:
            phases[one.places[-1]].add(one.phase)
    calls = {place for place, found in phases.items() if len(found) > 1}
    outer = [one for one in stacks if one.phase in BESIDE_THE_PHASES]
    trainers = sum(one.count for one in outer if one.places[-1] in calls and one.leaf)
    scripts = sum(one.count for one in outer) - trainers
    chance = limits.SURE_SIGMAS * math.sqrt(trainers + scripts)
    of_keras = case.stack is KERAS and not any(rank.within_steps for rank in case.ranks)
    return trainers - scripts > (-chance if of_keras or case.trainer else chance)


def _waits_for_gpu(case: Case) -> Found | None:
    """Find lines that read results from a GPU which is idle afterwards, because nothing was launched ahead."""
    spare, gpu, samples = case.gpu_spare, case.gpu_mean, case.metrics.samples
    if gpu is None or gpu <= thresholds.GPU_NEVER:
        return None

    def reads(one: Sampled) -> bool:
        return bool(one.places) and not one.long and READS.search(samples.source(one.places[-1])) is not None

    inside = [one for one in samples.stacks if one.places and not one.long and one.phase not in BESIDE_THE_LOOP]
    total, found = sum(one.seconds for one in inside), [one for one in inside if reads(one)]
    waits = sum(one.seconds for one in found) / total if total > 0 else 0.0
    share = min(waits, spare)
    if share < limits.HEALTHY:
        return None
    evidence = (
        Evidence("time of the training thread in these lines", round(waits, 4), unit="share"),
        Evidence("time in which the GPU is idle", round(spare, 4), unit="share"),
    )
    return Found(
        "reads_gpu", {"waits": percent(waits), "idle": percent(spare)}, evidence, share,
        error=error_of_part(found, inside),
        doubt="the part of the idle time that these lines cause is unknown", where=lines_of_samples(case.metrics, reads),
    )  # fmt: skip


def _kept(case: Case) -> float:
    """Return the share of a step that a healthy loop spends outside the phases: more if its optimizer may be there, unseen."""
    if any(rank.seconds["optimizer"] for rank in case.ranks) or case.seen.updates:
        return limits.HEALTHY
    return limits.HEALTHY_PHASE + limits.FLOOR


def own_phase(case: Case) -> Found | None:
    """Find a phase that the script declared and that takes much of the loop."""
    shares = declared_shares(case.ranks)
    if not shares:
        return None
    name, share = shares[0]
    steps = sum(len(rank.iterations) for rank in case.ranks)
    a_step = sum(rank.declared.get(name, 0.0) for rank in case.ranks) / max(steps, 1)
    shown = shorten(printable(name), MAX_NAME)

    def saves(loop: Loop) -> Saving:
        found = tuple(key for key in loop.left if key.startswith(PHASE))
        return part_of_share(loop, share, found, kept=limits.HEALTHY)

    evidence = (
        Evidence(f"time in the phase “{shown}”", round(share, 4), unit="share"),
        Evidence("the same per step", round(a_step * 1e3, 3), unit="ms"),
    )
    return Found(
        "own_phase", {"name": shown, "share": percent(share), "time": duration(a_step)}, evidence, share, saves=saves,
        error=case.share_error(parts.DECLARED), where=lines_of_phase(case.metrics, name),
    )  # fmt: skip


def part_of_share(
    loop: Loop, share: float, taken: tuple[str, ...] = (), kept: float = 0.0, sure: bool = True
) -> Saving:
    """Return a part of a share of the loop: what a repair saves if no model predicts how much.

    Args:
        loop: the loop.
        share: the share of the time that is lost.
        taken: activities that it is taken from.
        kept: share of the time that a healthy loop may spend on it.
        sure: it was measured directly.
    """
    least, value = limits.SAVED[:2] if sure else limits.PART_SAVED_INDIRECT
    share = min(max(float(np.nan_to_num(share)), 0.0), 1.0)
    certain = max(min(least * share, share - kept), 0.0) / max(value * share, 1e-12)
    return Saving(loop.now * share * value, least / value, 1 / value, taken, certain=certain)


def padding(case: Case) -> Found | None:
    """Find batches of sequences that are mostly padding, as their masks show: the passes compute on it as on text."""
    if case.metrics.padding is None:
        return None
    whole, of_all = case.metrics.padding
    passes = ("forward", "backward", "compiled")

    # Batches of similar lengths lose nearly all of it, but not if lengths differ little, or samples must be drawn at random.
    within = whole - of_all if whole > limits.MAJORITY else 0.0

    def saves(loop: Loop) -> Saving:
        """Save what is beyond the longest sequence of each batch, and of batches that are mostly padding most of the rest."""
        spent = loop.usual(*passes)
        least = (
            of_all * limits.SAVED[1] + within * limits.PART_SAVED_INDIRECT[0]
        )  # launches take as long if they are shorter
        return Saving.of_scenarios([spent * part for part in (least, of_all + within * limits.SAVED[0], whole)], passes)

    share = case.share_of(*passes) * whole
    kinds = (
        ("tokens that are padding", whole),
        ("tokens of padding beyond the longest sequence of their batch", of_all),
        ("tokens of padding up to the longest sequence of their batch", whole - of_all),
    )
    evidence = tuple(
        Evidence(what, round(part, 4), unit="share") for what, part in kinds if part >= limits.SHOWN * whole
    )
    text = "padding" if of_all > limits.MAJORITY * whole else "padding_within"
    waits = (one for one in lines_of_phase(case.metrics, "wait") if not TRAINS.search(one.source))
    where = lines_of_phase(case.metrics, WORKER) or tuple(waits)  # where batches are made, and no call that trains
    if not where and (place := place_of(case.metrics.collate)) is not None:
        where = (Location(*place, share=0.0),)
    doubt = "batches of similar lengths may not be possible" if text == "padding_within" else ""
    doubt = "the model may skip the padding" if case.metrics.padding_inferred else doubt
    doubt = "a GPU may not be faster with less" if any(rank.on_device for rank in case.ranks) else doubt
    return Found(
        text, {"padding": percent(whole)}, evidence, share, saves=saves, doubt=doubt, error=limits.REPEAT_MOST * share,
        where=where,
    )  # fmt: skip


def double_precision(case: Case) -> Found | None:
    """Find a model of numbers of 64 bits, as arrays of numpy are unless they are converted."""
    if case.metrics.dtype != DOUBLE:
        return None
    share = case.share_of(*STEPS)
    return Found(
        "double_precision", {"share": percent(share)}, (Evidence("time in passes and updates", round(share, 4), unit="share"),), share,
        saves=lambda loop: Saving.of_scenarios([loop.usual(*STEPS) * part for part in limits.KERNELS_SAVED["DOUBLE_PRECISION"]], STEPS),
        doubt="the training may need it", error=0.0, where=lines_of_phase(case.metrics, "forward"),  # the type is known
    )  # fmt: skip


# --- small steps ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Launches:
    """Operators of a typical step and their cost, however little they compute.

    Attributes:
        operators: operators a step.
        fixed: seconds an operator takes at least on this machine.
        step: seconds of the steps beside which it was calibrated, without waiting for a core; None if not recorded.
        eager: Python launches all of them, in a framework that compiles steps.
        readers: the most of a kind that read the same result; None if not recorded.
    """

    operators: float
    fixed: float
    step: float | None = None
    eager: bool = False
    readers: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds a step that do not depend on the size of the batch."""
        return self.operators * self.fixed


def launches_of(case: Case) -> Launches | None:
    """Return the operators that the hook counted and the cost that it calibrated; None without a complete record.

    Of the counted steps it is the one in the middle, the cheaper one of two: a step in which the script does more, now and
    then, is none that a larger batch makes cheaper.
    """
    found = []
    for record in case.metrics.recorded(Operators).longest:
        args = record.args
        if args.operators > 0 and args.fixed_us > 0 and args.call_us is None:
            found.append(
                Launches(
                    args.operators,
                    args.fixed_us / 1e6,
                    (args.step_us or 0.0) / 1e6 or None,
                    bool(args.eager),
                    args.readers,
                )
            )
    if not found:
        return None
    usual = sorted(found, key=lambda one: one.seconds)[(len(found) - 1) // 2]
    steps = [one.step for one in found if one.step]
    step = float(np.median(steps)) if steps else None
    acts = case.mean(lambda rank: rank.within_steps / max(rank.train_steps, 1))
    if acts > 0:
        # Forwards without gradients, each with about half of the operators, are none of the steps that were timed.
        usual = attrs.evolve(usual, operators=usual.operators * (1 + acts / 2))
        step = case.typical("length") * (1 - min(case.core_wait, 1 - limits.FLOOR))
    return attrs.evolve(usual, step=step)


def launches_unknown(case: Case) -> bool:
    """Return whether steps are short enough that launches may dominate them, while operators were not counted."""
    short = bool(case.ranks) and case.typical("length") < limits.SMALL_STEP_S
    return short and not case.metrics.gpus and launches_of(case) is None


def tiny_step(case: Case) -> float:
    """Return the seconds below which launching dominates a step: less if its phases are calls of compiled functions."""
    phases = case.mean(lambda rank: sum(rank.share_of_iterations(part.key) for part in parts.phases()))
    compiled = case.mean(lambda rank: rank.share_of_iterations("compiled"))
    if not 0 < limits.MAJORITY * phases <= compiled:
        return limits.TINY_STEP_S
    # one for each pass
    return limits.HANDOVER_S * (2 if case.stack.one_by_one else 1)


def host(case: Case) -> Found | None:
    """Find steps dominated by Python and operator launches, and GPUs that the host does not keep busy."""
    if not case.ranks:
        return None
    idle = _idle_in_phases(case)
    too_small = idle if idle is not None and idle.text in OF_BATCH else None
    found = _never_used(case) or too_small or _recorded_stacks(case) or _one_by_one(case)
    found = found or _called_per_sample(case) or _launches(case)
    return found or _without_gradients(case) or idle


# Innermost functions while torch.autograd.set_detect_anomaly(True) records where each operator of the forward pass is called.
_STACKS = re.compile(r"^(torch\.fx\.)?traceback\.|^linecache\.")


def _recorded_stacks(case: Case) -> Found | None:
    """Find anomaly detection that was left on: it records a stack for each operator, and checks each gradient."""
    stacks = [one for one in case.metrics.samples.stacks if one.phase == "forward" and not one.long]
    found = [one for one in stacks if _STACKS.search(one.leaf)]
    count, whole = sum(one.count for one in found), sum(one.seconds for one in stacks)
    if not count or case.metrics.recorded(Compile).longest:  # compilers record stacks, too
        return None
    part = sum(one.seconds for one in found) / whole
    share = part * case.share_of("forward")
    evidence = (
        Evidence("time in the forward pass that records stacks of operators", round(share, 4), unit="share"),
        Evidence("samples in this", count),
    )

    def saves(loop: Loop) -> Saving:
        """Save the stacks in any case; the checks of the gradients, which no sample shows, may take as long."""
        spent = loop.usual("forward") * part
        return Saving(spent, limits.SAVED[0], 2, ("forward", "backward"), strict=True)

    return Found(
        "anomaly", {"share": percent(share)}, evidence, share, saves=saves, doubt="inferred from samples",
        error=case.share_of("forward") * error_of_part(found, stacks),
    )  # fmt: skip


def _called_per_sample(case: Case) -> Found | None:
    """Find a model that is called for each sample of a step by itself: all samples in one call launch the operators once."""
    calls, samples = case.metrics.calls_per_step, case.metrics.samples_per_step
    if calls is None or samples is None or calls < limits.SAMPLES or samples > limits.CLEARLY * calls:
        return None
    passes = ("forward", "backward")
    share = case.share_of(*passes) * (1 - 1 / calls)
    if share < limits.NOTICEABLE:
        return None
    evidence = (
        Evidence("calls of the model a step", round(calls, 1)),
        Evidence("samples in each", round(samples / calls, 2), limits.CLEARLY),
        Evidence("time in the passes", round(share, 4), unit="share"),
    )
    words = {"calls": f"{calls:,.0f}", "share": percent(share)}
    return Found(
        "called_per_sample", words, evidence, share, saves=lambda loop: part_of_share(loop, share, passes, sure=False),
        doubt="samples may differ in shape", where=lines_of_phase(case.metrics, "forward"),
    )  # fmt: skip


_OF_MODULES = re.compile(r"^(torch\.nn|torchvision|transformers|diffusers|timm)\.")


def _without_gradients(case: Case) -> Found | None:
    """Find a function of the script that computes with the model, in its forward pass or after it, without gradients.

    On a CPU, the backward pass of what is differentiated takes at least as long as its forward pass. The rest is what no
    gradient flows through: often the same at each step, or computed element by element.
    """
    forward, backward = case.share_of("forward"), case.share_of("backward")
    on_device = bool(case.metrics.gpus) or any(rank.on_device for rank in case.ranks)
    if on_device or backward <= 0 or any(rank.within_steps or rank.forward_only for rank in case.ranks):
        return None

    def function_of(one: Sampled) -> tuple[str, str] | None:
        """Return what the loop calls between the passes; in the forward pass, what computes without a module."""
        if one.phase == "forward":
            return None if _OF_MODULES.match(one.leaf) else (one.places[-1].file, one.places[-1].function)
        called = ((place.file, place.function) for place in one.places)
        return next((function for function in called if function not in case.seen.learning), None)

    def computes(one: Sampled) -> bool:
        return bool(one.places) and not one.long and "forward" in (one.phase, case.seen.activity(one))

    seen = [one for one in case.metrics.samples.stacks if computes(one)]
    counts = Counter[tuple[str, str]]()
    for one in seen:
        if (called := function_of(one)) is not None:
            counts[called] += one.count
    if not counts:
        return None
    function, count = counts.most_common(1)[0]
    share = min(forward * count / sum(one.count for one in seen), forward - backward)
    if count < limits.SAMPLES or share < limits.NOTICEABLE:
        return None

    def within(one: Sampled) -> Sampled:
        """Return a stack up to the function's own line."""
        own = next(n for n, at in enumerate(one.places, 1) if (at.file, at.function) == function)
        return attrs.evolve(one, places=one.places[:own])

    inside = [one for one in seen if function_of(one) == function]
    lines = Lines.of(map(within, inside))
    words = {
        "function": shorten(printable(function[1]), MAX_NAME), "share": percent(share), "forward": percent(forward),
        "backward": percent(backward),
    }  # fmt: skip
    evidence = (
        Evidence(
            "time of the forward pass beyond that of the backward pass", round(forward - backward, 4), unit="share"
        ),
        Evidence("samples of the forward pass in this function", count),
    )
    return Found(
        "without_gradients", words, evidence, share, saves=lambda loop: part_of_share(loop, share, ("forward",), sure=False),
        doubt="inferred from samples", error=forward * error_of_part(inside, seen),
        where=lines.locations(lines.weights(), case.metrics),
    )  # fmt: skip


def _launches(case: Case) -> Found | None:
    gpu = case.gpu_mean
    if gpu is not None and gpu > thresholds.GPU_NEVER and case.gpu_spare < limits.USUAL:
        return None
    launches = launches_of(case)
    if launches is None:
        return _tiny_steps(case)
    return _measured_launches(case, launches) or _loop_of_python(case, launches)


def _in_training(case: Case) -> float:
    """Return the share of the loop that is not evaluation."""
    return max(1 - case.metrics.average_share("evaluation"), 0.0)


def _launching_share(case: Case, launches: Launches) -> float:
    """Return the share of a step that the fixed cost of its operators takes."""
    step = launches.step or case.typical("length")
    return min(launches.seconds / step, 1.0) if step > 0 else 0.0


def _measured_launches(case: Case, launches: Launches) -> Found | None:
    """Find steps in which the fixed cost of the operators takes much of the time."""
    step, share = launches.step or case.typical("length"), _launching_share(case, launches)
    if share < limits.HEALTHY:  # the Python around each operator takes a few times as long
        return None
    mean = case.mean(lambda rank: rank.mean("length", without_stalls=False))
    usual = (min(case.typical("length") / mean, 1.0) if mean > 0 else 1.0) * _in_training(case)
    per_sample = _launched_per_sample(case, launches)
    words = {
        "share": percent(share),
        "step": duration(step),
        "operators": f"{launches.operators:,.0f}",
        "each": duration(launches.fixed),
        "why": FRAGMENTS["without_tf_function" if launches.eager else "however_little"],
        "first": f"{case.stack.compiles_steps} " if launches.eager else "",
    }
    evidence = (
        Evidence("fixed cost of the operators of a typical step", round(share, 4), unit="share"),
        Evidence("operators a step", round(launches.operators)),
        Evidence("fixed cost of an operator on this machine", round(launches.fixed * 1e3, 5), unit="ms"),
    )
    if per_sample is not None:
        return per_sample.found(words, evidence, share * usual)
    doubt = "operators were counted, and not timed"
    if share >= limits.MAJORITY:
        doubt = "a loop may launch them for each sample" if _model_may_loop(case, launches) else ""
    return _small_steps(
        case,
        Found(
            "launches",
            words,
            evidence,
            share * usual,
            "small_steps",
            error=limits.REPEAT_MOST * share * usual,
            doubt=doubt,
            where=lines_of_phase(case.metrics, "forward"),
        ),
    )


@attrs.frozen
class PerSample:
    """Operators of the loss that are launched for each sample of a batch; a larger batch has as many more of them.

    Attributes:
        between: share of the loop from the end of the forward pass to the start of the backward pass.
        backward: share of the loop in which the gradients of these operators are computed.
        times: how many times as long as the forward pass it takes.
        where: its lines.
    """

    between: float
    backward: float
    times: float
    where: tuple[Location, ...]

    def found(self, words: Mapping[str, object], evidence: tuple[Evidence, ...], share: float) -> Found:
        """Return the finding, whose repair computes all samples at once."""
        most = max(self.where, key=lambda line: line.share, default=None)
        place = "" if most is None else FRAGMENTS["in_place"].format(place=short_place(most))
        more = Evidence("the loss as a multiple of the forward pass", round(self.times, 2), 1.0)
        return Found(
            "launches_per_sample", {**words, "times": f"{self.times:.1f}", "place": place}, (*evidence, more), share,
            "launches_per_sample", self.saves, "a loop over the samples is inferred from times", where=self.where,
        )  # fmt: skip

    def saves(self, loop: Loop) -> Saving:
        """Save the loss, and its gradients, of which it is not measured how long they take."""
        low, value = (
            self.between * part + self.backward * indirect
            for part, indirect in zip(limits.SAVED, limits.PART_SAVED_INDIRECT, strict=False)
        )
        certain = self.between * limits.SAVED[0] / value
        return Saving(
            loop.now * value, low / value, (self.between + self.backward) / value, (*REST, "backward"), certain=certain
        )


def _launched_per_sample(case: Case, launches: Launches) -> PerSample | None:
    """Return what the loss takes if it launches operators for each sample; None if nothing speaks for that.

    A loss of a whole batch launches a few operators, fewer than the model that it follows. A loop over samples launches
    one and its gradient for each of them at least. Half of the counted operators compute gradients, and the loss has those
    of the others for which the forward pass is too short; code that launches none may take as long. Gradients of gradients
    are computed between the passes, too, and by as many operators however large the batch is.
    """
    between, forward = case.mean(lambda rank: rank.share("between")), case.mean(lambda rank: rank.share("forward"))
    inside = [one for one in case.metrics.samples.stacks if one.phase == "between" and not one.long]
    loss = [one for one in inside if case.seen.activity(one) != "backward"]
    if inside:
        between *= sum(one.seconds for one in loss) / max(sum(one.seconds for one in inside), 1e-12)
    if forward <= 0 or between < limits.HEALTHY or not _may_grow(case, launches):
        return None
    if not _loops_over_samples(
        case, launches, loss, long=limits.CLEARLY * forward > _launching_share(case, launches) / 2
    ):
        return None
    backward = case.mean(lambda rank: rank.share("backward")) * between / (between + forward)
    lines = Lines.of(loss)
    where = lines.locations(lines.weights(), case.metrics)
    return PerSample(between, backward, between / forward, where)


_LOOP = re.compile(r"\bfor\b.+\bin\b")


def _loops_over_samples(case: Case, launches: Launches, loss: Sequence[Sampled], *, long: bool) -> bool:
    """Return whether each sample's operators read the same result, or most samples of the loss lie in a loop on their line.

    Such a loop may launch nothing if the forward pass is long enough for all operators.
    """
    samples = case.metrics.samples_per_step or case.metrics.batch_size
    if launches.readers is not None and samples:
        return launches.readers >= samples
    if long:
        return False
    loops = [one for one in loss if one.places and _LOOP.search(case.metrics.samples.source(one.places[-1]))]
    return sum(one.count for one in loops) > limits.MAJORITY * sum(one.count for one in loss)


def _may_grow(case: Case, launches: Launches) -> bool:
    """Return whether there are operators enough for one, and its gradient, of each sample of a batch."""
    return launches.operators >= 2 * (case.metrics.batch_size or 1)


def _model_may_loop(case: Case, launches: Launches) -> bool:
    """Return whether most samples of the forward pass are on one line of a function of the script that the model calls.

    The line may belong to a loop over layers or over samples; only the operators of the former are as many in a larger batch.
    """
    stacks = [one for one in case.metrics.samples.stacks if one.phase == "forward" and one.places and not one.long]
    lines = Lines.of(one for one in stacks if len(one.places) > 1).lines.values()
    most = max((line.count for line in lines), default=0)
    seen = sum(one.count for one in stacks)
    return most >= limits.REPEATS and most > limits.MAJORITY * seen and _may_grow(case, launches)


def _loop_of_python(case: Case, launches: Launches) -> Found | None:
    """Find tiny steps of which the loop's own Python, outside the phases, takes much.

    It is a fraction of a millisecond, and so nothing that could be logged or written less often. Steps that are one call
    of a compiled function are judged by their operators alone.
    """
    step, kept, share = case.typical("length"), _kept(case), case.usual(*REST)[0]
    spent = share * step
    tiny, of_trainer = tiny_step(case), _is_small_for_trainer(case)
    if tiny < limits.TINY_STEP_S or share < kept + limits.FLOOR or step <= 0:
        return None
    if not of_trainer and (step > tiny or spent >= limits.HANDOVER_S):
        return None
    launching = min(launches.seconds / (launches.step or step), 1.0)
    words = {
        "step": duration(step),
        "share": percent(share),
        "whose": FRAGMENTS["of_trainer" if of_trainer else "of_loop"],
        "operators": f"{launches.operators:,.0f}",
        "launching": percent(launching),
        "first": "",
    }
    evidence = (
        Evidence("typical iteration of the loop", round(step * 1e3, 3), tiny * 1e3, unit="ms", held="good from"),
        Evidence("time of a training step outside its phases", round(share, 4), unit="share"),
        Evidence("fixed cost of the operators of a typical step", round(launching, 4), unit="share"),
    )
    total = min(share + launching, 1.0) * _in_training(case)
    doubt = "Python and operators are measured together"
    where = lines_of_samples(case.metrics, lambda one: _is_rest(one, case))
    return _small_steps(case, Found("loop_of_python", words, evidence, total, "small_steps", doubt=doubt, where=where))


def _tiny_steps(case: Case) -> Found | None:
    """Find steps so short that launches dominate them on any machine, if operators were not counted."""
    step, tiny = case.typical("length"), tiny_step(case)
    share, length = case.usual(*REST)
    spent = share * length
    if step > tiny or case.typical("wait") >= limits.COLLATING_S or spent >= limits.HANDOVER_S:
        return None
    if waits_unseen(case) >= limits.USUAL:  # steps end long before they have run
        return None
    rate = case.metrics.steps_per_second or 1 / max(step, 1e-9)
    lost = 1 - case.mean(lambda rank: rank.share_of_iterations("backward"))
    evidence = (
        Evidence("typical iteration of the loop", round(step * 1e3, 3), tiny * 1e3, unit="ms", held="good from"),
        Evidence("steps per second", round(rate, 1)),
    )
    words, doubt = {"step": duration(step), "first": ""}, "operators were not counted"
    share = min(lost, limits.MOST) * _in_training(case)
    return _small_steps(case, Found("tiny_steps", words, evidence, share, "small_steps", doubt=doubt))


def _small_steps(case: Case, found: Found) -> Found:
    """Return the finding with its repair, a larger batch."""
    return attrs.evolve(found, saves=partial(_larger_batch, case, found), larger_batch=True)


def _larger_batch(case: Case, found: Found, loop: Loop) -> Saving:
    """Spread what a step costs however large it is over more samples.

    Loading and arithmetic grow with the batch. The optimizer and Python do not, nor do operators without arithmetic.
    """
    gpu = case.gpu_mean
    share = {key: loop.share(key) for key in (WAIT, "forward", "backward", "compiled", EVALUATION)}
    passes = share["forward"] + share["backward"] + share["compiled"]
    if gpu is not None:  # kernels of a small batch fill a part of the device
        grows = [gpu / 100 * part for part in limits.GROWS]
    else:
        # Counted launches are the least: what Python and modules add to them is in the passes, too. Beside other work,
        # operators cost more than on an idle machine.
        known = launches_of(case) is not None
        least = found.share * max(1 - case.core_wait, limits.MAJORITY) if known else passes * limits.MAJORITY
        fixed = [passes, (least + passes) / 2, least]
        grows = [max(passes - own, 0.0) * part for own, part in zip(fixed, (0.0, *limits.GROWS[::2]), strict=True)]
    wanted = [
        max(1 - share[EVALUATION] - share[WAIT] * loads - computes, 0.0) * (1 - 1 / limits.BATCH_LARGER)
        for loads, computes in zip(limits.GROWS, grows, strict=True)
    ]
    high, value, low = wanted
    if value <= 0:
        return Saving(loop.length * 0.0)
    measured = 1.0 if not found.doubt or found.error is not None else limits.PART_SAVED_INDIRECT[0]
    certain = min(low, found.share * (1 - 1 / limits.BATCH_LARGER) * measured) / value
    taken = ("forward", "backward", "optimizer", *REST, WAIT)
    return Saving(loop.length * value, min(low / value, 1.0), max(high / value, 1.0), taken, certain=certain, error=0.0)


def _launches_may_explain(case: Case) -> bool:
    """Return whether launching operators may take the time in which the GPU is idle; True if they were not counted.

    CUDA's launch, the optimizer and modules take some times the calibrated cost of an operator.
    """
    launches = launches_of(case)
    return launches is None or launches.seconds * limits.LAUNCH_MOST >= case.gpu_spare * case.typical("length")


OF_BATCH = ("batch_too_small", "batch_does_not_fit")


def _idle_in_phases(case: Case) -> Found | None:
    """Find GPUs that are idle although the loop is nearly always in its phases."""
    gpu, idle = case.gpu_mean, case.gpu_idle
    if gpu is None or idle is None or case.wait >= limits.HEALTHY or case.outside >= limits.HEALTHY:
        return None
    if gpu >= 100 * limits.MAJORITY and idle < limits.USUAL:
        return None
    best: dict[str, float] = {}
    for device in case.metrics.gpus:
        if np.isfinite(device.mean):
            best[device.node] = max(best.get(device.node, 0.0), device.mean)
    busiest = mean_or_none(list(best.values()))
    if busiest is not None and busiest >= limits.BUSY:
        return None  # one GPU is kept busy, so the load is unbalanced
    bottleneck = max(case.busy_cores, case.rule_share("IOBottleneck"))
    if not case.waits_known and bottleneck >= limits.MAJORITY:
        return None  # an input problem
    evidence = [
        Evidence("mean GPU use in the loop", round(gpu, 1), 100 * limits.MAJORITY, unit="percent", held="good from"),
        Evidence("GPU samples below 10 %", round(idle, 4), unit="share"),
    ]
    explained = _launches_may_explain(case)
    fullest = [device.memory_max for device in case.metrics.gpus if np.isfinite(device.memory_max)]
    memory = max(fullest, default=None)
    text = "idle_gpu_launches" if explained else "idle_gpu_host"
    words = {"gpu": f"{gpu:.0f}", "first": "", "times": 1, "memory": 0.0}
    advice = "idle_gpu_host" if not explained else "idle_gpu_check"
    half_empty = 100 * (limits.MAJORITY - limits.FLOOR)  # twice as much fits
    has_room = memory is not None and memory <= half_empty and explained
    if memory is not None:
        evidence.append(Evidence("most GPU memory in use", round(memory, 1), half_empty, unit="percent"))
        words |= {"memory": memory, "times": int(100 * limits.MOST / max(memory, 1.0))}
    if has_room:
        text = advice = "batch_too_small"
        if case.metrics.batch_size:
            evidence.append(Evidence("batch size", case.metrics.batch_size))
    elif memory is not None and memory >= 100 * limits.MOST and explained:
        text = advice = "batch_does_not_fit"
    low = "" if has_room else "what the host does meanwhile is unknown"
    found = Found(text, words, tuple(evidence), 1 - gpu / 100, advice, low=low)
    return _small_steps(case, found) if has_room else found


def _never_used(case: Case) -> Found | None:
    gpu = case.gpu_mean
    if gpu is None or gpu > thresholds.GPU_NEVER:
        return None
    evidence = Evidence(
        "mean GPU use in the loop", round(gpu, 2), thresholds.GPU_NEVER, unit="percent", held="used from"
    )
    return Found("gpu_never_used", {}, (evidence,), 1 - limits.FLOOR, certain=True)


# --- JAX ------------------------------------------------------------------------------------------------------------

# Innermost functions while JAX launches operations; all other functions of JAX wait for results, compile or call back.
_DISPATCH = re.compile(
    r"(?:jax\._src\.(?:core|dispatch|pjit|traceback_util|interpreters|lax|numpy|nn|scipy|linear_util|custom_derivatives|random|"
    r"prng|ad_util|ad_checkpoint|api_util|tree_util|util|dtypes|config|typing|op_shardings|sharding_impls|named_sharding|mesh)"
    r"|optax|chex)\b"
)


def _uncompiled(case: Case) -> tuple[float, float, float] | None:
    """Return the operations of a gradient function that is not compiled, the seconds of each, and the part of a call they are."""
    found = []
    for args in (record.args for record in case.metrics.recorded(Operators).longest):
        if args.operators > 0 and args.fixed_us > 0 and args.call_us:
            spent = args.operators * args.fixed_us
            found.append((args.operators, args.fixed_us / 1e6, min(spent / args.call_us, 1.0)))
    if not found:
        return None
    count, fixed, part = map(float, np.median(found, axis=0))
    return count, fixed, part


def _one_by_one(case: Case) -> Found | None:
    """Find operations outside compiled functions: a step without jax.jit, or one of which a part is compiled."""
    gpu = case.gpu_mean
    if case.stack.compiler != "jax.jit" or (gpu is not None and gpu >= limits.BUSY):
        return None
    calls = _uncompiled(case)
    compiled = case.mean(lambda rank: rank.share_of_iterations("compiled", without_stalls=True))
    dispatched = _dispatched(case)
    share = min((compiled * calls[2] if calls else 0.0) + dispatched.share, 1.0)
    if share < limits.NOTICEABLE:
        return None
    evidence = [Evidence("time of a training step in operations that run one by one", round(share, 4), unit="share")]
    cost, error = FRAGMENTS["besides_compiled"], dispatched.error
    if calls:
        cost = FRAGMENTS["gradients_one_by_one"].format(operations=f"{calls[0]:,.0f}", each=duration(calls[1]))
        evidence += [
            Evidence("operations of the gradients", round(calls[0])),
            Evidence("fixed cost of such an operation on this machine", round(calls[1] * 1e3, 5), unit="ms"),
        ]
        error = limits.REPEAT_MOST * share
    if dispatched.share > 0:
        evidence.append(Evidence("samples in JAX's own Python outside compiled functions", dispatched.samples))

    def saves(loop: Loop) -> Saving:
        """Save the launches, and at best all that is not compiled yet, with the compilations of single operations."""
        least, value = limits.SAVED[:2]
        inside = loop.of_activity(*_STEP, *(("compiled",) if calls else ()))
        seconds = np.minimum(loop.now * share, inside)
        most = float(inside.sum()) / max(float(seconds.sum()), 1e-12)
        usual = value * (1 + most) / 2
        sure = least if calls else limits.PART_SAVED_INDIRECT[0]
        certain = max(min(sure, 1 - (limits.NOTICEABLE - limits.FLOOR) / share), 0.0)
        once = 0.0, loop.once * limits.MAJORITY / 2, loop.once * limits.MAJORITY
        return Saving(seconds * usual, least / usual, most / usual, certain=certain / usual, once=once)

    return Found(
        "one_by_one", {"share": percent(share), "step": duration(case.typical("length")), "cost": cost}, tuple(evidence), share,
        "one_by_one" if calls else "partly_compiled", saves, "" if calls else "inferred from samples", error,
        lines_of_samples(case.metrics, lambda one: _dispatches(one, inside=calls is not None)),
    )  # fmt: skip


_STEP = ("forward", "backward", "optimizer", *REST)  # activities of a step that launches operations
_TIMED = ("wait", parts.DECLARED, *(part.key for part in parts.phases()))  # of a step


def _dispatches(one: Sampled, *, inside: bool) -> bool:
    in_part = one.phase in BESIDE_THE_PHASES or (inside and one.phase == "compiled")
    return in_part and not one.long and _DISPATCH.match(one.leaf) is not None


@attrs.frozen
class Dispatched:
    """Operations that are launched outside compiled functions: their share of usual steps, and its standard error."""

    share: float = 0.0
    error: float = 0.0
    samples: int = 0


def _dispatched(case: Case) -> Dispatched:
    """Return what is launched outside compiled functions, by its samples among those outside the phases."""
    outer = [one for one in case.metrics.samples.stacks if one.phase in BESIDE_THE_PHASES and not one.long]
    found = [one for one in outer if _dispatches(one, inside=False) and case.seen.activity(one) != RUNNING]

    def of(rank: Rank) -> float:
        spent = sum(one.seconds for one in found if one.process == rank.name)
        usual = float(rank.iterations.length[~rank.stalls.long].sum()) * rank.scale
        timed = sum(rank.share_of_iterations(key, without_stalls=True) for key in _TIMED)
        return min(spent / usual, max(1 - timed, 0.0)) if usual > 0 else 0.0

    share = case.mean(of)
    whole = share * sum(one.seconds for one in outer) / max(sum(one.seconds for one in found), 1e-12)
    return Dispatched(share, min(whole, 1.0) * error_of_part(found, outer), sum(one.count for one in found))


# Waits for results that the hook cannot see: numpy reads an array of JAX in C, and on a CPU waits there for it.
_CONVERTS = re.compile(r"\b(?:np|onp|numpy)\.(?:as\w*array|ascontiguousarray|array|copyto|float\d+)\b|\bmemoryview\(")
_READING = ("outside", "between", "end")


def long_steps_may_wait(rank: Rank, case: Case) -> bool:
    """Return whether the long steps of a process are those that wait, unseen, for what the steps before them compute.

    Their samples lie in lines that hand arrays to numpy, and no wait for results was recorded in them: after one, nothing is
    left to wait for.
    """
    if not _may_wait(rank, case) or not rank.stalls.count:
        return False
    rows = np.flatnonzero(rank.train)
    places = rank.iterations.place[rank.stalls.long]
    results = rank.steps.seconds(RESULTS)[rows[places[places < len(rows)]]]
    if len(results) and float((results > 0).mean()) >= limits.MAJORITY:
        return False
    long = [one for one in case.metrics.samples.stacks if one.process == rank.name and one.places and one.long]
    taken = sum(one.seconds for one in long if one.phase in _READING)
    return taken > 0 and sum(one.seconds for one in long if _converts(one, case)) >= limits.MAJORITY * taken


def waits_unseen(case: Case) -> float:
    """Return the share of the loop in lines that hand arrays of JAX to numpy, outside the phases; the least of the ranks."""

    def of(rank: Rank) -> float:
        if not _may_wait(rank, case) or rank.loop <= 0:
            return 0.0
        own = (one for one in case.metrics.samples.stacks if one.process == rank.name and one.places)
        return min(sum(one.seconds for one in own if _converts(one, case)) / rank.loop, 1.0)

    return min((of(rank) for rank in case.ranks), default=0.0)


def _may_wait(rank: Rank, case: Case) -> bool:
    """Return whether a process computes with JAX, and not on a GPU: from there arrays are copied, which the hook sees."""
    frameworks = {str(one.get("framework")) for one in case.metrics.metadata}
    return frameworks == {"jax"} and not case.metrics.gpus and not rank.on_device


def _converts(one: Sampled, case: Case) -> bool:
    """Return whether a stack ends in a line that hands an array to numpy, or in JAX, which does so for a tree."""
    in_tree = not one.leaf or "tree" in one.leaf
    source = case.metrics.samples.source(one.places[-1])
    return in_tree and one.phase in _READING and _CONVERTS.search(source) is not None


# --- the optimizer and copies ---------------------------------------------------------------------------------------


def optimizer(case: Case) -> Found | None:
    """Find an optimizer that takes longer than a fused one."""
    if case.seen.by_hand and case.stack is not PYTORCH and not _is_compiled(case):
        return None  # operations that run one by one are the finding
    share, step = case.usual("optimizer")
    spent = share * step
    launches = launches_of(case)
    if share <= 0 or (launches is not None and launches.eager and _measured_launches(case, launches) is not None):
        return None  # launches its operators from Python, as all of the step
    # in steps of a millisecond or two, launching the optimizer takes more
    kept = limits.MAJORITY if case.typical("length") <= tiny_step(case) else limits.HEALTHY_PHASE

    repair, is_faster = _fewer_operators(case)

    def saves(loop: Loop) -> Saving:
        """All but what a fused optimizer takes of a step; less of one that must do its work less often, or another way."""
        lost = loop.usual("optimizer")
        saving = all_but(lost, float((loop.training - lost).sum()), (kept, limits.FLOOR, 0.0), ("optimizer",))
        if is_faster:
            return saving
        least, part = limits.PART_SAVED_INDIRECT
        return attrs.evolve(
            saving, seconds=saving.seconds * part, low=min(saving.low, least / part), high=saving.high / part
        )

    evidence = (
        Evidence("time in the optimizer", round(share, 4), unit="share"),
        Evidence("optimizer in a typical step", round(spent * 1e3, 3), unit="ms"),
    )
    words = {"share": percent(share), "time": duration(spent), "repair": repair}
    is_timed = _is_compiled(case) or case.mean(lambda rank: rank.share("optimizer")) >= limits.MAJORITY * share
    return Found(
        "optimizer", words, evidence, share, saves=saves,
        doubt="it has no faster implementation" if not is_faster else "" if is_timed else "inferred from samples",
        error=case.share_error("compiled" if _is_compiled(case) else "optimizer"), where=_lines_of_optimizer(case),
    )  # fmt: skip


def _is_compiled(case: Case) -> bool:
    """Return whether a compiled function holds the optimizer."""
    return any(updates_in_compiled(case.metrics, rank.name) for rank in case.ranks)


def _is_by_hand(case: Case) -> bool:
    """Return whether the script updates its parameters itself, operator by operator."""
    return case.stack is PYTORCH and case.seen.by_hand


def _lines_of_optimizer(case: Case) -> tuple[Location, ...]:
    seen = lines_of_phase(case.metrics, "optimizer") or lines_of_samples(case.metrics, lambda one: case.seen.activity(one) == "optimizer")  # fmt: skip
    if seen:
        return seen
    traced = case.metrics.inside_compiled
    lines = Lines.of(one for one in traced.stacks if one.phase == "optimizer")
    found = lines.locations(lines.weights(), attrs.evolve(case.metrics, samples=traced), least=1)
    return found or lines_of_phase(case.metrics, "compiled", "between")  # the call that runs the steps


_OF_TORCH = re.compile(r"^torch\.optim\.")
_IMPLEMENTATION = re.compile(r"^torch\.optim\.\w+\._(?P<how>single_tensor|multi_tensor|fused)_(?P<algorithm>\w+)$")
_HAS_FUSED = ("adagrad", "adam", "adamw", "sgd")  # algorithms of torch.optim
_HAS_ONE_WAY = ("muon",)  # the same


def _fewer_operators(case: Case) -> tuple[str, bool]:
    """Return what runs the optimizer in fewer operators, and whether something does.

    Of torch's own, it is what the class accepts and does not do already.
    """
    if _is_compiled(case):
        return FRAGMENTS["optimizer_is_compiled"], False
    if case.stack is not PYTORCH:
        return case.stack.optimizer, True
    if _is_by_hand(case):
        return FRAGMENTS["optimizer_is_own"], False
    seen = Counter[str]()
    for one in case.metrics.samples.stacks:
        if one.phase == "optimizer":
            seen[one.leaf] += one.count
    of_torch = Counter({leaf: count for leaf, count in seen.items() if _OF_TORCH.match(leaf)})
    if of_torch.total() < limits.MAJORITY * seen.total():
        return FRAGMENTS["optimizer_is_own"], False
    if not seen:
        return case.stack.optimizer, True
    found = [(match, count) for leaf, count in of_torch.items() if (match := _IMPLEMENTATION.match(leaf))]
    if not found:
        return FRAGMENTS["optimizer_has_one_way"], False
    match = max(found, key=lambda one: one[1])[0]
    if match["algorithm"] in _HAS_ONE_WAY:
        return FRAGMENTS["optimizer_has_one_way"], False
    fused = match["algorithm"] in _HAS_FUSED
    ways = {"single_tensor": "fused=True" if fused else "foreach=True", "multi_tensor": "fused=True" if fused else ""}
    way = ways.get(match["how"], "")
    return FRAGMENTS["optimizer_way" if way else "optimizer_is_fused"].format(way=way), bool(way)


def transfer(case: Case) -> Found | None:
    """Find copies to the device that the training thread waits for, from its sampled lines."""
    if not case.metrics.gpus or not case.ranks:
        return None
    samples = case.metrics.samples

    def copies(one: Sampled) -> bool:
        source = samples.source(one.places[-1]) if one.places else ""
        return one.phase not in BESIDE_THE_LOOP and COPIES.search(source) is not None

    inside = [one for one in samples.stacks if one.phase not in BESIDE_THE_LOOP]
    total, found = sum(one.seconds for one in inside), [one for one in inside if copies(one)]
    share, count = sum(one.seconds for one in found) / total if total > 0 else 0.0, sum(one.count for one in found)
    if not count:
        return None
    pinned = case.metrics.loader.pin_memory
    evidence = [
        Evidence("time of the training thread in copies to the device", round(share, 4), unit="share"),
        Evidence("samples in them", count),
    ]
    if pinned >= 0:
        evidence.append(Evidence("pin_memory of the DataLoader", "on" if pinned else "off"))
    words = {"share": percent(share), "pageable": FRAGMENTS["pageable"] if pinned == 0 else ""}
    doubt = "" if pinned == 0 else "inferred from samples"
    return Found(
        "transfer", words, tuple(evidence), share, saves=lambda loop: part_of_share(loop, share, (COPYING,), sure=not doubt),
        doubt=doubt, error=error_of_part(found, inside), where=lines_of_samples(case.metrics, copies),
    )  # fmt: skip
