"""Waiting for data: why the loader is slow, and what more workers, or less work, would save."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.confidence import OTHERS_WORK
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.computing import MAX_NAME, host, part_of_share
from sm_profiler.diagnosis.profile.ledger import BESIDE_THE_PHASES, COLLECTING, MAKING, WAIT
from sm_profiler.diagnosis.profile.lines import WORKER, error_of_part, lines_of_phase, lines_of_samples
from sm_profiler.diagnosis.profile.loader_queue import fetch_times, simulated_wait
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.diagnosis.words import FRAGMENTS
from sm_profiler.formats.columns import Floats
from sm_profiler.formats.recorded import DataStages, Input, place_of
from sm_profiler.formatting import duration, percent, plural, shorten
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.record_fold import Record

MAX_MOUNTS = 4


@attrs.frozen
class Workers:
    """Loader workers of one training process.

    Attributes:
        now: configured workers, -1 if unknown.
        cores: cores that each process may use, of the one that has the fewest; 0 if unknown.
        needed: workers that would deliver a batch in the rest of the step, at the present speed of each.
        wait, rest: seconds of an average step spent waiting, and not waiting.
        computing: seconds that the CPU time of a step, with its loading, takes on all the cores; 0 if unknown.
        idle: loading itself mostly waits, so more workers than cores can run at once; None if that is not known.
    """

    now: int
    cores: int
    needed: int
    wait: float
    rest: float
    idle: bool | None = False
    computing: float = 0.0

    @property
    def suggested(self) -> int:
        """Number to try: at least what is needed, limited by the cores if loading computes."""
        wanted = max(limits.WORKERS, self.needed)
        limit = self.cores or max(2 * limits.WORKERS, self.now + 1)
        usual = max(min(wanted, limit), 1)
        return max(usual, min(self.needed, limits.WORKERS * max(self.cores, 1))) if self.idle else usual

    def advice(self) -> str:
        """Return a sentence about the workers needed, and about the cores if they do not suffice."""
        words = {
            "rest": duration(self.rest), "needed": plural(self.needed, "worker"), "count": f"{self.needed:,}", "cores": plural(self.cores, "core"),
            "are": "is" if self.needed == 1 else "are",
        }  # fmt: skip
        few = not self.cores or self.needed <= self.cores
        beyond = {True: "workers_idle", False: "workers_many", None: "workers_unknown"}[self.idle]
        return FRAGMENTS["workers_few" if few else beyond].format_map(words)

    def would_share_cores(self, case: Case, now: int | None = None) -> bool:
        """Return whether more workers would only take cores from the training; `now` if the loader is none of torch's."""
        load = self.wait / max(self.wait + self.rest, 1e-9)
        return case.would_share_cores(self.now if now is None else now, load)


def workers_of(case: Case) -> Workers:
    """Estimate the workers that the judged ranks need from the time that a batch takes today."""
    metrics = case.metrics
    wait = _mean_wait(case)
    step = case.mean(lambda rank: rank.mean("length", without_stalls=False))
    now, rest = metrics.loader.num_workers, max(step - wait, 1e-6)
    load = now * step if now > 0 else wait  # without workers, the process loads only while it waits
    idle, own = case.mostly_waits(now, wait / max(step, 1e-9)), case.own_cores
    computing = step * float(np.mean(own)) / case.cores if now <= 0 and own and case.cores else 0.0
    shortest = max(rest, computing) if idle else rest  # no number of workers loads faster than the cores compute
    needed = max(math.ceil(load / shortest), now + 1, 1)
    return Workers(now, case.cores, needed, wait, shortest, idle, computing)


def _mean_wait(case: Case) -> float:
    return case.mean(lambda rank: rank.mean("wait", without_stalls=False))


def waiting(case: Case) -> Found | None:
    """Find waiting for batches; without recorded waits, the making of batches or its footprint in the system metrics."""
    found = _by_restarts(case) or _by_waits(case)
    return found or (None if case.waits_known else _by_own_iterator(case) or _by_system(case))


def storage(case: Case) -> Found | None:
    """Find waiting for data that is waiting for a shared file system."""
    metrics, wait = case.metrics, case.wait
    in_progress, latency = metrics.mean_of("nfs_in_progress"), metrics.mean_of("nfs_latency")
    stalled, read = (metrics.mean_of("io_pressure") or 0.0) / 100, metrics.mean_of("disk_read")
    mounts, least = _shared_mounts(metrics), limits.MAJORITY * wait
    evidence = [Evidence("time in the training loop spent waiting for data", round(wait, 4), unit="share")]
    if wait < limits.HEALTHY:
        return None
    if in_progress is not None and in_progress >= least:
        busy = min(in_progress, 1.0)
        evidence.append(Evidence("NFS operations in progress, on average", round(in_progress, 3), round(least, 3)))
        if latency is not None:
            evidence.append(Evidence("mean duration of an NFS operation", round(latency, 3), unit="ms"))
    elif mounts and stalled >= least and (read or 0.0) < limits.TRICKLE:
        busy = stalled
        evidence += [
            Evidence("time in which some process waited for I/O", round(busy, 4), round(least, 4), unit="share"),
            Evidence("reads from local disks", round(read or 0.0), limits.TRICKLE, unit="bytes/s"),
        ]
    else:
        return None
    if mounts:
        named = ", ".join(f"{place} ({kind})" for place, kind in mounts.items())
        evidence.append(Evidence("shared file systems", named))
    share = min(metrics.average_share("wait"), busy)
    took = FRAGMENTS["operation_takes"].format(time=duration(latency / 1e3)) if latency else ""
    sure = in_progress is not None
    return Found(
        "storage", {"share": percent(wait), "took": took}, tuple(evidence), share,
        saves=lambda loop: part_of_share(loop, share, (WAIT,), limits.HEALTHY, sure=sure),
        doubt="" if sure else "inferred from the machine's I/O waits", where=_lines(case),
    )  # fmt: skip


def _lines(case: Case) -> tuple[Location, ...]:
    """Return what the loader's workers do; without workers, what the loop does to get a batch, or where the dataset is defined.

    The definition alone does not show which of its lines take the time.
    """
    # A sample or two of a worker may as well show what it hands over.
    found = lines_of_samples(case.metrics, lambda one: one.phase == WORKER) or lines_of_phase(case.metrics, "wait")
    record = training_input(case)
    place = place_of(record.args) if record is not None else None
    return found or ((Location(*place, share=0.0),) if place else ())


def _shared_mounts(metrics: JobMetrics) -> dict[str, str]:
    """Return the shared file systems of all processes, mount point → type."""
    found: dict[str, str] = {}
    for one in metrics.metadata:
        mounts = one.get("shared_mounts")
        if isinstance(mounts, dict):
            found |= {shorten(str(place), 60): shorten(str(kind), 20) for place, kind in mounts.items()}
    return dict(list(found.items())[:MAX_MOUNTS])


def _by_restarts(case: Case) -> Found | None:
    """Find a loader whose workers start again after each evaluation: the wait for their first batch is in no iteration."""

    def of(rank: Rank) -> float:
        usual = float(rank.iterations.of("wait") @ rank.iterations.weight) * rank.scale
        return max(rank.seconds["wait"] - usual, 0.0) / rank.loop if rank.loop > 0 else 0.0

    workers, first, share = case.metrics.loader.num_workers, case.mean(of), case.metrics.average_share("wait")
    if not case.metrics.average_share("evaluation"):  # what is left are waits at the start of an attempt
        return None
    if workers <= 0 or first < limits.HEALTHY or first < limits.MAJORITY * share or not case.waits_known:
        return None
    words = {
        "share": percent(share),
        "first": percent(first),
        "workers": plural(workers, "worker"),
        "start": "starts" if workers == 1 else "start",
    }
    evidence = (
        Evidence("time in the training loop spent waiting for data", round(share, 4), unit="share"),
        Evidence("waiting for the first batch after an evaluation", round(first, 4), unit="share"),
        Evidence("DataLoader worker processes", workers),
    )
    return Found(
        "workers_restart", words, evidence, share, saves=lambda loop: _faster_input(case, loop),
        doubt="the start of the workers is not timed by itself", where=_lines(case),
    )  # fmt: skip


def _by_waits(case: Case) -> Found | None:
    wait, mean = case.wait, _mean_wait(case)
    least = handed_over(case)
    # handing over a ready batch takes longer if others have the cores
    if wait < limits.FLOOR or mean * (1 - case.shared_wait) <= least:
        return None
    if mean < limits.HANDOVER_S and (steps := host(case)) is not None and steps.larger_batch:
        return None  # what the loader's own code takes for a batch, a larger batch spreads like that of the steps
    share = case.metrics.average_share("wait")  # of the whole loop with its evaluation, like the chart
    step = case.mean(lambda rank: rank.mean("length", without_stalls=False))
    cause = _keras(case) or _of_stage(slow_stage(case)) or _cause(case)
    doubt = "" if case.waits_known else "inferred, not measured directly"
    if _others_hold_the_cores(case):
        doubt = OTHERS_WORK
    evidence = (
        Evidence("time in the training loop spent waiting for data", round(share, 4), unit="share"),
        Evidence("mean wait for a batch", round(mean * 1e3, 3), least * 1e3 or None, unit="ms"),
        *cause.evidence,
    )
    (short, unit), length = duration(mean).split(" "), duration(step)
    loops = [rank for rank in case.metrics.ranks if rank.loop > 0]
    whole = sum(rank.loop for rank in loops) / max(sum(rank.train_steps - rank.left_out for rank in loops), 1)
    words = {
        **cause.words, "share": percent(share), "of_step": percent(mean / step if step > 0 else 0.0), "wait": duration(share * whole),
        "of": f"{short} of {length}" if length.endswith(f" {unit}") else f"{short} {unit} of {length}",
        "step": duration(whole), "clause": cause.clause, "more": cause.more,
    }  # fmt: skip

    def saves(loop: Loop) -> Saving:
        """Save nothing of waits that are as short as in a healthy loop: in what other repairs have left of this one."""
        left = loop.total / float(loop.length.sum())
        return _faster_input(case, loop) if wait >= limits.HEALTHY * left else Saving(loop.now * 0.0)

    same = abs(mean / max(step, 1e-12) - share) < limits.REPEAT  # shares of the loop and of a step this close are one
    return Found(
        "waiting" if same else "waiting_in_steps", words, evidence, share, cause.advice,
        saves, doubt, case.share_error("wait"),
        cause.where or _lines(case),
    )  # fmt: skip


def handed_over(case: Case) -> float:
    """Return the seconds that a wait may take without being the input's fault: to hand over a batch that is ready.

    Without workers, nothing is ready: the training process makes the batch while it waits.
    """
    workers, mean = case.metrics.loader.num_workers, _mean_wait(case)
    if workers == 0:
        return 0.0
    late = workers > 0 or (mean > 0 and batch_seconds(case) >= mean)
    return limits.HANDOVER_S if late else limits.COLLATING_S


def _others_hold_the_cores(case: Case) -> bool:
    """Return whether threads that load in the training process wait for cores that other programs use."""
    metrics, own = case.metrics, case.own_cores
    used, cores = metrics.mean_of("cpu"), sum(metrics.system.cores.values())
    processes = metrics.loader.num_workers > 0 or any(one.args.processes for one in metrics.recorded(Input).longest)
    if used is None or used < limits.BUSY or not cores or processes or not own or len(own) < len(metrics.ranks):
        return False
    usable = min(case.cores * len(metrics.ranks), cores)
    others = used / 100 * cores - sum(own) - (cores - usable)  # at least, on the cores that the training may use
    return others >= limits.MAJORITY * usable


@attrs.frozen
class _Cause:
    """Cause of a slow loader: the end of the headline, the name of the next step, evidence, lines, words of both."""

    clause: str
    advice: str
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Location, ...] = ()
    words: dict[str, Any] = attrs.field(factory=dict)
    more: str = ""


def _cause(case: Case) -> _Cause:
    metrics = case.metrics
    workers, cpu, io_wait = metrics.loader.num_workers, metrics.mean_of("cpu"), metrics.mean_of("io_wait")
    received, pool = metrics.mean_of("received"), workers_of(case)
    evidence: list[Evidence] = []
    if workers >= 0:
        evidence.append(Evidence("DataLoader worker processes", workers))
    own = case.use_of_cores  # what other programs use is free again when they end
    if cpu is not None:
        held = limits.BUSY if own is None else None
        evidence.append(Evidence("mean CPU use in the loop", round(cpu, 1), held, unit="percent"))
    if own is not None:
        evidence.append(Evidence("cores that the job itself occupies", round(own, 4), limits.MOST, unit="share"))
    words = {"workers": plural(workers, "worker"), "now": workers, "suggested": pool.suggested}
    words["per_gpu"] = " per GPU" if metrics.gpus else ""
    words["loader"] = FRAGMENTS["loader_of_trainer" if case.trainer == "transformers" else "loader"].format_map(words)

    def cause(name: str, more: str = "", advice: str = "") -> _Cause:
        clause = FRAGMENTS[f"input_{name}"].format_map(words)
        return _Cause(clause, f"input_{advice or name}", tuple(evidence), (), words, more)

    # Others read from the same disk, too; a loader that computes does not wait for it.
    if io_wait is not None and io_wait > 100 * limits.NOTICEABLE and pool.idle is not False:
        evidence.append(
            Evidence("mean I/O wait in the loop", round(io_wait, 1), 100 * limits.NOTICEABLE, unit="percent")
        )
        return cause("disk")
    if received is not None and received > limits.NETWORK_BUSY:
        evidence.append(
            Evidence("mean network input in the loop", round(received), limits.NETWORK_BUSY, unit="bytes/s")
        )
        return cause("network")
    if workers == 0:
        if pool.wait * (1 - case.shared_wait) < limits.COLLATING_S and not pool.idle:
            return cause("one_by_one")
        if pool.would_share_cores(case):
            return cause("no_workers", advice="one_core")
        return cause("no_workers", pool.advice())
    if own >= limits.MOST if own is not None else cpu is not None and cpu >= limits.BUSY:
        return cause("cores_busy")
    if workers > 0 and pool.cores and workers >= pool.cores and not pool.idle:
        return cause("worker_per_core", advice="cores_busy")
    return cause("few_workers", pool.advice()) if workers > 0 else cause("unknown")


def _by_own_iterator(case: Case) -> Found | None:
    """Find batches that the script's own generator or iterator makes, in the training process: no loader's waits show it."""
    if any(rank.has_waits for rank in case.ranks):
        return None
    maker = case.seen.maker
    outer = [one for one in case.metrics.samples.stacks if one.phase in BESIDE_THE_PHASES]
    making = [one for one in outer if maker(one) is not None]
    share, step = case.usual(MAKING)
    spent = sum(one.seconds for one in making)
    if spent <= 0 or share * step < limits.HANDOVER_S:
        return None
    error = share * error_of_part(making, outer) * sum(one.seconds for one in outer) / spent
    place = maker(max(making, key=lambda one: one.seconds))
    function = shorten(place.function, MAX_NAME) if place else ""

    def saves(loop: Loop) -> Saving | None:
        sampled = loop.usual(MAKING)
        seconds = sampled + loop.of_activity(COLLECTING) * case.seen.collected_in(MAKING)
        least, value, most = limits.SAVED
        rest = max(1 - limits.HEALTHY / max(share, 1e-9), 0.0)
        return Saving(
            seconds * value,
            least / value,
            most / value,
            (MAKING, COLLECTING),
            strict=True,
            certain=min(least, rest) / value,
            error=error / max(share, 1e-9) * float(sampled.sum()) / max(float(seconds.sum()), 1e-12),
        )

    evidence = (
        Evidence("time in which the next batch is made", round(share, 4), unit="share"),
        Evidence("the same in a typical step", round(share * step * 1e3, 3), unit="ms"),
    )
    words = {
        "share": percent(share),
        "function": function,
        "time": duration(share * step),
        "step": duration(step),
        "repair": case.stack.generators.format(function),
    }
    shared = case.would_share_cores(0, share)
    return Found(
        "own_iterator", words, evidence, share, "input_one_core" if shared else "own_iterator", saves, error=error,
        where=lines_of_samples(case.metrics, lambda one: maker(one) is not None),
    )  # fmt: skip


def _by_system(case: Case) -> Found | None:
    """Find GPUs that are idle while CPU cores are saturated or wait for the disk."""
    idle, cpu, disk = case.gpu_idle, case.busy_cores, case.rule_share("IOBottleneck")
    share = max(cpu, disk)
    # a GPU that is idle in all samples is unused; it does not wait for data
    if idle is None or not limits.USUAL <= idle < 1 or share < limits.MAJORITY:
        return None
    cores = "CPU cores are saturated" if cpu >= disk else "CPU cores wait for the disk"
    evidence = (
        Evidence(f"moments with idle GPUs while {cores}", round(share, 4), limits.MAJORITY, unit="share"),
        Evidence("GPU samples below 10 % in the loop", round(idle, 4), unit="share"),
    )
    return Found(
        "idle_gpus_wait", {"cores": cores, "share": percent(share)}, evidence, share,
        "input_cores" if cpu >= disk else "input_disk", lambda loop: part_of_share(loop, share, (WAIT,), sure=False),
        "inferred from system metrics",
        low="inferred from system metrics" if share < limits.CLEARLY * limits.MAJORITY else "", where=_lines(case),
    )  # fmt: skip


# --- what the repair saves ------------------------------------------------------------------------------------------


def _faster_input(case: Case, loop: Loop) -> Saving:
    """Simulate the loader with the advised workers; the steps stay as long as they are, or as the cores allow."""
    wait = loop.usual(WAIT)
    if wait.sum() <= 0:
        return Saving(wait)
    pool, compute = workers_of(case), np.maximum(loop.training - loop.of_activity(WAIT), 0.0)
    rows = loop.training > 0
    if pool.now < 0 and not case.own_cores:
        left = limits.COLLATING_S, limits.HANDOVER_S, 0.0
    else:
        left = left_after(pool, wait[rows], compute[rows], _cpu(case), case.own_cores)
    mean = float(wait[rows].mean())
    # Work that is done once is not done in each epoch, with any number of cores: half of it may be of that kind.
    workers, usual, most = (wait * (1 - min(one / mean, 1.0)) for one in left)
    less = wait / 2
    collected = case.mean(lambda rank: rank.gc_in_wait / rank.gc if rank.gc > 0 else 0.0) * loop.of_activity(COLLECTING)
    saving = Saving.of_scenarios([workers, np.maximum(usual, less), np.maximum(most, less) + collected], (WAIT,))
    total = float(saving.seconds.sum())
    return attrs.evolve(saving, certain=max(saving.low, float(less.sum()) / total) if total > 0 else 0.0)


def _cpu(case: Case) -> float:
    """Return the share of the time in which all cores are busy, 0 to 1; 0 if unknown."""
    return min(max(case.metrics.mean_of("cpu") or 0.0, 0.0), 100.0) / 100


def left_after(
    pool: Workers, wait: Floats, compute: Floats, cpu: float, own_cores: list[float]
) -> tuple[float, float, float]:
    """Return the seconds by which a step is longer than its computation after the repair: at worst, usually, at best.

    Workers that compute need cores, and the work of all cores does not become less. Without workers, the training process
    does all of it, and its CPU time is known; otherwise the work is bounded by what all programs on the machine do, and by
    what the job can do: the step takes one core, or all of them.

    Args:
        pool: the workers, as they are and as advised.
        wait: seconds of each step spent waiting.
        compute: seconds of each step without waiting.
        cpu: share of the time in which the machine's cores are busy.
        own_cores: cores that each training process occupies.
    """
    fetch, rest, mean = fetch_times(wait, wait + compute, pool.now), limits.HANDOVER_S, float(compute.mean())
    usual = simulated_wait(fetch, compute, pool.suggested)
    fewest = simulated_wait(
        fetch, compute, max(min(pool.needed, pool.suggested) if pool.idle else pool.needed, pool.now + 1)
    )
    if pool.idle or not pool.cores:
        least = max(pool.computing - mean, 0.0)
        return max(fewest, least, limits.COLLATING_S), max(usual, least) + rest, least
    step = float((wait + compute).mean())
    load = float((wait if pool.now <= 0 else (wait + compute) * pool.now).mean())
    if pool.now <= 0 and own_cores:
        # a process that waits for cores, which others use, occupies less of them than its work needs
        shared, crowded = step * float(np.mean(own_cores)) / pool.cores, (load + mean) / pool.cores
    else:
        shared, crowded = min(step * cpu, (load + mean) / pool.cores), min(step * cpu, load / pool.cores + mean)
    slowed = mean * limits.REPEAT_MOST  # the workers use the other cores and the memory's bandwidth
    shared, crowded = max(shared - mean, 0.0), max(crowded - mean, 0.0)
    return max(fewest, crowded + slowed) + rest, max(usual, shared) + rest, 0.0  # at best, work is done once and kept


# --- Keras and tf.data ----------------------------------------------------------------------------------------------


def _keras(case: Case) -> _Cause | None:
    """Return the cause in a PyDataset or a generator of Keras; None for other inputs."""
    record = training_input(case)
    if record is None or record.name not in {"PyDataset", "generator"}:
        return None
    where, now, pool = _lines(case), max(record.args.num_workers or 0, 0), workers_of(case)
    shared = pool.would_share_cores(case, now)
    if record.name == "generator":
        return _Cause(FRAGMENTS["input_generator"], "input_one_core" if shared else "input_generator", (), where)
    more = max(pool.suggested, 2, now + 1)
    threads = not record.args.processes
    words = {
        "now": now, "suggested": more, "queue": 2 * more, "kind": "threads" if threads else "processes",
        "processes": FRAGMENTS["use_processes"] if threads else "",
    }  # fmt: skip
    name = "input_py_dataset_workers" if now else "input_py_dataset"
    evidence = (Evidence("workers of the PyDataset", max(now, 1)),)
    advice = "input_one_core" if shared else name
    return _Cause(FRAGMENTS[name].format_map(words), advice, evidence, where, words, pool.advice())


def training_input(case: Case) -> Record[Input] | None:
    """Return the input that most training steps read, or None; a loop over an input begins after its record.

    An input that was read again is recorded once: its later steps count for the input before them.
    """
    records = case.metrics.recorded(Input)
    if not records.longest:
        return None
    rank = next((rank for rank in case.ranks if records.of(rank.name)), None)
    if rank is None or not len(rank.train):
        return records.longest[0]
    own = records.of(rank.name)
    rows = np.searchsorted(rank.steps.start, [one.start * 1e6 for one in own])
    read = [(one, row) for one, row in zip(own, rows, strict=True) if row < len(rank.train) and rank.train[row]]
    if not read:
        return own[0]
    ends = [*(row for _, row in read[1:]), len(rank.train)]
    steps = [int(rank.train[row:end].sum()) for (_, row), end in zip(read, ends, strict=True)]
    return read[steps.index(max(steps))][0]


_CALLS_PYTHON = ("from_generator",)
_FUNCTIONS = ("map", "interleave", "filter", "flat_map")


@attrs.frozen
class Stage:
    """A stage of a tf.data pipeline, as TensorFlow's own model measured it.

    Attributes:
        name: `map(decode)`.
        element: seconds for one of its elements; 0 if TensorFlow forgot them.
        batch: seconds for a batch of the loop, with its parallelism.
        share: part of the time of all stages for a batch.
        parallelism: elements that it processes at once.
        parallel: whether that number can be raised.
        prefetch, cache: whether a stage of the pipeline does that.
        place: the user's function, if it is known.
    """

    name: str
    element: float
    batch: float
    share: float
    parallelism: int
    parallel: bool
    prefetch: bool
    cache: bool
    place: Location | None

    @property
    def repair(self) -> str:
        """Name of the text about how to make it faster."""
        if self.name.startswith(_CALLS_PYTHON):
            return "stage_python"
        if self.name.startswith(("map", "interleave")) and (not self.parallel or self.parallelism <= 1):
            return "stage_serial" if not self.parallel else "stage_one"
        if self.name.startswith(_FUNCTIONS):
            return "stage_function"
        return "stage_shuffle" if self.name.startswith("shuffle") else "stage_other"

    @property
    def advice(self) -> str:
        """The next step."""
        steps = [FRAGMENTS[self.repair].format(name=self.name, parallelism=self.parallelism)]
        if not self.prefetch:
            steps.append(FRAGMENTS["stage_prefetch"])
        if not self.cache and self.name.startswith(_FUNCTIONS):
            steps.append(FRAGMENTS["stage_cache"])
        return " ".join(steps)


def _of_stage(stage: Stage | None) -> _Cause | None:
    if stage is None:
        return None
    how = f"{stage.parallelism} at once" if stage.parallelism > 1 else "one at a time"
    words = {"stage": stage.name, "element": duration(stage.element), "how": how}
    evidence = [Evidence("slowest stage of the input pipeline", stage.name)]
    if stage.element:
        evidence += [
            Evidence("its time for one element", round(stage.element * 1e3, 4), unit="ms"),
            Evidence("its time for a batch", round(stage.batch * 1e3, 3), unit="ms"),
            Evidence("its part of all stages' time", round(stage.share, 4), limits.MAJORITY, unit="share", held="judged from"),
        ]  # fmt: skip
    clause = FRAGMENTS["input_stage" if stage.element else "input_stage_unmeasured"].format_map(words)
    return _Cause(clause, "input_stage", tuple(evidence), (stage.place,) if stage.place else (), words, stage.advice)


def batch_seconds(case: Case) -> float:
    """Return the seconds in which the stages make a batch, without handing over what is ready; 0 if none were recorded."""
    sums = (
        sum(one.batch_us or 0.0 for one in about.stages if not one.stage.startswith("prefetch"))
        for about in _latest(case)
    )
    return max((spent / 1e6 for spent in sums), default=0.0)


def slow_stage(case: Case) -> Stage | None:
    """Return the stage that takes most of the time for a batch, or None if none dominates or none was recorded."""
    wait = _mean_wait(case)
    stages = [stage for about in _latest(case) if (stage := forgotten(about, wait) or slowest(about)) is not None]
    return max(stages, key=lambda stage: stage.batch, default=None)


def _latest(case: Case) -> list[DataStages]:
    """Return the most complete record of each judged process."""
    found = ([one.args for one in case.metrics.recorded(DataStages).of(rank.name)] for rank in case.ranks)
    return [max(own, key=known) for own in found if own]


def known(about: DataStages) -> tuple[bool, int]:
    """Return how complete the stages of a record are: all of them, for many batches."""
    return not about.partial, about.batches


def forgotten(about: DataStages, wait: float) -> Stage | None:
    """Return the stage that TensorFlow forgot, if those that it measured explain little of the wait for a batch."""
    lost = about.forgotten
    measured = sum(one.batch_us or 0.0 for one in about.stages) / 1e6
    if not about.partial or lost is None or measured > limits.MAJORITY * wait:
        return None
    place = place_of(lost)
    if place is None:
        return None
    return Stage(
        lost.stage[:100], 0.0, wait, 1.0, 1, parallel=False, prefetch=True, cache=about.cache,
        place=Location(*place, 1.0, "wait"),
    )  # fmt: skip


def slowest(about: DataStages) -> Stage | None:
    """Return the stage of a record that takes most of the time for a batch, or None if none dominates."""
    worst = max(about.stages, key=lambda one: one.batch_us or 0.0, default=None)
    total = sum(one.batch_us or 0.0 for one in about.stages)
    if worst is None or worst.batch_us is None or total <= 0:
        return None
    share = worst.batch_us / total
    if share < limits.MAJORITY or worst.stage.startswith("prefetch"):
        return None  # to hand over what is ready is no work
    place = place_of(worst)
    if place is None and worst.stage.startswith(_CALLS_PYTHON):
        return None  # a library's generator, whose workers are known otherwise
    return Stage(
        worst.stage[:100], (worst.us or 0.0) / 1e6, worst.batch_us / 1e6, share, max(int(worst.parallelism or 0), 1),
        bool(worst.parallel), about.prefetch, about.cache, place and Location(*place, share, "wait"),
    )  # fmt: skip
