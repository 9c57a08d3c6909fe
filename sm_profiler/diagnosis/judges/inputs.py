"""Judge of the input pipeline: whether the loop waits for batches, and why."""

from __future__ import annotations

import attrs

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import INDIRECT, OTHERS_WORK
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.keras_inputs import KerasInput, keras_input
from sm_profiler.diagnosis.judges.loop import MAX_NAME, outside_share, usual_length
from sm_profiler.diagnosis.judges.tf_data import Stage, batch_seconds, slow_stage
from sm_profiler.diagnosis.judges.workers import workers_of
from sm_profiler.diagnosis.judges.written import BESIDE_THE_PHASES
from sm_profiler.diagnosis.model import Evidence, Finding, Location
from sm_profiler.diagnosis.where import WAIT, WORKER, lines_of_samples
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, percent, plural, shorten
from sm_profiler.metrics.job_metrics import Rank

_TRY = "'sm-profiler try-loader SCRIPT' measures how many pay off"


def judge_input(context: JudgeContext) -> Finding | None:
    """Find waiting for batches; without recorded waits, the making of batches or its footprint in the system metrics."""
    return (
        _by_restarts(context)
        or _by_waits(context)
        or (None if context.waits_known else _by_own_iterator(context) or _by_system(context))
    )


def _by_restarts(context: JudgeContext) -> Finding | None:
    """Find a loader whose workers start again after each evaluation: the wait for their first batch is in no iteration."""

    def of(rank: Rank) -> float:
        usual = float(rank.iterations.of("wait").sum()) * rank.scale
        return max(rank.slices["wait"] - usual, 0.0) / rank.loop if rank.loop > 0 else 0.0

    workers, first, share = context.metrics.loader.num_workers, context.mean(of), context.metrics.average_share("wait")
    if not context.metrics.average_share("evaluation"):  # what is left are waits at the start of an attempt
        return None
    if workers <= 0 or first < policy.INPUT_WAIT or first < policy.EXPLAINED * share or not context.waits_known:
        return None
    return Finding(
        Class.INPUT_BOUND,
        f"Training waits for data {percent(share)} of the loop, {percent(first)} for the first batch after an evaluation, while "
        f"{plural(workers, 'worker')} {'starts' if workers == 1 else 'start'}.",
        (
            Evidence("time in the training loop spent waiting for data", round(share, 4), policy.INPUT_WAIT, unit="share"),
            Evidence("waiting for the first batch after an evaluation", round(first, 4), policy.INPUT_WAIT, unit="share"),
            Evidence("DataLoader worker processes", workers, unit=""),
        ),
        "Keep the loader's workers alive between epochs: persistent_workers=True, and one DataLoader for all epochs; the same for "
        "the loader of the evaluation. If the dataset is small and in memory, num_workers=0 may be faster still.",
        share,
        confidence=context.confidence(first, policy.INPUT_WAIT, sure=False),
    )  # fmt: skip


def _by_waits(context: JudgeContext) -> Finding | None:
    wait = context.wait
    mean = context.mean(lambda rank: rank.mean("wait", without_stalls=False))
    is_late = context.metrics.loader.num_workers > 0 or (mean > 0 and batch_seconds(context) >= mean)
    least_ms = policy.HANDOVER_MS if is_late else policy.INPUT_WAIT_MS
    on_cores = mean * (1 - context.shared_wait)  # handing over a ready batch takes longer if others have the cores
    if wait < policy.INPUT_WAIT or on_cores * 1e3 < least_ms:
        return None
    share = context.metrics.average_share("wait")  # of the whole loop with its evaluation, like the chart
    fed, stage = keras_input(context), slow_stage(context)
    cause = _of_keras(fed, context) if fed else _of_stage(stage) if stage else _cause(context)
    iteration = context.mean(lambda rank: rank.mean("length", without_stalls=False))
    return Finding(
        Class.INPUT_BOUND,
        f"{_headline(share, mean, iteration)}{cause.clause}.",
        (
            Evidence(
                "time in the training loop spent waiting for data", round(share, 4), policy.INPUT_WAIT, unit="share"
            ),
            Evidence("mean wait for a batch", round(mean * 1e3, 3), least_ms, unit="ms"),
            *cause.evidence,
        ),
        cause.advice,
        share,
        confidence=context.confidence(
            wait,
            policy.INPUT_WAIT,
            sure=context.waits_known and not _others_hold_the_cores(context),
            doubt=OTHERS_WORK if context.waits_known else INDIRECT,
            error=context.share_error(lambda one: one.iterations.of("wait")),
        ),
        where=cause.where,
    )


def _others_hold_the_cores(context: JudgeContext) -> bool:
    """Return whether threads that load in the training process wait for cores that other programs use."""
    metrics = context.metrics
    used, cores = metrics.mean_of("cpu"), sum(metrics.system.cores.values())
    inputs = metrics.records.get(event_names.INPUT)
    processes = metrics.loader.num_workers > 0 or any(
        one.args.get("processes") is True for one in (inputs.longest if inputs else ())
    )
    own = [
        spent for rank in context.ranks if (usage := metrics.usage.get(rank.name)) is not None
        and (spent := usage.cores(rank.start, rank.end)) is not None
    ]  # fmt: skip
    if used is None or used < policy.LOADER_HOT_CPU or not cores or processes or not own:
        return False
    if len(own) < len(metrics.ranks):  # the others would count as other programs
        return False
    others = used / 100 * cores - sum(own)
    return others >= policy.OTHERS_CORES * cores


def _headline(share: float, wait: float, iteration: float) -> str:
    """Return the start of the headline, with the step's share too if evaluation makes it differ from the loop's."""
    of_step = wait / iteration if iteration > 0 else 0.0
    if abs(of_step - share) < policy.SAME_SHARE:
        return (
            f"The loop waits for data {percent(share)} of the time: {duration(wait)} of an average training step of "
            f"{duration(iteration)}"
        )
    short, unit = duration(wait).split(" ")
    length, unit_of_step = duration(iteration).split(" ")
    both = f"{short} of {length} {unit}" if unit == unit_of_step else f"{short} {unit} of {length} {unit_of_step}"
    return f"Training waits for data {percent(share)} of the loop ({percent(of_step)} of a training step: {both})"


@attrs.frozen
class _Cause:
    """Cause of a slow loader: the end of the headline, the next step, and evidence."""

    clause: str
    advice: str
    evidence: tuple[Evidence, ...]
    where: tuple[Location, ...] = ()


def _of_keras(fed: KerasInput, context: JudgeContext) -> _Cause:
    sampled = lines_of_samples(context.metrics, lambda one: one.phase in (WAIT, WORKER))
    return _Cause(fed.clause, fed.advice, fed.evidence, sampled or ((fed.place,) if fed.place else ()))


def _of_stage(stage: Stage) -> _Cause:
    return _Cause(stage.clause, stage.advice, stage.evidence, (stage.place,) if stage.place else ())


def _cause(context: JudgeContext) -> _Cause:
    metrics = context.metrics
    workers, cpu, io_wait = metrics.loader.num_workers, metrics.mean_of("cpu"), metrics.mean_of("io_wait")
    received, pool = metrics.mean_of("received"), workers_of(context)
    evidence: tuple[Evidence, ...] = ()
    if workers >= 0:
        evidence += (Evidence("DataLoader worker processes", workers, unit=""),)
    if cpu is not None:
        evidence += (Evidence("mean CPU use in the loop", round(cpu, 1), policy.LOADER_HOT_CPU, unit="percent"),)
    if io_wait is not None and io_wait > policy.IO_WAIT:
        evidence += (Evidence("mean I/O wait in the loop", round(io_wait, 1), policy.IO_WAIT, unit="percent"),)
        return _Cause(
            ", and the CPU cores wait for the disk",
            "Read from faster or closer storage (local NVMe, FSx), or pack small files into large binary ones (WebDataset, "
            "Parquet, TFRecord). Then let workers prefetch (prefetch_factor).",
            evidence,
        )
    if received is not None and received > policy.NETWORK_BUSY:
        evidence += (Evidence("mean network input in the loop", round(received), policy.NETWORK_BUSY, unit="bytes/s"),)
        return _Cause(
            " while data streams in over the network",
            "Send less over the network (compress, resize once, use binary shards), keep the data on local disk after the first "
            "epoch, or use FastFile mode or FSx closer to the job.",
            evidence,
        )
    if workers == 0:
        return _Cause(
            " because batches are prepared in the training process itself (num_workers=0)",
            f"Prepare batches in worker processes: DataLoader(…, num_workers={pool.suggested}, persistent_workers=True), with "
            f"pin_memory=True if there is a GPU; {_TRY}. {pool.advice()}",
            evidence,
        )
    hot = cpu is not None and cpu >= policy.LOADER_HOT_CPU
    if hot or (workers > 0 and pool.cores and workers >= pool.cores and not pool.idle):
        return _Cause(
            ", and all CPU cores are busy" if hot else ", with one worker per core already",
            "Reduce preprocessing: do it once and store the result, use faster decoding and augmentation libraries or the GPU, or "
            f"use an instance with more CPU cores per GPU. If items are cheap to make, fewer workers or none are faster: {_TRY}.",
            evidence,
        )
    if workers > 0:
        return _Cause(
            f": {plural(workers, 'worker')} cannot keep up",
            f"Give the DataLoader more workers (num_workers={pool.suggested} instead of {workers}) and a larger "
            f"prefetch_factor; {_TRY}. {pool.advice()}",
            evidence,
        )
    return _Cause(
        "",
        "Make the input pipeline more parallel (more workers, prefetching); if the CPU is busy, preprocess once and store the "
        "result.",
        evidence,
    )


def _by_own_iterator(context: JudgeContext) -> Finding | None:
    """Find batches that the script's own generator or iterator makes, in the training process: no loader's waits show it."""
    if any(rank.has_waits for rank in context.ranks):
        return None
    maker, stacks = context.seen.maker, context.metrics.samples.stacks
    beside = [one for one in stacks if one.places and not one.long and one.phase in BESIDE_THE_PHASES]
    making = [one for one in beside if maker(one) is not None]
    if sum(one.count for one in beside) < policy.OUTSIDE_SAMPLES or not making:
        return None
    part = sum(one.seconds for one in making) / sum(one.seconds for one in beside)
    share, iteration = outside_share(context) * part, usual_length(context)
    mean = share * iteration
    if share < policy.INPUT_WAIT or mean * 1e3 < policy.HANDOVER_MS:
        return None
    longest = max(making, key=lambda one: one.seconds)
    place = maker(longest)
    function = shorten(place.function, MAX_NAME) if place else ""
    repair = context.stack.generators.format(function)
    return Finding(
        Class.INPUT_BOUND,
        f"The loop waits {percent(share)} of the time for its next batch, which {function}() makes in the training process: "
        f"{duration(mean)} of a typical step of {duration(iteration)}.",
        (
            Evidence("time in which the next batch is made", round(share, 4), policy.INPUT_WAIT, unit="share"),
            Evidence("the same in a typical step", round(mean * 1e3, 3), policy.HANDOVER_MS, unit="ms"),
        ),
        f"Let other processes make the batches: {repair} If it makes the same batches in each epoch, make them once.",
        share,
        confidence=context.confidence(
            share, policy.INPUT_WAIT, error=context.share_error(lambda one: one.iterations.of("outside"))
        ),
        where=lines_of_samples(context.metrics, lambda one: not one.long and maker(one) is not None),
    )


def _by_system(context: JudgeContext) -> Finding | None:
    """Find GPUs that are idle while CPU cores are saturated or wait for the disk."""
    idle = context.gpu_idle
    if idle is None or not policy.GPU_IDLE <= idle < policy.ALWAYS_IDLE:
        return None
    cpu, disk = context.busy_cores, context.rule_share("IOBottleneck")
    share = max(cpu, disk)
    if share < policy.INPUT_SYSTEM:
        return None
    cores = "CPU cores are saturated" if cpu >= disk else "CPU cores wait for the disk"
    advice = (
        "Give the loader more workers and let it prefetch; if all cores are busy, preprocess once and store the result."
        if cpu >= disk
        else "Read from faster or closer storage, or pack small files into large binary ones; then prefetch."
    )
    return Finding(
        Class.INPUT_BOUND,
        f"The GPUs wait for data: they are idle while {cores} {percent(share)} of the time.",
        (
            Evidence(f"moments with idle GPUs while {cores}", round(share, 4), policy.INPUT_SYSTEM, unit="share"),
            Evidence("GPU samples below 10 % in the loop", round(idle, 4), policy.GPU_IDLE, unit="share"),
        ),
        advice,
        share,
        confidence=context.confidence(share, policy.INPUT_SYSTEM, sure=False),
    )
