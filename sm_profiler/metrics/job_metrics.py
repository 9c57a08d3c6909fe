"""Metrics of a job: everything that judges and pages read, computed once from the folds."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import attrs
import numpy as np

from sm_profiler.config.launched import BEGINNING_S, NO_KNOWN_STEP, Launched, next_file
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formats.process_end import RUNNING
from sm_profiler.formats.recorded import AtLine, Callback, CompiledWork, EvalMode, Hang, Log, Profiling, Save, TrainMode
from sm_profiler.formatting import shorten
from sm_profiler.identity import INSTANCE_TYPE, MACHINE, machine_of
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.attempts import (
    Attempts,
    between_attempts,
    described_interruptions,
    ended_attempts,
    evaluation_seconds,
    find_attempts,
    gpus_of_others,
    join_successors,
    process_name,
    since_training,
    trainings,
)
from sm_profiler.metrics.ends import EndFacts, JobEnd, end_of, of_last_attempt, rank_ends, unrecorded_ranks, with_hangs
from sm_profiler.metrics.left_out import UNDISTURBED, Disturbed, FunctionTime, Kept, disturbed_spans, keep_undisturbed
from sm_profiler.metrics.record_fold import Kind, Records, move_with_steps, read_args, rename_processes, since
from sm_profiler.metrics.roles import Switches
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples, shown_text
from sm_profiler.metrics.stalls import (
    Iterations,
    Stalls,
    as_run_on_device,
    find_stalls,
    iterations_of,
    of_all,
    strata,
    weighted,
)
from sm_profiler.metrics.step_fold import (
    COMMUNICATION,
    DECLARED_IN_STEP,
    LOADER,
    OWN_IN_STEP,
    RESULTS,
    TRAIN,
    LoaderSettings,
    StepRows,
    StepSummary,
    column,
    each_process,
)
from sm_profiler.metrics.step_sample import Judged, Totals, time_between
from sm_profiler.metrics.system_fold import SystemSeries, Usage
from sm_profiler.settings import ROTATE_SECONDS


@attrs.frozen(eq=False, kw_only=True)
class Rank:
    """One training process; all times in seconds.

    Attributes:
        name: `algo-1-0`.
        steps: its steps.
        start, end: start and end of its loop, seconds since the epoch.
        seconds: key of each of `parts.PARTS` → time; they add up to the length of the loop.
        gc, gc_in_wait: garbage collection, and that in waits.
        communication: recorded collectives, included in the parts.
        attempts: its attempts; more than one if the job was interrupted and resumed.
        has_waits: waiting for data was recorded for the whole loop.
        waits_seen: share of the training steps with a recorded wait.
        on_device: phases and waits are those of the GPU instead of the host.
        iterations: its iterations.
        stalls: the long ones among them.
        left_out: training steps that the profiler slowed down, and that are not judged.
        excluded: time of those steps and of the profiler's own work; not part of the loop.
        declared: phases that the script declared, name → time.
        stretches: start and end of each stretch of such steps.
        forward_only: steps of evaluation that were recorded as training steps, as those without torch.no_grad() are.
        within_steps: forwards without gradients that were recorded as steps of evaluation, and are part of training steps.
        judged: set if `steps` and `iterations` hold a sample; times and counts of the rank are those of all steps.
    """

    name: str
    steps: StepRows
    start: float
    end: float
    seconds: dict[str, float]
    gc: float
    gc_in_wait: float
    communication: float
    attempts: Attempts
    has_waits: bool
    waits_seen: float
    on_device: bool
    iterations: Iterations
    stalls: Stalls
    left_out: int = 0
    excluded: float = 0.0
    declared: dict[str, float] = attrs.field(factory=dict)
    judged: Judged | None = None
    stretches: tuple[tuple[float, float], ...] = ()
    forward_only: int = 0
    within_steps: int = 0

    @property
    def node(self) -> str:
        """`algo-1`."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def scale(self) -> float:
        """Training steps for each one that `steps` holds."""
        return self.judged.scale if self.judged is not None else 1.0

    @property
    def all_steps(self) -> int:
        """Number of all steps."""
        return self.judged.steps if self.judged is not None else len(self.steps)

    @property
    def train_steps(self) -> int:
        """Number of all training steps."""
        return self.judged.train if self.judged is not None else int(self.train.sum())

    @property
    def loop(self) -> float:
        """Length of the loop without downtime, without the time in which the profiler was off, and without what it caused."""
        return max(self.end - self.start - self.attempts.unseen_s - self.excluded, 0.0)

    @property
    def train(self) -> Mask:
        """Mask of the training steps."""
        return np.equal(self.steps.mode, TRAIN)

    def share(self, key: str) -> float:
        """Return a part as a share of the loop."""
        return self.seconds[key] / self.loop if self.loop > 0 else 0.0

    @property
    def stall_share(self) -> float:
        """Time lost in long steps as a share of the loop, without the collections in them."""
        return (self.stalls.excess - self.stalls.collected) / self.loop if self.loop > 0 else 0.0

    def share_of_iterations(self, key: str, *, without_stalls: bool = False) -> float:
        """Return a part as a share of the iterations; those without recorded phases are as the recorded ones around them."""
        weight = self.iterations.weight * ~self.stalls.long if without_stalls else self.iterations.weight
        total = float(self.iterations.length @ weight)
        return float(self.iterations.of(key) @ weight) / total if total > 0 else 0.0

    def mean(self, key: str, *, without_stalls: bool = True) -> float:
        """Return the mean seconds of a part, by default over the iterations that are not long."""
        rows = ~self.stalls.long if without_stalls else np.ones(len(self.iterations), np.bool_)
        if not rows.any():
            return 0.0
        share = self.share_of_iterations(key, without_stalls=without_stalls)
        return float(self.iterations.length[rows].mean()) * share

    def median(self, key: str) -> float:
        """Return the median seconds of a part over the iterations."""
        known = self.iterations.known
        order = np.argsort(values := self.iterations.of(key)[known])
        sums = np.cumsum(self.iterations.weight[known][order])
        middle = np.searchsorted(sums, sums[-1:] / 2)
        return float(values[order][middle[0]]) if len(middle) else 0.0


@attrs.frozen(eq=False)
class GpuMetrics:
    """Use of one GPU in the training loop, or in the job if no loop was recorded; percent."""

    node: str
    name: str
    mean: float
    idle: float  # share of samples below thresholds.SAMPLE_IDLE
    memory: float
    memory_max: float


_SHOWN_NODES = 16
MAX_MOVES = 3  # nodes that changed their machine


@attrs.frozen(eq=False, kw_only=True)
class JobMetrics:
    """Metrics of one job. Times are seconds since the epoch.

    Attributes:
        name: name of the job.
        start, end: first and last sample or event.
        running: the job has not ended yet.
        nodes: names of the nodes.
        ranks: training processes.
        gpus: GPUs.
        system: system metrics over time.
        loader: settings of the data loader.
        overhead: the hook's own time as a share of the loop, the largest of the ranks; None if not recorded.
        windows_cost: of it for windows.
        instance_type: type of the instances, if the user or the job gave it.
        metadata: the hook's record of each process.
        memory: process → (seconds, bytes) of its resident memory.
        batch_size: samples of a batch of the loader, if known.
        samples_per_step: samples that the model was given in a training step, on average, if known.
        calls_per_step: calls in which it was given them.
        input_sizes: process → elements of the model's input over the course of training, shape (steps, 2): step, elements.
        dtype: type of the model's parameters; "" if it is unknown.
        padding: part of the batches that is padding, and part that is padding beyond the longest sequence of each batch.
        collate: the script's function that makes batches, of the first process that has one.
        padding_inferred: it was counted by the tokens, and not by a mask.
        records: phase → its occurrences, see `recorded`; a phase that was not recorded is absent.
        samples: Python stacks of the training processes.
        usage: process → its CPU time and page faults over time.
        description: the response of DescribeTrainingJob; empty if unknown.
        functions: the script's functions in the Python window, the most expensive first.
        types_by_node: node → type of its instance, if they were recorded and none was given.
        others_gpus: GPUs that only other programs use, which are in no other attribute.
        earlier_trainings: number of those that ended by themselves before the one that all other attributes are about.
        ending: how it ended.
        between_attempts: seconds between attempts without a sign of life of any process or monitor; no machine time.
    """

    name: str
    start: float
    end: float
    running: bool
    nodes: tuple[str, ...]
    ranks: tuple[Rank, ...]
    gpus: tuple[GpuMetrics, ...]
    system: SystemSeries
    loader: LoaderSettings
    overhead: float | None = None
    windows_cost: float = 0.0
    instance_type: str | None = None
    metadata: tuple[dict[str, Any], ...] = ()
    memory: dict[str, tuple[Floats, Floats]] = attrs.field(factory=dict)
    batch_size: int | None = None
    records: Mapping[str, Records[Any]] = attrs.field(factory=dict)
    samples: Samples = attrs.field(factory=Samples)
    usage: Mapping[str, Usage] = attrs.field(factory=dict)
    description: Mapping[str, Any] = attrs.field(factory=dict)
    functions: tuple[FunctionTime, ...] = ()
    types_by_node: Mapping[str, str] = attrs.field(factory=dict)
    others_gpus: tuple[tuple[str, str], ...] = ()
    earlier_trainings: int = 0
    samples_per_step: float | None = None
    calls_per_step: float | None = None
    input_sizes: Mapping[str, Floats] = attrs.field(factory=dict)
    dtype: str = ""
    padding: tuple[float, float] | None = None
    collate: AtLine = attrs.field(factory=AtLine)
    padding_inferred: bool = False
    ending: JobEnd = attrs.field(factory=JobEnd)
    between_attempts: float = 0.0

    def recorded(self, kind: type[Kind]) -> Records[Kind]:
        """Return the occurrences of a kind; none if it was not recorded."""
        return self.records.get(kind.phase, Records())

    @property
    def samples_as_timed(self) -> Samples:
        """The samples, of which those of a part of a rank's loop take as long together as was measured.

        A thread that samples gets the interpreter more easily while the script computes without it, so that samples alone
        show too little of Python code.
        """
        sampled = Counter[tuple[str, str]]()
        for one in self.samples.stacks:
            sampled[one.process, one.part] += one.seconds  # type: ignore[assignment] # counts of time
        timed = {
            (rank.name, part): sum(rank.seconds[key] for key in keys)
            for rank in self.ranks
            if not rank.on_device  # whose parts are the GPU's time, and the samples the host's
            for part, keys in _SAMPLED_PARTS.items()
        }
        factors = {key: timed[key] / spent for key, spent in sampled.items() if spent > 0 and timed.get(key)}
        scaled = (
            attrs.evolve(one, seconds=one.seconds * factors.get((one.process, one.part), 1.0))
            for one in self.samples.stacks
        )
        return attrs.evolve(self.samples, stacks=tuple(sorted(scaled, key=lambda one: -one.seconds)))

    @property
    def inside_compiled(self) -> Samples:
        """Time inside compiled functions, by the calls in which their operations were traced."""
        stacks, sources = [], {}
        for record in self.recorded(CompiledWork).longest:
            for one in record.args.stacks:
                places = tuple(Place(shown_text(file), line, shown_text(name)) for file, line, name in one.frames)
                if places and one.us > 0:
                    phase = "optimizer" if one.updates else "compiled"
                    stacks.append(
                        Sampled(record.process, phase, False, places, shown_text(one.operation), one.us / 1e6, 1)
                    )
                    sources[places[-1].file, places[-1].line] = shown_text(one.source or "")
        return Samples(tuple(stacks), sources)

    @property
    def duration(self) -> float:
        """Seconds from start to end; 0 for a job without data."""
        return max(self.end - self.start, 0.0) if np.isfinite(self.end - self.start) else 0.0

    @property
    def on_device(self) -> bool:
        """True if a GPU timed the phases of all ranks."""
        return bool(self.ranks) and all(rank.on_device for rank in self.ranks)

    @property
    def loop(self) -> tuple[float, float] | None:
        """Start and end of the training loop over all ranks."""
        if not self.ranks:
            return None
        return min(rank.start for rank in self.ranks), max(rank.end for rank in self.ranks)

    @property
    def gpu_span(self) -> tuple[float, float]:
        """Start and end of what the use of the GPUs is judged by: the loop without its start."""
        return _warm_span(self.ranks, self.loop or (self.start, self.end))

    @property
    def initialization(self) -> float | None:
        """Seconds before the loop."""
        return max(self.loop[0] - self.start, 0.0) if self.loop else None

    @property
    def loading(self) -> float | None:
        """Seconds until the slowest process had imported the framework; None if the hook did not record it."""
        loaded = [float(one["loaded_us"]) / 1e6 - self.start for one in self.metadata if one.get("loaded_us")]
        return max(0.0, *loaded) if loaded and np.isfinite(loaded).all() else None

    @property
    def steps_per_second(self) -> float | None:
        """Training steps a second of the first rank, over its loop without evaluation."""
        if not self.ranks:
            return None
        rank = self.ranks[0]
        span = rank.loop - rank.seconds["evaluation"]
        return float((rank.train_steps - rank.left_out) / span) if span > 0 else None

    @property
    def trainings(self) -> str:
        """That the profile holds several trainings, as a sentence; "" for one."""
        if not self.earlier_trainings:
            return ""
        return (
            f"The profile holds {self.earlier_trainings + 1} trainings, one after the other; this is about the last. "
            "A LocalPath for each keeps them apart."
        )

    @property
    def interruptions(self) -> tuple[int, float]:
        """Number of interruptions, and the downtime in seconds."""
        attempts = [rank.attempts for rank in self.ranks]
        count = max((one.count - 1 for one in attempts), default=0)  # those that recorded steps
        return max(count, described_interruptions(self.description)), max((one.down_s for one in attempts), default=0.0)

    @property
    def attempts_without_steps(self) -> tuple[int, ...]:
        """Numbers, from 1, of the attempts that trained and ended, by the job's description, and have no step."""
        attempts = ended_attempts(self.description)
        if len(attempts) <= 1 or not self.ranks:
            return ()
        steps = np.concatenate([[rank.start * 1e6, *rank.steps.start] for rank in self.ranks]) / 1e6
        stored = set(np.searchsorted([start for start, _ in attempts[1:]], steps, side="right").tolist())
        return tuple(number for number, (_, ended) in enumerate(attempts, 1) if ended and number - 1 not in stored)

    @property
    def node_types(self) -> dict[str, int]:
        """Instance type → number of nodes, of which a heterogeneous cluster has several; empty if unknown."""
        if not self.instance_type:
            return {}
        kinds = [self.types_by_node.get(node, self.instance_type) for node in self.nodes or ("",)]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    @property
    def identity(self) -> dict[str, str]:
        """User, account, job and so on as the scheduler names them, and `label:…`; what all processes agree on.

        Without a process that the hook recorded, it is what the monitors of all nodes agree on.
        """
        found = [one["identity"] for one in self.metadata if one.get("identity")]
        found = found or [
            {key: text for key, text in owner.items() if key not in {MACHINE, INSTANCE_TYPE}}
            for owner in self.system.owners.values()
        ]
        shared = dict(found[0]) if found else {}
        for one in found:
            shared = {key: value for key, value in shared.items() if one.get(key) == value}
        return shared

    @property
    def host_names(self) -> dict[str, str]:
        """Machine of each node of which one is known."""
        names = {node: owner.get("host", "") for node, owner in self.system.owners.items()}
        for one in self.metadata:
            host = (one.get("identity") or {}).get("host")
            if host:
                names[str(one.get("node"))] = str(host)
        return {node: shorten(str(host)) for node, host in names.items() if host}

    @property
    def machines(self) -> dict[str, dict[str, float]]:
        """Each node's machines, as the hook recorded them, in time order: a requeued job may go on elsewhere.

        The number is the seconds from the start of the attempts there to their last sign of life.
        """
        found: dict[str, dict[str, float]] = {}
        by_node: dict[str, list[dict[str, Any]]] = {}
        for one in sorted(self.metadata, key=_began):
            by_node.setdefault(str(one.get("node")), []).append(one)
        for node, records in by_node.items():
            named = [
                (_began(one), machine_of(one.get("identity") or {}, str(one.get("host") or ""))) for one in records
            ]
            moves = [next(some) for _, some in groupby((one for one in named if one[1]), key=lambda one: one[1])]
            spans = _lifetimes([rank for rank in self.ranks if rank.node == node], records)
            for (begin, machine), (until, _) in pairwise([*moves, (math.inf, "")]):
                mine = [span for span in spans if begin <= span[0] < until]
                seconds = max(span[1] for span in mine) - min(span[0] for span in mine) if mine else 0.0
                machines = found.setdefault(node, {})
                machines[machine] = machines.pop(machine, 0.0) + seconds  # the last one is that of the last attempt
        return found

    @property
    def moves(self) -> list[str]:
        """The first nodes whose attempts ran on several machines, as `algo-1 on gpu01, then gpu02`."""
        moved = [f"{node} on {', then '.join(some)}" for node, some in self.machines.items() if len(some) > 1]
        return moved[:MAX_MOVES]

    def with_hosts(self, text: str) -> str:
        """Add the machines of the nodes and processes that a sentence names, each once, as `algo-2-9 (gpu02)`."""
        process = r"(?:-\d+)?" if len(self.nodes) > 1 else ""  # on one node, processes are shown as `rank 0`
        for node, host in self.host_names.items():
            if host != node:
                named = rf"(?<![\w./-]){re.escape(node)}{process}(?![\w/-])"
                shown = host.replace("\\", r"\\")  # a replacement's own signs
                text = re.sub(named, rf"\g<0> ({shown})", text, count=1)
        return text

    @property
    def hosts(self) -> str:
        """Nodes of a job with several, each with its machine, as `algo-1 (gpu01), algo-2 (gpu02)`; "" if none has a name."""
        names = self.host_names
        if len(self.nodes) == 1 or not names:
            return ""
        known = [f"{node} ({names[node]})" if node in names else node for node in self.nodes]
        more = f" and {len(known) - _SHOWN_NODES} more" if len(known) > _SHOWN_NODES else ""
        return f"{', '.join(known[:_SHOWN_NODES])}{more}"

    def average_share(self, key: str) -> float:
        """Return a part as a share of the loop, averaged over ranks."""
        loops = [rank for rank in self.ranks if rank.loop > 0]
        return float(np.mean([rank.share(key) for rank in loops])) if loops else 0.0

    def mean_of(self, metric: str) -> float | None:
        """Return the mean of a system metric in the loop over all nodes; None if it was not recorded."""
        span = self.loop or (self.start, self.end)
        means = [data.mean_within(*span) for data in self.system.of(metric).values()]
        means = [mean for mean in means if np.isfinite(mean)]
        return float(np.mean(means)) if means else None


def measure_rank(  # each argument is a source of times
    name: str,
    steps: StepRows | Judged,
    span_us: tuple[float, float],
    attempts: Attempts,
    disturbed: Disturbed = UNDISTURBED,
    declared_us: Mapping[str, float] | None = None,
    collected_us: Mapping[str, float] | None = None,
) -> Rank:
    """Divide the loop of one process into its slices, without what the profiler itself caused.

    Args:
        name: name of the process.
        steps: its steps, or a sample of them: sums are those of all its steps. Of a sample, steps that the profiler slowed
            are not judged, but counted: among so many they make no difference.
        span_us: start and end of its loop.
        attempts: its attempts.
        disturbed: spans in which the profiler slowed the steps.
        declared_us: the script's own phases, name → time.
        collected_us: garbage collections, part of the loop → time.
    """
    start, end = span_us[0] / 1e6, span_us[1] / 1e6
    if isinstance(steps, Judged):
        found = steps.without([*disturbed.windows, *disturbed.calls])
        kept, count, totals = Kept(found.rows, found.index, found.breaks), found.train, found.totals
        attempts, steps = attrs.evolve(attempts, breaks=found.breaks), found.rows
    else:
        found, again = None, attempts.count > 1 or attempts.breaks
        kept = keep_undisturbed(steps, UNDISTURBED if again else disturbed, span_us)
        kept = attrs.evolve(kept, breaks=kept.breaks or attempts.breaks)
        count, totals = int((kept.rows.mode == TRAIN).sum()), Totals.of(kept.rows)
        totals.evaluation = evaluation_seconds(kept.rows, kept.breaks) * 1e6
    rows, has_waits = kept.rows, totals.waits > 0
    waits = rows.seconds("wait")
    if not has_waits:  # the old hook recorded waiting in its dataloader window only
        gaps = np.maximum(rows.start - np.concatenate([rows.start[:1], rows.end[:-1]]), 0) / 1e6
        waits = np.minimum(rows.seconds(LOADER), gaps)
    device = as_run_on_device(rows)
    if device is not None:
        waits = device.seconds("wait")
    iterations = iterations_of(device or rows, waits, kept.breaks, on_device=device is not None, index=kept.index)
    if found is not None:
        place = np.searchsorted(kept.index[rows.mode == TRAIN], iterations.index)
        iterations = attrs.evolve(iterations, place=place)
    own, stalls = totals.own / 1e6, find_stalls(iterations)
    iterations = weighted(iterations, stalls.long)
    loop = max(end - start - attempts.unseen_s - kept.seconds - own, 0.0)
    slices = _slices(device or rows, waits, kept.index, iterations, on_device=device is not None)
    if found is not None:
        slices = _of_all(slices, found, on_device=device is not None)
    slices = _with_rest(slices, loop, max(totals.evaluation - totals.own_in_evaluation, 0.0) / 1e6)
    collected = min(totals.gc / 1e6, loop)
    _separate_collections(slices, collected, {} if device is not None else collected_us or {})
    return Rank(
        name=name,
        steps=steps,
        start=start,
        end=end,
        seconds=slices,
        gc=collected,
        gc_in_wait=min(totals.gc_in_wait / 1e6, collected),
        communication=float(totals.parts[column(COMMUNICATION)] / 1e6),
        attempts=attempts,
        has_waits=has_waits,
        waits_seen=(totals.waits or totals.loads) / max(count, 1),
        on_device=device is not None,
        iterations=iterations,
        stalls=stalls if found is None else of_all(stalls, iterations, found),
        left_out=kept.left_out,
        excluded=kept.seconds + own,
        declared=_named(slices, declared_us or {}),
        judged=found,
        stretches=kept.stretches,
    )


def _of_all(slices: Mapping[str, float], found: Judged, *, on_device: bool) -> dict[str, float]:
    """Return the slices of all training steps from those of a sample."""
    rows, totals = found.rows, found.totals
    train, scaled = rows.mode == TRAIN, {}
    for key, seconds in slices.items():
        of_all, of_rows = 0.0, 0.0
        if key == "between":
            of_all, of_rows = totals.between, float(time_between(rows)[train].sum())
        elif key in {parts.DECLARED, "wait"} or any(part.key == key for part in parts.phases()):
            number = column(key, on_device=on_device and key not in ("wait", parts.DECLARED))
            number = column(LOADER) if key == "wait" and not totals.waits else number
            of_all, of_rows = float(totals.parts[number]), float(rows.parts[:, number][train].sum())
        if of_all <= 0 and key == "between":  # only steps were recorded
            of_all, of_rows = totals.duration, float(rows.duration[train].sum())
        scaled[key] = (
            seconds * of_all / of_rows if of_rows > 0 else of_all / 1e6 if of_all > 0 else seconds * found.scale
        )
    return scaled


def _separate_collections(slices: dict[str, float], collected: float, by_part: Mapping[str, float]) -> None:
    """Move garbage collections from the slices that they interrupt to their own; a GPU idles outside its phases then."""
    total = sum(by_part.values())
    shares = {key: spent / total for key, spent in by_part.items()} if total > 0 else {"outside": 1.0}
    for key, share in shares.items():
        moved = min(collected * share, slices[key])
        slices[key] -= moved
        slices["gc"] += moved


def _named(slices: Mapping[str, float], declared_us: Mapping[str, float]) -> dict[str, float]:
    """Divide the slice of the script's own phases by name, the longest first."""
    total = sum(declared_us.values())
    order = sorted(declared_us.items(), key=lambda item: (-item[1], item[0]))
    return {name: slices[parts.DECLARED] * spent / total for name, spent in order} if total > 0 else {}


def _slices(rows: StepRows, waits: Floats, index: Ints, iterations: Iterations, *, on_device: bool) -> dict[str, float]:
    """Return the seconds of each part of training."""
    train = rows.mode == TRAIN
    steps = rows.duration / 1e6 - rows.seconds(OWN_IN_STEP)
    phases = {part.key: rows.seconds(part.key) for part in parts.phases()}
    in_phases = np.sum(list(phases.values()), axis=0)
    moment = np.maximum.accumulate(np.nan_to_num(rows.start))
    scale = _represented(iterations, train, index, moment, (in_phases > 0) | (waits > 0))
    slices = dict.fromkeys((part.key for part in parts.PARTS), 0.0)
    slices["wait"] = float((waits * scale)[train].sum())
    slices |= {key: float((seconds * scale)[train].sum()) for key, seconds in phases.items()}
    results = rows.seconds(RESULTS)  # waiting for them is recorded for every step
    slices["compiled"] -= min(float((results * (scale - 1))[train].sum()), slices["compiled"])
    if not on_device:  # what a GPU did between its phases is not recorded
        between = np.maximum(steps - in_phases - rows.seconds(DECLARED_IN_STEP), 0.0)
        called = train & (in_phases - results > 0)
        slices["between"] = float((between * scale)[called if called.any() else train & (in_phases > 0)].sum())
        if results.any():  # a call that computes at once has none, and calls are recorded for some steps only
            found = sum(slices[key] for key in (*phases, "between"))
            fits = min(float(steps[train].sum()) / max(found, 1e-12), 1.0)
            slices |= {key: slices[key] * fits for key in (*phases, "between")}
    slices[parts.DECLARED] = float(rows.seconds(parts.DECLARED)[train].sum())
    if not (in_phases[train] > 0).any():  # only steps were recorded: all but the script's own phases is between them
        undeclared = np.maximum(steps - rows.seconds(DECLARED_IN_STEP), 0.0)
        slices["between"] = float(undeclared[train].sum())
    return slices


def _represented(iterations: Iterations, train: Mask, index: Ints, moment: Floats, recorded: Mask) -> Floats:
    """Return how many steps each row represents, as the phases of some are recorded.

    Rows that are no iteration, as those after an evaluation, represent each other; their length is not known.
    """
    found, alone = np.ones(len(train)), train.copy()
    at = np.flatnonzero(train)[np.searchsorted(index[train], iterations.index)]
    found[at] = np.where(iterations.known, iterations.weight, 1.0)
    alone[at] = False
    rows = np.flatnonzero(alone)
    if recorded[rows].any():
        stratum = strata(moment[rows], recorded[rows], np.zeros(len(rows), np.bool_))
        scale = np.bincount(stratum) / np.maximum(np.bincount(stratum, recorded[rows]), 1)
        found[rows] = np.where(recorded[rows], scale[stratum], 1.0)
    return found


def _with_rest(slices: dict[str, float], loop: float, evaluation: float) -> dict[str, float]:
    """Return the slices with those that the parts of training leave of the loop."""
    training, available = sum(slices.values()), max(loop - evaluation, 0.0)
    if training > available > 0:  # scaled up beyond the loop
        slices = {key: seconds * available / training for key, seconds in slices.items()}
    slices["evaluation"] = evaluation
    slices["outside"] = max(loop - sum(slices.values()), 0.0)
    return slices


def _steps_of(summary: StepSummary, name: str) -> tuple[int, float]:
    """Return the number of training steps of a process, and the end of its last one in seconds since the epoch."""
    sampled, rows = summary.judged.get(name), summary.steps[name]
    count = int(np.equal(rows.mode, TRAIN).sum()) if sampled is None else sampled.train
    return count, (float(rows.end[-1]) if len(rows) else summary.loop[name][1]) / 1e6


def _switches(records: Mapping[str, Records[Any]]) -> dict[str, Switches]:
    """Return process → when its models were switched to eval() mode and back."""
    to_eval: Records[EvalMode] = records.get(EvalMode.phase, Records())
    to_train: Records[TrainMode] = records.get(TrainMode.phase, Records())
    more = to_eval.count / max(len(to_eval.longest), 1)

    def of(process: str, found: Records[Any]) -> list[float]:
        return [one.start * 1e6 for one in found.of(process)]

    return {name: Switches(of(name, to_eval), of(name, to_train), more) for name in to_eval.seconds}


def _batch_size(metadata: tuple[dict[str, Any], ...]) -> int | None:
    """Return the batch size if all processes have the same."""
    sizes = {one.get("batch_size") for one in metadata}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and size > 0 else None


# Parts of a loop that are timed and sampled, each with its keys in the sums of a rank.
_SAMPLED_PARTS = {
    "outside": ("outside", "between"),
    **{key: (key,) for key in ("wait", "forward", "backward", "optimizer", "compiled", "evaluation")},
}


def _padding(metadata: tuple[dict[str, Any], ...]) -> tuple[float, float] | None:
    whole, of_all = _mean(metadata, "padding"), _mean(metadata, "padding_of_all")
    return None if whole is None else (min(whole, 1.0), min(of_all or 0.0, whole, 1.0))


def _collate(metadata: tuple[dict[str, Any], ...]) -> AtLine:
    found = next((one["collate"] for one in metadata if one.get("collate")), None)
    return read_args(AtLine, json.dumps(found))


def _mean(metadata: tuple[dict[str, Any], ...], key: str) -> float | None:
    """Return the mean over the processes; None if one did not record it."""
    counts = [one.get(key) for one in metadata]
    known = [float(one) for one in counts if isinstance(one, (int, float)) and one > 0]
    return float(np.mean(known)) if known and len(known) == len(counts) else None


def _loader(recorded: LoaderSettings, metadata: tuple[dict[str, Any], ...]) -> LoaderSettings:
    """Return the loader's settings: as its events have them, else the workers as the processes saw them."""
    known = [one for each in metadata if isinstance(one := each.get("num_workers"), int)]
    return attrs.evolve(recorded, num_workers=max(known)) if recorded.num_workers < 0 and known else recorded


def _warm_span(ranks: Sequence[Rank], span: tuple[float, float]) -> tuple[float, float]:
    """Return a span without the first steps, which start CUDA's libraries while the GPU is idle, if much is left of it.

    These steps may take longer than all others together, as where cuDNN tries its algorithms first.
    """
    steps = int(thresholds.WARM_UP_STEPS)
    started = [rank for rank in ranks if len(rank.iterations) > steps and not rank.judged]
    start = max((float(rank.iterations.start[steps]) for rank in started), default=span[0]) + thresholds.GPU_LAG_S
    left = min((1 - steps / len(rank.iterations) for rank in started), default=1.0)
    return (start, span[1]) if left >= thresholds.WARM_LEFT and span[1] - start >= thresholds.GPU_LAG_S else span


def measure_job(  # most are optional parts
    summary: StepSummary,
    system: SystemSeries,
    *,
    name: str,
    running: bool,
    instance_type: str | None = None,
    metadata: tuple[dict[str, Any], ...] = (),
    memory: dict[str, tuple[Floats, Floats]] | None = None,
    records: Mapping[str, Records[Any]] | None = None,
    samples: Samples | None = None,
    usage: Mapping[str, Usage] | None = None,
    description: Mapping[str, Any] | None = None,
    functions: tuple[FunctionTime, ...] = (),
    types_by_node: Mapping[str, str] | None = None,
    facts: EndFacts | None = None,
) -> JobMetrics:
    """Compute the metrics of a job from the results of the folds."""
    records, everything = move_with_steps(records or {}, summary.moved), metadata
    earlier = trainings(metadata)
    if earlier:
        summary, metadata = since_training(summary, metadata, earlier[-1])
        records = since(records, earlier[-1] / 1e6)
    summary, processes = join_successors(summary.by_role(_switches(records)), metadata)
    names = {process_name(old): str(new["name"]) for old, new in zip(metadata, processes, strict=True) if "name" in new}
    records = rename_processes(records, names)
    facts = facts or EndFacts(finished=not running, is_fresh=running, description=description or {})
    facts = attrs.evolve(facts, unrecorded=unrecorded_ranks(processes))
    ends = rank_ends(processes, {name: _steps_of(summary, name) for name in summary.steps})
    ends = of_last_attempt(ends, processes)
    hangs: Records[Hang] = records.get(Hang.phase, Records())
    ending = end_of(facts, with_hangs(ends, hangs.longest))
    if ending.aftermath_s is not None:
        summary = summary.until(ending.aftermath_s * 1e6)
    profiling: Records[Profiling] = records.get(Profiling.phase, Records())

    def measured(process: str, rows: StepRows) -> Rank:
        attempts = find_attempts(process, rows, processes, summary.pids.get(process, 1))
        further: dict[str, Any] = {
            "disturbed": disturbed_spans(
                profiling.of(process),
                (one for kind in (Save, Log, Callback) for one in records.get(kind.phase, Records()).of(process)),
            ),
            "declared_us": summary.declared_us.get(process),
            "collected_us": summary.collected_us.get(process),
        }
        return measure_rank(process, summary.judged.get(process, rows), summary.loop[process], attempts, **further)

    ranks = tuple(
        attrs.evolve(
            measured(process, rows),
            forward_only=summary.forward_only.get(process, 0),
            within_steps=summary.within_steps.get(process, 0),
        )
        for process, rows in each_process(summary)
    )
    asked = {rank.name for rank in ranks if rank.within_steps > np.count_nonzero(~rank.train)}
    samples = (samples or Samples()).within_steps(asked)
    edges = [edge for rank in ranks for edge in (rank.start, rank.end)] + [system.first_s, system.last_s]
    edges = [edge for edge in edges if np.isfinite(edge)]
    start, end = (min(edges), max(edges)) if edges else (float("nan"), float("nan"))
    loop = (min(rank.start for rank in ranks), max(rank.end for rank in ranks)) if ranks else (start, end)
    warm = _warm_span(ranks, loop)
    nodes = dict.fromkeys([node for node, _, _ in system.series] + [rank.node for rank in ranks])
    others = gpus_of_others(system, loop, {rank.name: rank.node for rank in ranks}, processes)
    system = system.without(others)
    memories = system.of("gpu_memory")
    gpus = tuple(
        GpuMetrics(
            node=node,
            name=device,
            mean=data.mean_within(*warm),
            idle=data.idle_within(*warm),
            memory=memories[node, device].mean_within(*loop) if (node, device) in memories else float("nan"),
            memory_max=memories[node, device].highest if (node, device) in memories else float("nan"),
        )
        for (node, device), data in system.of("gpu").items()
    )
    costs = summary.overhead_us, summary.windows_us
    overheads = [
        tuple(spent.get(rank.name, 0.0) / 1e6 / (rank.loop + rank.excluded) for spent in costs)
        for rank in ranks
        if rank.name in summary.overhead_us and rank.loop > 0
    ]
    overhead, windows_cost = max(overheads, default=(None, 0.0))
    return JobMetrics(
        name=name,
        start=start,
        end=end,
        running=ending.state == RUNNING,
        nodes=tuple(nodes),
        ranks=ranks,
        gpus=gpus,
        system=system,
        loader=_loader(summary.loader, metadata),
        overhead=overhead,
        windows_cost=windows_cost,
        instance_type=instance_type,
        metadata=metadata,
        memory=memory or {},
        batch_size=_batch_size(metadata),
        records=records,
        samples=samples,
        usage=usage or {},
        description=description or {},
        functions=functions,
        types_by_node=types_by_node or {},
        others_gpus=others,
        earlier_trainings=len(earlier),
        samples_per_step=_mean(metadata, "samples_per_step"),
        calls_per_step=_mean(metadata, "calls_per_step"),
        input_sizes={
            process_name(one): np.asarray(sizes, np.float64) for one in metadata if (sizes := one.get("input_sizes"))
        },
        dtype=next((str(one["dtype"]) for one in metadata if one.get("dtype")), ""),
        padding=_padding(metadata),
        collate=_collate(metadata),
        padding_inferred=any(one.get("padding_inferred") is True for one in metadata),
        ending=ending,
        between_attempts=between_attempts(_lifetimes(ranks, everything), system, start, end) if edges else 0.0,
    )


def _began(one: Mapping[str, Any]) -> float:
    """Return when the process of a metadata record began, seconds since the epoch; 0 if unknown."""
    return min((span[0] for span in _lifetimes((), (one,))), default=0.0)


def _lifetimes(ranks: Sequence[Rank], metadata: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return spans in which processes are known to have run, seconds since the epoch."""
    found = []
    for one in metadata:
        times = [
            one[key] / 1e6 for key in ("process_us", "start_us", "end_us") if isinstance(one.get(key), (int, float))
        ]
        if times:
            found.append((min(times), max(times)))
    for rank in ranks:
        breaks = sorted(set(rank.attempts.breaks))
        begins = [rank.start, *(rank.steps.start[breaks] / 1e6).tolist()]
        ends = [*(rank.steps.end[np.asarray(breaks, np.int64) - 1] / 1e6).tolist(), rank.end]
        found += zip(begins, ends, strict=True)
    return found


def why_no_steps(metrics: JobMetrics) -> tuple[str, str]:
    """Return why a job without steps has none, "" if that is unknown, and what to do."""
    if metrics.description:
        return Launched.of(metrics.description).why_no_steps(metrics.duration, exited=metrics.ending.exited)
    if metrics.running and metrics.duration < BEGINNING_S:
        return "", next_file(ROTATE_SECONDS.default)
    return "", (
        "Record steps and phases: start the script with 'sm-profiler run', or set SM_PROFILER_AUTO=1 in the container, with "
        f"ProfilingParameters in the configuration. If that was so, {NO_KNOWN_STEP}"
    )


def how_to_record(metrics: JobMetrics) -> str:
    """Return what to do in a few words."""
    if metrics.description or metrics.running:
        return why_no_steps(metrics)[1]
    if metrics.ending.launched:
        return "no process made a training step."
    return "start the script with 'sm-profiler run', or set SM_PROFILER_AUTO=1; if it was set, no process made a step."
