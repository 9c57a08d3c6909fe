"""Judge of loops that become slow from a moment on, and what else changed at that moment."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext, cores_of_others
from sm_profiler.diagnosis.judges.ranks import MEETINGS, in_step
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.diagnosis.where import lines_since
from sm_profiler.formats.columns import Floats
from sm_profiler.formatting import duration, percent
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import JobMetrics, Rank

# System metrics whose change is worth naming → name and unit.
METRICS = {
    "gpu_clock": ("GPU clock", "MHz"),
    "gpu": ("mean GPU use", "percent"),
    "swap_in": ("memory swapped in", "bytes/s"),
    "io_wait": ("I/O wait", "percent"),
    "cpu": ("mean CPU use", "percent"),
    "memory": ("memory in use", "percent"),
    "disk_read": ("disk reads", "bytes/s"),
    "disk_write": ("disk writes", "bytes/s"),
    "received": ("network input", "bytes/s"),
}
MAX_CHANGES = 3
STEP_OF_CHANGE = "step of the change"


@attrs.frozen
class Change:
    """A moment from which on a loop is slower.

    Attributes:
        at: number of the iteration (row) with which the slow steps begin.
        before, after: usual length of an iteration, seconds.
        gradual: the steps become slower little by little.
    """

    at: int
    before: float
    after: float
    gradual: bool

    @property
    def factor(self) -> float:
        """Length of the slow steps as a multiple of the usual one."""
        return self.after / self.before


def find_change(lengths: Floats) -> Change | None:
    """Find the moment from which on iterations are longer (Pettitt's test on the medians of blocks).

    Ranks of medians make the test indifferent to outliers and periodic stalls, and its chance of a false alarm covers all
    moments that it compares.
    """
    size = max(len(lengths) // int(policy.CHANGE_BLOCKS), int(policy.CHANGE_BLOCK_STEPS))
    count = len(lengths) // size
    if count < policy.CHANGE_MIN_BLOCKS:
        return None
    blocks = np.median(lengths[: count * size].reshape(count, size), axis=1)
    larger = np.sign(blocks[None, :] - blocks[:, None])  # of each pair, whether the second is longer
    scores = np.asarray([float(larger[:at, at:].sum()) for at in range(1, count)])
    at = int(scores.argmax()) + 1
    chance = float(np.exp(-6 * scores[at - 1] ** 2 / (count**3 + count**2)))
    side = policy.CHANGE_SIDE * count
    if chance > policy.CHANGE_CHANCE or at < side or count - at < side:
        return None
    before, after = float(np.median(blocks[:at])), float(np.median(blocks[at:]))
    if before <= 0 or after < policy.SLOWER * before:
        return None
    apart = policy.CHANGE_APART if after < policy.SLOWER_BY_OTHERS * before else policy.CHANGE_APART_CLEAR
    if float((larger[:at, at:] > 0).mean()) < apart:
        return None
    return Change(_first_slow(lengths, at * size, size, (before + after) / 2), before, after, _is_gradual(blocks, at))


def _first_slow(lengths: Floats, near: int, size: int, middle: float) -> int:
    """Return the row near a block's edge that separates short from long iterations best."""
    first, last = max(near - size, 0), min(near + size, len(lengths))
    long = lengths[first:last] > middle
    wrong = np.concatenate([[0], np.cumsum(long)]) + np.concatenate([np.cumsum(~long[::-1])[::-1], [0]])
    return first + int(wrong.argmin())


def _is_gradual(blocks: Floats, at: int) -> bool:
    """Return whether a line describes the blocks better than a step does."""
    x = np.arange(len(blocks))
    line = blocks - np.polyval(np.polyfit(x, blocks, 1), x)
    step = np.concatenate([blocks[:at] - blocks[:at].mean(), blocks[at:] - blocks[at:].mean()])
    return float(np.linalg.norm(line)) < float(np.linalg.norm(step))


def largest_slowdown(context: JudgeContext) -> tuple[float, Rank, Change] | None:
    """Return the share of the loop that the costliest change takes, with its rank; None if it takes too little."""
    best: tuple[float, Rank, Change] | None = None
    for rank in context.ranks:
        settled = rank.iterations.index >= thresholds.WARM_UP_STEPS
        lengths = rank.iterations.length[settled]
        change = find_change(lengths)
        if change is None:
            continue
        change = attrs.evolve(change, at=change.at + int((~settled).sum()))
        slow = float(rank.iterations.length[change.at :].sum()) * rank.scale
        lost = slow * (1 - 1 / change.factor) / rank.loop if rank.loop > 0 else 0.0
        if best is None or lost > best[0]:
            best = lost, rank, change
    return None if best is None or best[0] < limits.FLOOR else best


def judge_slowdown(context: JudgeContext) -> Finding | None:
    """Find the moment from which on the loop is slower, and what else changed then."""
    best = largest_slowdown(context)
    if best is None:
        return None
    lost, rank, change = best
    others = _others(context.metrics, rank, change)
    busier = others is not None and others[1] >= others[0] + policy.OTHERS_CORES
    part, agreement = _grown_part(rank, change)
    waits = _core_waits(context.metrics, rank, change)
    own = change.after - max(waits[1] * change.after - waits[0] * change.before, 0.0)
    if own < policy.SLOWER * change.before:
        return None  # the script does the same, and waits for a core that others use
    together = agreement < thresholds.SAME_PART or _grew_alike(rank, change)
    if busier and together and own < policy.SLOWER_BY_OTHERS * change.before:
        return None  # all parts are slower together, as on a machine that others use, too
    alone = _alone(context.ranks, change)
    moment = float(rank.iterations.start[change.at])
    step = int(rank.iterations.index[change.at])
    evidence = [
        Evidence("time lost in slow steps", round(lost, 4), limits.FLOOR, rank.name, "share"),
        Evidence("usual step since then", round(change.after * 1e3, 3), round(change.before * 1e3, 3), rank.name, "ms", "before"),
        Evidence("times as long", round(change.factor, 2), policy.SLOWER, rank.name),
        Evidence(STEP_OF_CHANGE, step, None, rank.name),
        Evidence("time of the change after the start of the loop", round(moment - rank.start, 1), None, rank.name, "s"),
    ]  # fmt: skip
    if others is not None and busier:
        evidence.append(
            Evidence("CPU cores that others use", round(others[1], 2), round(others[0], 2), rank.node, "", "before")
        )
    if waits[1] >= waits[0] + policy.CORE_WAIT:
        evidence.append(
            Evidence("time waiting for a core", round(waits[1], 4), round(waits[0], 4), rank.name, "share", "before")
        )
    evidence += _changes(context.metrics, rank, moment)
    who = "" if len(context.ranks) <= 1 else f", by rank {alone.name} alone" if alone else ", on all ranks"
    how = "become slower and slower" if change.gradual else "are slower"
    sure = agreement >= thresholds.SAME_PART and others is not None and not busier
    return Finding(
        Class.FAIL_SLOW,
        f"From about step {step:,} on ({duration(moment - rank.start)} into the loop), steps {how}: {duration(change.after)} "
        f"instead of {duration(change.before)}, mostly {parts.during(part)}{who}; this costs {percent(lost)} of the loop.",
        tuple(evidence),
        _advice(part, change, alone),
        lost,
        confidence=context.confidence(change.factor - 1, policy.SLOWER - 1, sure=sure, error=0.0),
        where=lines_since(context.metrics, rank, moment, part),
    )  # fmt: skip


def _grown_part(rank: Rank, change: Change) -> tuple[str, float]:
    """Return the part that grew most, and its share of all growth."""
    grown = {key: max(_growth(rank, key, change), 0.0) for key in parts.iteration_keys()}
    part = max(grown, key=lambda key: grown[key])
    total = sum(grown.values())
    return (part, grown[part] / total) if total > 0 else (parts.UNKNOWN, 0.0)


def _grew_alike(rank: Rank, change: Change) -> bool:
    """Return whether every part grew in proportion to its length, as if the machine were slower."""
    keys = parts.iteration_keys()
    grown = np.asarray([_growth(rank, key, change) for key in keys])
    usual = np.asarray([_usual(rank, key, change) for key in keys])
    lengths = float(np.linalg.norm(grown) * np.linalg.norm(usual))
    return lengths > 0 and float(grown @ usual) / lengths >= thresholds.SAME_WAY


def _usual(rank: Rank, key: str, change: Change) -> float:
    """Return the seconds of an iteration's part before the change."""
    early = rank.iterations.of(key)[: change.at][rank.iterations.known[: change.at]]
    return float(np.median(early)) if len(early) else 0.0


def _growth(rank: Rank, key: str, change: Change) -> float:
    """Return by how many seconds an iteration's part is longer after the change."""
    values, known = rank.iterations.of(key), rank.iterations.known
    early = values[: change.at][known[: change.at]]
    late = values[change.at :][known[change.at :]]
    return float(np.median(late) - np.median(early)) if len(early) and len(late) else 0.0


def _alone(ranks: Sequence[Rank], change: Change) -> Rank | None:
    """Return the rank whose own work grew while the others wait for it; None if there is none."""
    if len(ranks) <= 1 or not in_step(tuple(ranks)):
        return None
    for meeting in MEETINGS:
        work = [key for key in parts.iteration_keys() if key != meeting]
        grown = np.asarray([sum(_growth(rank, key, change) for key in work) for rank in ranks])
        most = int(grown.argmax())
        others = float(np.median(np.delete(grown, most)))
        if grown[most] - others >= policy.WAITED * (change.after - change.before):
            return ranks[most]
    return None


def _core_waits(metrics: JobMetrics, rank: Rank, change: Change) -> tuple[float, float]:
    """Return the share of the time in which the rank waits for a core, before and after the change."""
    usage, moment = metrics.usage.get(rank.name), float(rank.iterations.start[change.at])
    if usage is None:
        return 0.0, 0.0
    return usage.core_wait(rank.start, moment), usage.core_wait(moment, rank.end)


def _others(metrics: JobMetrics, rank: Rank, change: Change) -> tuple[float, float] | None:
    """Return the CPU cores that others than the training processes use on the rank's node, before and after the change."""
    moment = float(rank.iterations.start[change.at])
    before, after = (cores_of_others(metrics, rank.node, *span) for span in ((rank.start, moment), (moment, rank.end)))
    return None if before is None or after is None else (before, after)


def _changes(metrics: JobMetrics, rank: Rank, moment: float) -> list[Evidence]:
    """Return the system metrics of the rank's node that changed most with the moment."""
    found: list[tuple[float, Evidence]] = []
    for metric, (name, unit) in METRICS.items():
        for (node, device), data in metrics.system.of(metric).items():
            if node != rank.node:
                continue
            before, after = data.mean_within(rank.start, moment), data.mean_within(moment, rank.end)
            low, high = sorted((before, after))
            if not np.isfinite(low + high) or high - low < (policy.CHANGED_POINTS if unit == "percent" else 0.0):
                continue
            ratio = high / max(low, 1e-9)
            enough = policy.CHANGED_CLOCK if metric == "gpu_clock" else policy.CHANGED
            noticeable = unit != "bytes/s" or high >= policy.CHANGED_BYTES
            if ratio >= enough and noticeable:
                where = f"{node} {device}".strip()
                found.append((ratio / enough, Evidence(name, round(after, 1), round(before, 1), where, unit, "before")))
    found.sort(key=lambda one: -one[0])
    return [evidence for _, evidence in found[:MAX_CHANGES]]


def _advice(part: str, change: Change, alone: Rank | None) -> str:
    if alone is not None:
        return (
            f"Look at node {alone.node}, process {alone.name}, at that moment: throttled or failing GPU, other load, a full disk, a "
            "slow network link. If it stays slow, replace the node and resume from a checkpoint."
        )
    if part == "wait":
        return (
            "Look at the data from that moment on: another loader or dataset, another shard or volume, a cache that is full, "
            "used-up burst credits of a volume or file system, a slow loader worker."
        )
    if change.gradual:
        return (
            "Look for something that grows with the steps: lists or dictionaries that are searched, a graph that is kept alive "
            "(losses without .detach()), longer inputs, logs written as a whole each time."
        )
    return (
        "Look at what happened at that moment: other processes on the machine, GPU clocks and temperature, a change of the "
        "script's own schedule (unfrozen layers, longer sequences, more logging), memory that was full."
    )
