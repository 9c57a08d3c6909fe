"""A job as the causes see it: its ledger, its ranks, and numbers that several causes need."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.confidence import CLOSE_TO_FLOOR, OTHERS_WORK, Confidence, few_steps
from sm_profiler.diagnosis.ledger import TRANSFER, UNSEEN, Ledger, Totals
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.ledger import (
    AFTER,
    AGAIN,
    CALLBACKS,
    COLLECTING,
    COPYING,
    EVALUATION,
    LOGGING,
    MAKING,
    OTHER,
    SAVING,
    TRAINS,
    SeenCode,
    ledger_of,
    totals_of,
)
from sm_profiler.diagnosis.profile.lines import SLEEPS, in_loop
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.diagnosis.stack import JAX, PYTORCH, Stack, stack_of
from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.formats.recorded import Compile, Threads
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.parts import Covered
from sm_profiler.metrics.startup import in_first_steps, start_parts
from sm_profiler.metrics.system_fold import Usage

_TRAINERS = {"transformers": ("transformers.",), "lightning": ("lightning.", "pytorch_lightning.")}  # → their modules
NO_LOADER = "no loader to watch in this loop"


def _share(value: float) -> float:
    """Return a share from 0 to 1, even of damaged data."""
    return min(max(float(np.nan_to_num(value)), 0.0), 1.0)


@attrs.frozen(eq=False)
class Found:
    """A cause that was recognized in a case.

    Attributes:
        text: name of its headline in `words.HEADLINES`.
        advice: name of its next step in `words.ADVICE`.
        words: what fills the places of both.
        evidence: numbers behind it, the strongest first.
        share: share of the time that it takes, 0 to 1, of the loop or of the job.
        saves: returns what its repair saves of a loop; None: a part of its share, by how directly it was measured.
        doubt: why it was not measured directly, in a few words; "" if it was.
        error: standard error of the share; None: it varies as much as the steps do.
        where: lines of code.
        of: `loop` or `job`.
        ranks: ranks that cause it.
        larger_batch: its repair is a larger batch.
        certain: the data leave no doubt, even if the numbers are small.
        low: why the confidence is low in any case; "" if it need not be.
        bound: share of the time in which its samples lie, which it cannot exceed.
        label: its name on the page; "" for that of its class.
    """

    text: str
    words: dict[str, Any]
    evidence: tuple[Evidence, ...]
    share: float = attrs.field(converter=_share)
    advice: str = attrs.field(default=attrs.Factory(lambda self: self.text, takes_self=True))
    saves: Callable[[Loop], Saving | None] | None = None
    doubt: str = ""
    error: float | None = None
    where: tuple[Location, ...] = ()
    of: str = "loop"
    ranks: tuple[str, ...] = ()
    larger_batch: bool = False
    certain: bool = False
    low: str = ""
    bound: float = 1.0
    label: str = ""


@attrs.frozen(eq=False)
class Case:
    """Metrics and rule results of one job."""

    metrics: JobMetrics
    rules: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """Processes with enough training steps to be judged."""
        return tuple(rank for rank in self.metrics.ranks if len(rank.iterations) >= thresholds.MIN_STEPS)

    @cached_property
    def in_step(self) -> bool:
        """True if ranks wait for each other, so that as many steps take equally long; independent ones differ."""
        lengths = np.asarray([rank.loop / rank.train_steps for rank in self.ranks])
        return len(lengths) > 1 and bool(np.ptp(lengths) <= limits.REPEAT_MOST * lengths.mean())

    def mean(self, of: Callable[[Rank], float]) -> float:
        """Return the average over the judged ranks; 0 if there are none."""
        return float(np.mean([of(rank) for rank in self.ranks])) if self.ranks else 0.0

    def typical(self, key: str) -> float:
        """Return the median seconds of a part of a step, averaged over ranks."""
        return self.mean(lambda rank: rank.median(key))

    @cached_property
    def loop(self) -> Loop | None:
        """The ledger's steps, averaged over ranks; None with too few of them."""
        before = self.mean(self._compiled_before)
        whole = max(self.mean(lambda rank: rank.loop) - before, 0.0)
        loop = Loop.of(self.ledger, idle=self.gpu_spare, whole=whole, in_step=self.in_step) if self.ranks else None
        return loop and attrs.evolve(loop, once=max(in_first_steps(start_parts(self.metrics)) - before, 0.0))

    def _compiled_before(self, rank: Rank) -> float:
        """Return the seconds in which functions are compiled before the first training step: to make the model."""
        first = float(rank.steps[rank.train].start[0]) / 1e6
        compiles = self.metrics.recorded(Compile).of(rank.name)
        own = [(one.start, one.end) for one in compiles if rank.start <= one.start and one.end <= first]
        return float(Covered.by(*np.array(own).T).before[-1]) if own else 0.0

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the judged ranks' steps."""
        return ledger_of(self.metrics, self.ranks, self.seen)

    def share_of(self, *activities: str) -> float:
        """Return the share of the loop that some activities take, as the report's table of the ledger shows it.

        If ranks wait for each other, all pay for the one that spends most; otherwise it is the mean.
        """
        return self._share(self.ranks, activities)

    @property
    def compiled_again(self) -> float:
        """Share of the loop in which functions are compiled again; of all loops if none is long enough to be judged."""
        return self._share(self.ranks or self.metrics.ranks, (AGAIN,))

    def _share(self, ranks: Sequence[Rank], activities: Sequence[str]) -> float:
        names = {rank.name for rank in ranks}
        shares = [Totals((one,)).share(*activities) for one in self.totals.ranks if one.name in names]
        return float((np.max if self.in_step else np.mean)(shares)) if shares else 0.0

    @cached_property
    def totals(self) -> Totals:
        """The sums of the ledger over whole loops; of no ranks without a loop."""
        return totals_of(self.metrics, self.seen) or Totals(())

    @cached_property
    def seen(self) -> SeenCode:
        """Meaning of the samples outside the phases."""
        return SeenCode.of(self.metrics)

    @cached_property
    def long_rows(self) -> Mask:
        """Rows of the loop that are rare long steps, which the repairs of other causes leave as they are."""
        if self.loop is None:
            return np.zeros(0, np.bool_)
        found = np.zeros(len(self.loop.index))
        for rank in self.ranks:
            if rank.stalls.is_rare and not input_bursts(rank, self.metrics):
                found += self.loop.placed(rank.iterations.index, rank.stalls.long.astype(np.float64))
        return found > 0

    def usual(self, *activities: str) -> tuple[float, float]:
        """Return the share of a usual training step that some activities take, and the seconds of such a step.

        The smaller of mean and median, because what happens in some steps only is not a cost of every step. A thread that
        waits for a core does so in any activity: medians of the activities are without these waits, that of the step is not.
        """
        if self.loop is None:
            return 0.0, 0.0
        rows = ~self.long_rows & (self.loop.index != AFTER)
        length = float(self.loop.training[rows].sum())
        own = [name for name in self.loop.left if name not in (EVALUATION, COLLECTING)]
        step = sum(float(np.median(self.loop.left[name][rows])) for name in own) if rows.any() else 0.0
        if length <= 0 or step <= 0:
            return 0.0, 0.0
        spent = self.loop.of_activity(*activities)[rows]
        return min(float(spent.sum()) / length, float(np.median(spent)) / step), step

    @property
    def outside(self) -> float:
        """Share of a usual step outside its phases and waits."""
        return self.usual(OTHER, UNSEEN, SAVING, LOGGING, CALLBACKS, MAKING, COPYING, TRANSFER)[0]

    @property
    def waits_known(self) -> bool:
        """True if waiting for data was recorded over the whole loop of all judged ranks."""
        return waits_recorded(self.ranks)

    @cached_property
    def wait(self) -> float:
        """Share of the iterations spent waiting for data, without rare stalls and garbage collections."""

        def of(rank: Rank) -> float:
            length = float(rank.iterations.length[rank.iterations.known].sum()) * rank.scale or 1.0
            steady = rank.stalls.is_rare and not input_bursts(rank, self.metrics)
            return max(rank.share_of_iterations("wait", without_stalls=steady) - rank.gc_in_wait / length, 0.0)

        return self.mean(of)

    @property
    def stack(self) -> Stack:
        """Names of repairs in the framework whose steps were recorded."""
        return stack_of(self.metrics.metadata)

    @property
    def compiles(self) -> bool:
        """True if compiled functions run already, so that torch.compile or jax.jit is nothing to try."""
        if self.stack is JAX:
            return any(rank.seconds["compiled"] > 0 for rank in self.ranks)
        return self.stack is PYTORCH and len(self.metrics.recorded(Compile).longest) > 0

    @cached_property
    def trainer(self) -> str:
        """Name of the library that runs the loop, which a line of the script calls; "" if it is the script's."""
        samples = self.metrics.samples
        learning = [one for one in samples.stacks if one.places and one.phase in ("backward", "optimizer")]
        called = any(TRAINS.search(samples.source(one.places[-1])) for one in learning)
        leaves = [one.leaf for one in samples.stacks] if called else []
        found = (name for name, modules in _TRAINERS.items() if any(leaf.startswith(modules) for leaf in leaves))
        return next(found, "")

    @property
    def core_wait(self) -> float:
        """Share of the loop in which the main threads are ready to run and have no core; 0 if it was not recorded."""
        return self.mean(self.core_wait_of)

    def core_wait_of(self, rank: Rank) -> float:
        """Return the core wait of one rank.

        Kernels count some of a sleep as such a wait, so it is no more than what sleeps and waits for others leave.
        """
        usage = self.metrics.usage.get(rank.name)
        waited = usage.core_wait(rank.start, rank.end) if usage is not None else 0.0
        return min(waited, max(1 - self._asleep(rank), 0.0)) if waited > 0 else 0.0

    def _asleep(self, rank: Rank) -> float:
        """Return the share of the loop in which a main thread sleeps, or waits for loader workers or another rank."""
        samples = self.metrics.samples
        slept = sum(
            one.seconds
            for one in samples.stacks
            if one.process == rank.name
            and one.places
            and in_loop(one)
            and SLEEPS.search(samples.source(one.places[-1]))
        )
        share = slept / rank.loop if rank.loop > 0 else 0.0
        share += rank.share("wait") if self.metrics.loader.num_workers > 0 else 0.0
        met = (rank.share(key) - min(one.share(key) for one in self.ranks) for key in parts.MEETINGS)
        return share + (max(met) if self.in_step else 0.0)

    @cached_property
    def shared_wait(self) -> float:
        """Share of the loop in which the main threads have no core because other programs use it.

        While a thread waits for a core, another one runs there. So the waits that other programs cause cannot exceed
        their processor time; the others are those for threads of the training itself, which more machines do not end.
        """

        def of(rank: Rank) -> float:
            others = cores_of_others(self.metrics, rank.node, rank.start, rank.end)
            waited = self.core_wait_of(rank)
            may_use = max((one.args.cores for one in self.metrics.recorded(Threads).of(rank.name)), default=0.0)
            used = self._used_with_peers(rank, may_use)
            left = max(may_use - used, 0.0) if used is not None and may_use > 0 else None  # of its cores
            return min([waited, *(cores for cores in (others, left) if cores is not None)])

        return self.mean(of)

    def _used_with_peers(self, rank: Rank, may_use: float) -> float | None:
        """Return the cores that a rank uses, and the other ranks of its machine if all may use only the same few cores.

        Ranks that may use as many cores as the machine has, or more together than one of them, may run on different ones.
        """

        def cores_of(one: Rank) -> float | None:
            usage = self.metrics.usage.get(one.name)
            return usage.cores_with_children(rank.start, rank.end) if usage is not None else None

        own = cores_of(rank)
        peers = [cores_of(one) or 0.0 for one in self.ranks if one.node == rank.node and one.name != rank.name]
        together = (own or 0.0) + sum(peers)
        return own if own is None or together > may_use * (1 + limits.FLOOR) else together

    def by_others(self, share: float) -> str:
        """Return why steps or ranks may differ by chance: the threads wait for a core as long as that costs; "" if they do not.

        A thread that holds the interpreter may wait for the core in place of the training thread.
        """
        return OTHERS_WORK if self.shared_wait >= max(share, limits.NOTICEABLE) else ""

    @property
    def load_doubt(self) -> str:
        """Reason why it is unknown whether other programs use the cores: the loop is too short for two samples; "" if it is known."""
        if not self.metrics.metadata:  # no hook that samples
            return ""
        return "too short to show whether other programs use the cores" if len(self.own_cores) < len(self.ranks) else ""

    @property
    def own_cores(self) -> list[float]:
        """CPU cores that each judged rank occupies in its loop, of those that recorded it."""
        return self._occupied(Usage.cores)

    @property
    def use_of_cores(self) -> float | None:
        """Share of the cores that the job itself occupies with its loaders' workers, 0 to 1; None if that is not known."""
        known = self._occupied(Usage.cores_with_children)
        return min(float(np.mean(known)) / self.cores, 1.0) if known and self.cores else None

    def _occupied(self, cores_of: Callable[[Usage, float, float], float | None]) -> list[float]:
        used = ((rank, self.metrics.usage.get(rank.name)) for rank in self.ranks)
        found = [cores_of(usage, rank.start, rank.end) for rank, usage in used if usage is not None]
        return [cores for cores in found if cores is not None]

    @property
    def cores(self) -> int:
        """Cores of the process that has the fewest: its share of the node's, of which it may use only some; 0 if unknown.

        Workers inherit the affinity of the process that starts them.
        """
        metrics = self.metrics
        ranks = Counter(rank.node for rank in metrics.ranks)
        shares = [max(count // max(ranks[node], 1), 1) for node, count in metrics.system.cores.items() if count]
        threads = metrics.recorded(Threads)
        usable = [max((one.args.cores for one in threads.of(rank.name)), default=0.0) for rank in metrics.ranks]
        return min([*shares, *(max(math.floor(count), 1) for count in usable if count > 0)], default=0)

    def mostly_waits(self, workers: int, load: float) -> bool | None:
        """Return whether loading, which takes a share of a step, occupies fewer cores than it would if it computed.

        Without workers, the training process loads, whose own CPU time counts, not that of other programs. A short profile
        may lack it, and then busy cores do not show whether loading computes: None.
        """
        metrics, own = self.metrics, self.own_cores
        available = 1 - min(self.core_wait, 1 - limits.FLOOR)  # a thread without a core does not compute
        if workers <= 0 and own:
            return float(np.mean(own)) / available - (1 - load) < limits.MAJORITY * load
        used = [one.of_children(rank.start, rank.end) for rank in self.ranks if (one := metrics.usage.get(rank.name))]
        if workers > 0 and any(used):
            return float(np.mean(used)) / available < limits.MAJORITY * workers
        cpu, cores = metrics.mean_of("cpu"), sum(metrics.system.cores.values())
        if cpu is None or not cores or not metrics.ranks:
            return False
        busy = cpu / 100 * cores / len(metrics.ranks)  # per training process, which occupies one while it does not wait
        idle = bool(busy - (1 - load) < limits.MAJORITY * (workers if workers > 0 else load))
        return idle or (False if workers > 0 else None)

    def would_share_cores(self, workers: int, load: float) -> bool:
        """Return whether worker processes would only take cores from the training process; of `load` as `mostly_waits`.

        It may use a single core, or its own threads keep nearly all of its cores busy, if only by spinning as they wait.
        """
        own = float(np.mean(self.own_cores)) if workers <= 0 and self.own_cores and not self.metrics.gpus else 0.0
        busy = self.cores == 1 or own >= limits.BUSY / 100 * max(self.cores, 2)
        return busy and not self.mostly_waits(workers, load)

    @property
    def gpu_mean(self) -> float | None:
        """Mean use of all GPUs in the loop, percent; None without GPUs."""
        return mean_or_none([gpu.mean for gpu in self.metrics.gpus])

    def gpu_counter(self, metric: str) -> float | None:
        """Return the mean of a metric of all GPUs in the loop; None if they do not have it."""
        of_gpus = self.metrics.system.of(metric)
        return mean_or_none([data.mean_within(*self.metrics.gpu_span) for data in of_gpus.values()])

    @property
    def gpu_spare(self) -> float:
        """Share of the loop in which the GPUs are idle; all of it if they were not sampled, or never used."""
        gpu = self.gpu_mean
        return 1.0 if gpu is None or gpu <= thresholds.GPU_NEVER else max(1 - gpu / 100, 0.0)

    @property
    def gpu_idle(self) -> float | None:
        """Share of the GPU samples in the loop that are idle; None without GPUs."""
        return mean_or_none([gpu.idle for gpu in self.metrics.gpus])

    def rule_share(self, rule: str) -> float:
        """Return the violations of a bottleneck rule per data point; 0 with too few data points."""
        found = self.rules.get(rule, {})
        points = found.get("Datapoints", 0)
        return float(found.get("Violations", 0)) / points if points >= limits.SAMPLES else 0.0

    @property
    def busy_cores(self) -> float:
        """Share of the moments in which CPUs, and not only the core of a recorded training thread, keep GPUs waiting."""
        cpu = self.metrics.mean_of("cpu")
        alone = bool(self.ranks) and cpu is not None and cpu < limits.BUSY
        return 0.0 if alone else self.rule_share("CPUBottleneck")

    @property
    def steps(self) -> int:
        """Iterations of the judged rank with the fewest; 0 if there are none."""
        return min((len(rank.iterations) for rank in self.ranks), default=0)

    def share_error(self, key: str) -> float:
        """Return the standard error of the share that a part, or collecting garbage, has of the iterations; of the worst rank."""

        def of(rank: Rank) -> float:
            own, collects = rank.iterations, key == COLLECTING
            rows = (own.known | collects) & (own.index >= thresholds.WARM_UP_STEPS)
            weight = np.ones(len(own)) if collects else own.weight
            return _share_error((own.gc if collects else own.of(key))[rows], own.length[rows], weight[rows])

        return max(map(of, self.ranks), default=0.0)

    def confidence(self, found: Found, certain: float) -> Confidence:
        """Return how sure a finding is, from the share of the time that its repair certainly saves.

        It is high if that is well beyond the floor, also in standard errors, the cause was measured directly, and many steps
        were recorded. It is low if chance, or other programs on the machine, may have lifted it over the floor.
        """
        if found.certain:
            return Confidence("high")
        if found.low:
            return Confidence("low", found.low)
        error = found.error
        if error is None:
            error = found.share * max((_relative_error(rank.iterations.length) for rank in self.ranks), default=0.0)
        beyond = certain - limits.FLOOR
        # waits for a core shift the shares of the parts
        far = certain * (1 - self.shared_wait) >= limits.FAR
        steady = beyond >= limits.SURE_SIGMAS * error
        clear, sure = far and steady, not found.doubt
        if clear and sure and self.steps >= limits.STEADY_STEPS:
            return Confidence("high")
        if not clear and self.shared_wait >= limits.MAJORITY:
            return Confidence("low", OTHERS_WORK)
        level = "medium" if beyond >= error and (sure or clear) else "low"
        if not sure:
            return Confidence(level, found.doubt)
        if not clear:
            return Confidence(level, "the steps vary much" if far else CLOSE_TO_FLOOR)
        recorded = min((rank.train_steps for rank in self.metrics.ranks), default=0)  # none is judged of a short loop
        return Confidence(level, few_steps(self.steps or recorded))


def cores_of_others(metrics: JobMetrics, node: str, start: float, end: float) -> float | None:
    """Return the CPU cores that others than the training and its workers occupy on a node; None if that is not known."""
    cpu, cores = metrics.system.of("cpu").get((node, "")), metrics.system.cores.get(node)
    usage = [metrics.usage[rank.name] for rank in metrics.ranks if rank.node == node and rank.name in metrics.usage]
    known = [used for own in usage if (used := own.cores_with_children(start, end)) is not None]
    if cpu is None or not cores or not known or not np.isfinite(busy := cpu.mean_within(start, end)):
        return None
    return max(busy / 100 * cores - sum(known), 0.0)


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean of the finite values; None if there are none."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def waits_recorded(ranks: Sequence[Rank]) -> bool:
    """Return whether waiting for data was recorded over the whole loop of all these processes."""
    return bool(ranks) and all(rank.has_waits or rank.waits_seen > limits.MOST for rank in ranks)


def declared_shares(ranks: Sequence[Rank]) -> list[tuple[str, float]]:
    """Return the phases that the script declared with their shares of the loop, averaged over ranks, largest first."""
    shares: dict[str, float] = {}
    for rank in ranks:
        for name, spent in rank.declared.items():
            shares[name] = shares.get(name, 0.0) + (spent / rank.loop / len(ranks) if rank.loop else 0.0)
    return sorted(shares.items(), key=lambda item: (-item[1], item[0]))


def input_bursts(rank: Rank, metrics: JobMetrics) -> bool:
    """Return whether the long waits recur with each round of the loader's workers, so that slow workers cause them."""
    stalls, workers = rank.stalls, metrics.loader.num_workers
    if stalls.where != "wait" or workers <= 0 or not stalls.count:
        return False
    return bool(stalls.long.mean() >= limits.MAJORITY / workers) and (stalls.period is None or stalls.period <= workers)


def _blocks(values: Floats) -> Floats:
    """Return the sums of some consecutive stretches of equally many values, because neighbours resemble each other."""
    return np.asarray(
        values[: len(values) // limits.STRETCHES * limits.STRETCHES].reshape(limits.STRETCHES, -1).sum(axis=1)
    )


def _share_error(part: Floats, whole: Floats, weight: Floats) -> float:
    """Return the standard error of the ratio of two sums over iterations, from stretches of equal weight."""
    if not len(whole) or (whole @ weight) <= 0:
        return 0.0
    ends = np.cumsum(weight)
    block = ((ends - weight / 2) / ends[-1] * limits.STRETCHES).astype(np.int64)
    parts, wholes = (np.bincount(block, one * weight, limits.STRETCHES) for one in (part, whole))
    rest = parts - parts.sum() / wholes.sum() * wholes
    return float(np.sqrt((rest**2).sum() / (len(rest) * (len(rest) - 1))) / wholes.mean())


def _relative_error(values: Floats) -> float:
    """Return the standard error of the mean as a share of it."""
    sums = _blocks(values)
    return float(sums.std(ddof=1) / np.sqrt(len(sums)) / sums.mean()) if sums.sum() > 0 else 0.0
