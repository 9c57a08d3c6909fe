"""Facts: everything that a judge may ask about a job, prepared once from the folds."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.report.attempts import Attempts, evaluation_seconds, find_attempts, join_successors
from sm_profiler.report.device_phases import as_the_device_saw
from sm_profiler.report.iterations import Turns, turns_of
from sm_profiler.report.stalls import Stalls, find_stalls
from sm_profiler.report.step_fold import (
    BACKWARD,
    COMMUNICATION,
    EVAL,
    FORWARD,
    GC,
    LOADER,
    OPTIMIZER,
    TRAIN,
    WAIT,
    Loader,
    StepFacts,
    StepRows,
    each_process,
)
from sm_profiler.report.system_fold import SystemSeries

SLICES = ("wait", "forward", "backward", "optimizer", "between", "evaluation", "outside")  # of the loop, disjoint


@attrs.frozen(eq=False)
class Rank:
    """One training process; all times in seconds.

    Attributes:
        name: `algo-1-0`.
        node: `algo-1`.
        steps: its steps.
        start, end: of its loop, seconds since the epoch.
        attempts: how often the job was begun: above 1 it was interrupted and went on.
        slices: where the loop's time went, by the names in SLICES; they add up to the loop's length.
        gc, gc_in_wait: collections of Python's garbage collector, within the slices.
        communication: collectives seen, within the slices.
        has_waits: whether waiting for data was recorded for the whole loop.
        waits_seen: share of the training steps for which a wait was recorded.
        on_device: phases are those of the GPU, and waits what it waited; else both are the host's.
        turns: the training steps that directly follow each other, from one fetch to the next.
        stalls: the long ones among them.
    """

    name: str
    node: str
    steps: StepRows
    start: float
    end: float
    slices: dict[str, float]
    gc: float
    gc_in_wait: float
    communication: float
    attempts: Attempts
    has_waits: bool
    waits_seen: float
    on_device: bool
    turns: Turns
    stalls: Stalls

    @property
    def loop(self) -> float:
        """Length of the loop, without what lies between two attempts."""
        return self.end - self.start - self.attempts.down_s

    @property
    def train(self) -> Mask:
        """Which steps are training steps."""
        return np.equal(self.steps.mode, TRAIN)

    def share(self, which: str) -> float:
        """A slice as a share of the loop."""
        return self.slices[which] / self.loop if self.loop > 0 else 0.0

    @property
    def stall_share(self) -> float:
        """Time lost in long steps as a share of the loop, evaluation included: what the picture's slices are shares of."""
        return self.stalls.excess / self.loop if self.loop > 0 else 0.0

    def _rows(self, *, without_stalls: bool) -> Mask:
        known = self.turns.known
        return known & ~self.stalls.long if without_stalls else known

    def share_of_turns(self, which: str, *, without_stalls: bool = False) -> float:
        """A part of the turns (wait, forward, …) as a share of their length, where it was recorded."""
        rows = self._rows(without_stalls=without_stalls)
        total = float(self.turns.length[rows].sum())
        return float(getattr(self.turns, which)[rows].sum()) / total if total > 0 else 0.0

    def usual(self, which: str, *, without_stalls: bool = True) -> float:
        """Mean of a part of the turns where it was recorded, by default of those that are not long; seconds."""
        values = getattr(self.turns, which)[self._rows(without_stalls=without_stalls)]
        return float(values.mean()) if len(values) else 0.0

    def typical(self, which: str) -> float:
        """Median of a part of the turns where it was recorded, seconds."""
        values = getattr(self.turns, which)[self.turns.known]
        return float(np.median(values)) if len(values) else 0.0


@attrs.frozen(eq=False)
class Gpu:
    """One GPU inside the training loop (inside the job, where the loop is not known); percent."""

    node: str
    name: str
    mean: float
    idle: float  # share of samples below 10 %
    memory: float
    memory_max: float


@attrs.frozen(eq=False)
class Facts:
    """What was measured.  Times are seconds since the epoch.

    Attributes:
        name: the job's name.
        start, end: first and last sample or event.
        running: the job has not ended yet.
        nodes: node names.
        ranks: training processes.
        gpus: GPUs.
        system: system metrics over time.
        loader: what the data loader said.
        overhead: the hook's own time as a share of the loop, the largest of the ranks; None where not recorded.
        instance_type: where the user or the job told it.
        metadata: what the hook wrote about itself, one object a process.
        memory: resident memory of each process over time, or nothing: name → (seconds, bytes).
        batch_size: samples a step, where known.
        operators: whether single operators were recorded.
    """

    name: str
    start: float
    end: float
    running: bool
    nodes: tuple[str, ...]
    ranks: tuple[Rank, ...]
    gpus: tuple[Gpu, ...]
    system: SystemSeries
    loader: Loader
    overhead: float | None = None
    instance_type: str | None = None
    metadata: tuple[dict[str, Any], ...] = ()
    memory: dict[str, tuple[Floats, Floats]] = attrs.field(factory=dict)
    batch_size: int | None = None
    operators: bool = False

    @property
    def duration(self) -> float:
        """Seconds from start to end; 0 for a job without data."""
        return max(self.end - self.start, 0.0) if np.isfinite(self.end - self.start) else 0.0

    @property
    def loop(self) -> tuple[float, float] | None:
        """Start and end of the training loop over all ranks."""
        if not self.ranks:
            return None
        return min(rank.start for rank in self.ranks), max(rank.end for rank in self.ranks)

    @property
    def initialization(self) -> float | None:
        """Seconds before the loop."""
        return max(self.loop[0] - self.start, 0.0) if self.loop else None

    @property
    def loading(self) -> float | None:
        """Seconds until the framework was imported, of the slowest process; None where the hook does not say."""
        told = [float(one["loaded_us"]) / 1e6 - self.start for one in self.metadata if one.get("loaded_us")]
        return max(0.0, *told) if told and np.isfinite(told).all() else None

    @property
    def steps_per_second(self) -> float | None:
        """Training steps a second of the first rank, over its loop without evaluation."""
        if not self.ranks:
            return None
        rank = self.ranks[0]
        span = rank.loop - rank.slices["evaluation"]
        return float(rank.train.sum() / span) if span > 0 else None

    @property
    def interruptions(self) -> tuple[int, float]:
        """How often the job was interrupted and went on, and for how many seconds nobody trained meanwhile."""
        attempts = [rank.attempts for rank in self.ranks]
        return max((one.count - 1 for one in attempts), default=0), max((one.down_s for one in attempts), default=0.0)

    def average_share(self, which: str) -> float:
        """A slice as a share of the loop, averaged over ranks."""
        loops = [rank for rank in self.ranks if rank.loop > 0]
        return float(np.mean([rank.share(which) for rank in loops])) if loops else 0.0

    def mean_of(self, metric: str) -> float | None:
        """Mean of a system metric inside the loop, over all nodes; None where it was not recorded."""
        span = self.loop or (self.start, self.end)
        means = [data.mean_within(*span) for data in self.system.of(metric).values()]
        means = [mean for mean in means if np.isfinite(mean)]
        return float(np.mean(means)) if means else None

    def hot_share(self, metric: str) -> float | None:
        """Share of a metric's samples above 90 % inside the loop; None where it was not recorded."""
        span = self.loop or (self.start, self.end)
        shares = [data.share_within("hot", *span) for data in self.system.of(metric).values()]
        shares = [share for share in shares if np.isfinite(share)]
        return float(np.mean(shares)) if shares else None

    def as_dict(self) -> dict[str, Any]:
        """The `job` part of report.json."""
        return {
            "name": self.name,
            "start": _number(self.start),
            "end": _number(self.end),
            "duration_s": _number(self.duration),
            "running": self.running,
            "nodes": list(self.nodes),
            "instance_type": self.instance_type,
            "gpus": [attrs.asdict(gpu) for gpu in self.gpus],
            "cpu_cores": self.system.cores,
            "initialization_s": _number(self.initialization),
            "loop": list(self.loop) if self.loop else None,
            "steps_per_second": _number(self.steps_per_second),
            "profiler_overhead": _number(self.overhead),
            "utilisation": {
                metric: _number(self.mean_of(metric)) for metric in ("cpu", "gpu", "gpu_memory", "memory", "io_wait")
            },
            "ranks": [
                {
                    "name": rank.name,
                    "node": rank.node,
                    "train_steps": int(rank.train.sum()),
                    "eval_steps": int((rank.steps.mode == EVAL).sum()),
                    "loop_s": _number(rank.loop),
                    "phases": "device" if rank.on_device else "host",
                    "seconds": {name: _number(value) for name, value in rank.slices.items()},
                    "gc_s": _number(rank.gc),
                    "communication_s": _number(rank.communication),
                    "attempts": rank.attempts.count,
                    "interrupted_s": _number(rank.attempts.down_s),
                }
                for rank in self.ranks
            ],
        }


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 6)


def make_rank(name: str, rows: StepRows, span_us: tuple[float, float], attempts: Attempts) -> Rank:
    """Cut the loop of one process into its slices."""
    start, end = span_us[0] / 1e6, span_us[1] / 1e6
    seconds, steps = rows.parts / 1e6, rows.duration / 1e6
    train = rows.mode == TRAIN
    recorded = seconds[:, WAIT].sum() > 0
    waits_seen = float((seconds[train][:, WAIT] > 0).mean()) if train.any() else 0.0
    waits = seconds[:, WAIT]
    if not recorded and train.any():  # jobs of the old hook: only the dataloader window tells
        loaded = (seconds[:, LOADER] > 0) & train
        waits_seen = float(loaded.sum() / train.sum())
        gaps = np.maximum(rows.start - np.concatenate([[rows.start[0]], rows.end[:-1]]), 0) / 1e6
        waits = np.minimum(seconds[:, LOADER], np.where(gaps > 0, gaps, 0.0))
    device = as_the_device_saw(rows)
    if device is not None:
        seconds = device.parts / 1e6
        waits = seconds[:, WAIT]
    known = seconds[:, [FORWARD, BACKWARD, OPTIMIZER]].sum(axis=1)
    between = np.maximum(steps - known, 0.0) * (device is None)  # what a GPU did meanwhile nobody knows
    turns = turns_of(device or rows, waits, attempts.breaks, on_device=device is not None)
    recorded_length = float(turns.length[turns.known].sum())
    scale = float(turns.length.sum()) / recorded_length if recorded_length > 0 else 1.0  # for steps without phases
    slices = {
        "wait": float(waits[train].sum()) * scale,
        "forward": float(seconds[train, FORWARD].sum()) * scale,
        "backward": float(seconds[train, BACKWARD].sum()) * scale,
        "optimizer": float(seconds[train, OPTIMIZER].sum()) * scale,
        "between": float(between[train & (known > 0)].sum()) * scale,
        "evaluation": evaluation_seconds(rows, attempts.breaks),
    }
    if not (known[train] > 0).any():  # a job that records steps only: all of a step is work
        slices["forward"] = float(steps[train].sum())
    loop = end - start - attempts.down_s
    room = max(loop - slices["evaluation"], 0.0)
    whole = sum(slices.values()) - slices["evaluation"]
    if whole > room > 0:  # scaled up beyond the loop
        slices |= {name: value * room / whole for name, value in slices.items() if name != "evaluation"}
    slices["outside"] = max(loop - sum(slices.values()), 0.0)
    return Rank(
        name, name.rpartition("-")[0] or name, rows, start, end, slices,
        float(seconds[:, GC].sum()), float(rows.gc_in_wait.sum() / 1e6), float(seconds[train, COMMUNICATION].sum()),
        attempts, bool(recorded), waits_seen, device is not None, turns, find_stalls(turns),
    )  # fmt: skip


def _batch_size(metadata: tuple[dict[str, Any], ...]) -> int | None:
    """What all processes agree on; None otherwise."""
    told = {one.get("batch_size") for one in metadata}
    size = told.pop() if len(told) == 1 else None
    return size if isinstance(size, int) and size > 0 else None


def prepare(  # noqa: PLR0913 - one argument a part, all but the first are options
    found: StepFacts,
    system: SystemSeries,
    *,
    name: str,
    running: bool,
    instance_type: str | None = None,
    metadata: tuple[dict[str, Any], ...] = (),
    memory: dict[str, tuple[Floats, Floats]] | None = None,
) -> Facts:
    """Facts from what the folds saw."""
    found, told = join_successors(found, metadata)
    ranks = tuple(
        make_rank(node, rows, found.loop[node], find_attempts(node, rows, told, found.pids.get(node, 1)))
        for node, rows in each_process(found)
    )
    edges = [edge for rank in ranks for edge in (rank.start, rank.end)] + [system.first_s, system.last_s]
    edges = [edge for edge in edges if np.isfinite(edge)]
    start, end = (min(edges), max(edges)) if edges else (float("nan"), float("nan"))
    loop = (min(r.start for r in ranks), max(r.end for r in ranks)) if ranks else (start, end)
    memories = system.of("gpu_memory")
    gpus = tuple(
        Gpu(
            node, device, data.mean_within(*loop), data.share_within("idle", *loop),
            memories[node, device].mean_within(*loop) if (node, device) in memories else float("nan"),
            float(np.nanmax(memories[node, device].high)) if (node, device) in memories else float("nan"),
        )
        for (node, device), data in system.of("gpu").items()
    )  # fmt: skip
    nodes = dict.fromkeys([node for node, _, _ in system.series] + [rank.node for rank in ranks])
    spent = [
        found.overhead_us[rank.name] / 1e6 / rank.loop
        for rank in ranks
        if rank.name in found.overhead_us and rank.loop > 0
    ]
    return Facts(
        name, start, end, running, tuple(nodes), ranks, gpus, system, found.loader,
        max(spent, default=None), instance_type, metadata, memory or {}, _batch_size(metadata), found.operators,
    )  # fmt: skip
