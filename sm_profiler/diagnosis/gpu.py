"""The verdict on traces of torch.profiler: where each rank's device spends its time, and what repairs save of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import MOSTLY_IDLE, NO_CAUSE, Class
from sm_profiler.diagnosis.confidence import CLOSE_TO_FLOOR, RIVALLED, Confidence
from sm_profiler.diagnosis.ledger import MEETING, TRANSFER, Ledger, RankLedger, Totals
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Location, Verdict
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.repairing import Saving, Trial, not_certain, repaired_in_turn
from sm_profiler.diagnosis.words import GPU_ADVICE, GPU_COMPILE, GPU_HEADLINES
from sm_profiler.formatting import percent, shorten
from sm_profiler.gpu_traces.device_time import Arrivals, arrivals, communication
from sm_profiler.gpu_traces.measure import CodeLine, RankTime
from sm_profiler.gpu_traces.traces import GpuTraces

MAX_LOCATIONS = 5
# Activities of a device, besides communication and waiting for other ranks.
COMPUTE, PLAIN, ELEMENTWISE, DOMINANT = (
    "compute", "products without tensor cores", "elementwise kernels", "the largest other kernel",
)  # fmt: skip
COPIES, INPUT, WAITED = "copies", "waiting for data", "idle after a wait for the GPU"
LAUNCHES, QUEUED, ONCE = "idle before a late launch", "idle with work queued", "idle in a few long gaps"
ALLOCATING = "idle while its memory is freed and allocated"
ON_DEVICE = "Copies within the device"  # label of TRANSFER_BOUND if they are
EMPTIED = "GPU memory freed and allocated in each step"  # label of ALLOCATOR in traces
COMPUTING = (COMPUTE, PLAIN, ELEMENTWISE, DOMINANT)


@attrs.frozen
class GpuCause:
    """A cause of lost time on a device.

    Attributes:
        kind: class of its findings.
        name: its part of `RankTime.lines`, and its words.
        activities: what its repair takes time from.
        measured: name of the measurement.
        kept: share of the time that it takes in a healthy job.
        on_host: what the host does, which recording stacks makes slower.
    """

    kind: Class
    name: str
    activities: tuple[str, ...]
    measured: str
    kept: float = 0.0
    on_host: bool = False


CAUSES = (
    GpuCause(Class.INITIALIZATION_BOUND, "once", (ONCE,), "GPU idle in a few long gaps"),
    GpuCause(Class.INPUT_BOUND, "input", (INPUT,), "GPU idle during data loading", on_host=True),
    GpuCause(Class.SYNC_BOUND, "sync", (WAITED,), "GPU idle after the host waited for it", on_host=True),
    GpuCause(Class.ALLOCATOR, "allocation", (ALLOCATING,), "GPU idle while its memory is freed and allocated"),
    GpuCause(Class.HOST_BOUND, "launch", (LAUNCHES,), "GPU idle while the host launches", on_host=True),
    GpuCause(Class.COMMUNICATION_BOUND, "communication", (TRANSFER, MEETING), "communication without computation"),
    GpuCause(Class.TRANSFER_BOUND, "copies", (COPIES,), "copies while nothing else runs"),
    GpuCause(Class.TENSOR_CORES_UNUSED, "plain", (PLAIN,), "matrix products without tensor cores"),
    # activations, norms and copies that nothing fuses take this much of many transformers
    GpuCause(Class.MEMORY_BANDWIDTH_BOUND, "elementwise", (ELEMENTWISE,), "elementwise kernels", limits.USUAL),
    GpuCause(Class.DOMINANT_KERNEL, "dominant", (DOMINANT,), "time in this kernel"),
)  # fmt: skip


@attrs.frozen
class Traced:
    """Traces of a training: the ranks' times, the ledger of their devices, and when they came to collectives."""

    ranks: Sequence[RankTime]
    gpu: GpuTraces
    ledger: Ledger
    arrivals: Arrivals

    @classmethod
    def of(cls, ranks: Sequence[RankTime], gpu: GpuTraces) -> Traced:
        """Divide each rank's time: what it waits in collectives for the last rank is no communication."""
        arrived = arrivals(gpu.ranks)
        dominant = _dominant(ranks)
        waits = [min(arrived.waited_us(rank.rank), rank.us["exposed_communication"]) for rank in ranks]
        return cls(ranks, gpu, Ledger(tuple(map(partial(_of_rank, dominant=dominant), ranks, waits))), arrived)

    @property
    def loop(self) -> Loop:
        """The recorded time of a rank, on average."""
        names, count = self.ledger.totals.activities, max(len(self.ranks), 1)
        left = {
            name: np.array([self.ledger.totals.share(name) * self.ledger.totals.duration / count]) for name in names
        }
        length = np.sum(list(left.values()), axis=0)
        return Loop(np.arange(1), left, length, float(length.sum()))

    @property
    def world(self) -> int:
        """Ranks of the job, as far as the traces show it."""
        sizes = (_world_size(trace.properties) for trace in self.gpu.ranks.values())
        return max([len(self.gpu.ranks), *sizes])

    @property
    def signs(self) -> frozenset[str]:
        """Signs of what the program does; see `RankTime.signs`."""
        return frozenset().union(*(rank.signs for rank in self.ranks))

    @property
    def steps(self) -> float:
        """Marked steps of a rank; without any, the recording counts as one."""
        return max(len(self.gpu.columns("steps")) / max(len(self.gpu.ranks), 1), 1.0)

    @property
    def totals(self) -> Totals:
        """The sums of the ledger, with the marked steps of each rank."""
        of = zip(self.ledger.totals.ranks, self.ranks, strict=True)
        return Totals(tuple(attrs.evolve(row, steps=max(rank.steps, 1)) for row, rank in of))


def _of_rank(rank: RankTime, waited: float, *, dominant: str) -> RankLedger:
    """Return the ledger of a rank's recording; kernels that ran at once share their time."""
    us, compute = rank.us, rank.us["compute"]
    kinds = {
        PLAIN: us["matmul_plain"] if rank.units.known else 0.0, ELEMENTWISE: us["elementwise"],
        DOMINANT: rank.dominant_us if rank.dominant == dominant else 0.0,
    }  # fmt: skip
    scale = compute / max(rank.kernels_us, compute, 1e-12)
    kinds = {name: spent * scale for name, spent in kinds.items()}
    seconds = {
        COMPUTE: compute - sum(kinds.values()), **kinds, TRANSFER: us["exposed_communication"] - waited, MEETING: waited,
        COPIES: us["exposed_copies"], INPUT: us["idle_input"], WAITED: us["idle_sync"], LAUNCHES: us["idle_launch"],
        ALLOCATING: us["idle_allocation"], QUEUED: us["idle_queued"], ONCE: us["idle_once"],
    }  # fmt: skip
    of_step = {name: np.array([spent / 1e6]) for name, spent in seconds.items()}
    return RankLedger.of(str(rank.rank), np.zeros(1, np.int64), np.array([us["total"] / 1e6]), of_step)


def decide_traces(traced: Traced) -> Verdict:
    """Return the verdict on some ranks' traces: repair the cause with the largest certain gain, and ask the others again."""
    found: list[Trial[Finding, Loop]] = []
    known = set[Class]()
    for best in repaired_in_turn(traced.loop, lambda loop: _tried(traced, loop, known)):
        known.add(best.repaired.kind)
        found.append(best)
    findings = [_with_gain(one, traced) for one in found] or [_healthy(traced)]
    if any(one.worth >= limits.CLOSE * found[0].worth for one in found[1:]):
        findings[0] = not_certain(findings[0], RIVALLED)
    missing = []
    if not _has_lines(traced.ranks):
        missing.append(("lines of code", "the traces hold no Python stacks; record them with with_stack=True"))
    if traced.world > len(traced.gpu.ranks):
        here = f"traces of {len(traced.gpu.ranks)} of {traced.world} ranks are here"
        missing.append(("late ranks", f"{here}; record all of them"))
    if (queued := traced.totals.share(QUEUED)) >= limits.FLOOR:
        missing.append((QUEUED, f"{percent(queued)} of the time: what the streams wait for is not recorded"))
    return Verdict(findings[0], tuple(findings[1:]), tuple(missing))


def _has_lines(ranks: Sequence[RankTime]) -> bool:
    return any(line.file for rank in ranks for lines in rank.lines.values() for line in lines)


def _world_size(properties: Mapping[str, Any]) -> int:
    info = properties.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) else 0


# --- repairs --------------------------------------------------------------------------------------------------------


def _tried(traced: Traced, loop: Loop, known: set[Class]) -> Iterator[Trial[Finding, Loop]]:
    """Try to repair each cause that is still there."""
    for cause in CAUSES:
        share = loop.share(*cause.activities)
        if cause.kind not in known and share > 0:
            least, value, most = limits.KERNELS_SAVED.get(cause.kind.value, (1.0, 1.0, 1.0))
            certain = max(min(least, 1 - cause.kept / share), 0.0)
            saving = Saving(
                loop.of_activity(*cause.activities) * value, least / value, most / value, cause.activities, strict=True,
                certain=certain / value,
            )  # fmt: skip
            after, saved, certain = loop.gain(saving)
            enough = max(limits.FLOOR / least, cause.kept + limits.FLOOR)
            finding = _finding(cause, traced, share, enough, certain)
            yield Trial(finding, loop, after, saved, certain, finding.confidence)
    if Class.STRAGGLER not in known and (late := _late(traced, loop)) is not None:
        yield late


def _with_gain(found: Trial[Finding, Loop], traced: Traced) -> Finding:
    """Return a finding with what its repair saves; what is paid once, in the first calls, is saved by no repair."""
    if found.repaired.kind is Class.INITIALIZATION_BOUND:
        return found.repaired
    whole = found.before.whole
    return replace(found.repaired, gain=Gain.of_share(found.saved, whole / traced.steps, whole))


def _confidence(traced: Traced, certain: float, doubt: str = "") -> Confidence:
    """Return how sure a finding is whose repair certainly saves a share of the time."""
    # even if they launch little, three whole steps show what usual steps do
    if not all(
        rank.launches >= limits.SAMPLES * limits.TRACE_KERNELS or rank.steps >= limits.REPEATS for rank in traced.ranks
    ):
        return Confidence("low", "few launches and steps in the traces")
    if certain < limits.FAR:
        return Confidence("medium", CLOSE_TO_FLOOR)
    return Confidence("medium", doubt) if doubt else Confidence("high")


def _doubt(cause: GpuCause, traced: Traced) -> str:
    if cause.on_host and "stacks" in traced.signs:
        return "recording Python stacks slows the host"
    if cause.kind is Class.COMMUNICATION_BOUND and traced.world > len(traced.ranks):
        return "ranks whose traces are missing may be late"
    return ""


def _mean(ranks: Sequence[RankTime], name: str) -> float:
    """Return a time as a share of the recorded time, averaged over ranks."""
    return float(np.mean([rank.share(rank.us[name]) for rank in ranks])) if ranks else 0.0


def _lines(ranks: Sequence[RankTime], name: str) -> list[CodeLine]:
    return [line for rank in ranks for line in rank.lines.get(name, ())]


def _where(ranks: Sequence[RankTime], name: str) -> tuple[Location, ...]:
    """Return the lines of Python that cost most, over all ranks."""
    spent: dict[tuple[str, int, str], float] = {}
    for line in _lines(ranks, name):
        if line.file:
            key = line.file, line.line, line.function
            spent[key] = spent.get(key, 0.0) + line.us
    whole = sum(line.us for line in _lines(ranks, name)) or 1.0
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))[:MAX_LOCATIONS]
    return tuple(Location(*key, us / whole) for key, us in ordered if us >= limits.SHOWN * whole)


def _names(ranks: Sequence[RankTime], name: str) -> str:
    """Return the most expensive operators or kernels, as text."""
    spent: dict[str, float] = {}
    for line in _lines(ranks, name):
        spent[line.name] = spent.get(line.name, 0.0) + line.us
    ordered = sorted((key for key in spent if key), key=lambda key: (-spent[key], key))
    return ", ".join(key[:80] for key in ordered[:3])


def _finding(cause: GpuCause, traced: Traced, share: float, enough: float, certain: float) -> Finding:
    """Return a cause as a finding."""
    ranks, names = traced.ranks, _names(traced.ranks, cause.name)
    if cause.kind is Class.COMMUNICATION_BOUND:
        names = ""  # of operators that all collectives share
    evidence = [Evidence(cause.measured, round(share, 4), round(enough, 4), unit="share")]
    if names:
        evidence.append(Evidence("most of it in", names))
    text, words, more = _variant(cause.name, traced, share)
    words |= {"share": percent(share), "names": names or "a synchronization"}
    if text in GPU_COMPILE:
        words["compile"] = GPU_COMPILE[text]["compiled" in traced.signs]
    return Finding(
        cause.kind, GPU_HEADLINES[text].format_map(words), (*evidence, *more), GPU_ADVICE[words.pop("advice", text)].format_map(words),
        share, confidence=_confidence(traced, certain, _doubt(cause, traced)), where=_where(ranks, cause.name),
        label={"copies_on_device": ON_DEVICE, "allocation": EMPTIED}.get(text, ""),
    )  # fmt: skip


def _variant(name: str, traced: Traced, share: float) -> tuple[str, dict[str, Any], tuple[Evidence, ...]]:
    """Return the name of a cause's words, what fills their places, and further evidence."""
    ranks, signs = traced.ranks, traced.signs
    if name == "input" and _mean(ranks, "idle_boundary") > share / 2:
        return "boundary", {"advice": "input"}, ()
    if name == "launch":
        unrecorded = _mean(ranks, "idle_unrecorded")
        short = float(np.mean([rank.short for rank in ranks]))
        each = sum(rank.us["total"] for rank in ranks) / max(sum(rank.launches for rank in ranks), 1)
        more = (
            Evidence("part of it in which the host ran no operator", round(unrecorded / share, 4), unit="share"),
            Evidence("kernels shorter than their launch", round(short, 4), unit="share"),
            Evidence("time from launch to launch", round(each / 1e3, 4), unit="ms"),
        )
        optimizers = ", fused and foreach optimizers" if "backward" in signs else ""
        return "unrecorded" if unrecorded > share / 2 else "launch", {"optimizers": optimizers}, more
    if name == "copies":
        copied = sum(line.us for line in _lines(ranks, "copies")) or 1.0
        inner = sum(rank.us["within"] for rank in ranks) > copied / 2
        first = (
            "Pin the host's memory (pin_memory=True) and copy" if any(rank.us["pageable"] for rank in ranks) else "Copy"
        )
        count = Evidence("copies between host and device", sum(rank.copies for rank in ranks))
        return "copies_on_device" if inner else "copies", {"first": first}, (count,)
    if name == "plain" and not all(rank.units.tf32 for rank in ranks):
        return (
            "plain",
            {"advice": "plain_bfloat16" if all(rank.units.bfloat16 for rank in ranks) else "plain_float16"},
            (),
        )
    if name == "elementwise":
        attention = "scaled_dot_product_attention, " if "fused attention" not in signs else ""
        fused = f"{attention}fused norms{' and optimizers' if 'backward' in signs else ''}"
        layout = ", channels_last" if "convolution" in signs else ""
        precision = ", and half precision, which halves the bytes" if "half precision" not in signs else ""
        return "elementwise", {"fused": fused, "rest": layout + precision}, ()
    if name == "dominant":
        return "dominant", {"kernel": shorten(_dominant(ranks), 100)}, ()
    return _collective(traced) if name == "communication" else (name, {}, ())


def _dominant(ranks: Sequence[RankTime]) -> str:
    """Return the kernel that takes most of the time; "" if none takes enough to be shown.

    Products and elementwise kernels are other causes.
    """
    spent: dict[str, float] = {}
    for rank in ranks:
        spent[rank.dominant] = spent.get(rank.dominant, 0.0) + rank.share(rank.dominant_us) / len(ranks)
    return next((name for name, share in spent.items() if share >= limits.SHOWN and share == max(spent.values())), "")


def _collective(traced: Traced) -> tuple[str, dict[str, Any], tuple[Evidence, ...]]:
    """Name the most exposed collective, its group and bandwidth, and what helps against it."""
    spent: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for trace in traced.gpu.ranks.values():
        for row in communication(trace).rows():
            key = str(row["operation"]), str(row["group"]), int(row["group_size"])
            spent.setdefault(key, []).append((float(row["exposed_us"]), float(row["bus_gbps"])))
    if not spent:
        return "communication", {}, ()
    key = max(spent, key=lambda one: sum(exposed for exposed, _ in spent[one]))
    operation, group, size = key
    whole = sum(exposed for pairs in spent.values() for exposed, _ in pairs) or 1.0
    share = sum(exposed for exposed, _ in spent[key]) / whole
    of_group = f", group {shorten(group, 40)}" if group else ""
    of_size = f" of {size} ranks" if size > 0 else ""
    evidence = [Evidence("most exposed", f"{operation}{of_group}{of_size}: {percent(share)} of it")]
    rates = [rate for _, rate in spent[key] if np.isfinite(rate)]
    if rates:
        evidence.append(Evidence("its bus bandwidth", f"{float(np.median(rates)):.3g} GB/s"))
    operation = "alltoall" if operation == "sendrecv" else operation  # NCCL's way to exchange between all ranks
    advice = f"collective_{operation}" if f"collective_{operation}" in GPU_ADVICE else "communication"
    return "communication", {"advice": advice}, tuple(evidence)


# What a rank may do longer than the others: name of its lines → label, and key of `RankTime.us`.
_LATE: Mapping[str, tuple[str, str]] = {
    "compute": ("computing", "compute"), "input": ("waiting for data", "idle_input"), "sync": ("after waits for the GPU", "idle_sync"),
    "launch": ("launching", "idle_launch"), "copies": ("copying", "exposed_copies"),
}  # fmt: skip


def _late(traced: Traced, loop: Loop) -> Trial[Finding, Loop] | None:
    """Try to repair the rank that comes last to most collectives: the others no longer wait for it."""
    of, ranks = traced.arrivals, traced.ranks
    least, usual, most = of.saved_us() / 1e6
    if not usual.any():
        return None
    at = int(usual.argmax())
    saving = Saving(usual[[at]], least[at] / usual[at], most[at] / usual[at], (MEETING,))
    after, saved, certain = loop.gain(saving)
    number, last = of.ranks[at], float((of.spent.argmin(axis=1) == at).mean())
    (mine,), others = [rank for rank in ranks if rank.rank == number], [rank for rank in ranks if rank.rank != number]
    longer = {
        name: mine.us[key] - float(np.mean([rank.us[key] for rank in others])) for name, (_, key) in _LATE.items()
    }
    cause, share = max(longer, key=lambda name: longer[name]), saved.value
    evidence = [
        Evidence("time the others wait for it", round(share, 4), limits.FLOOR, f"rank {number}", "share"),
        Evidence("collectives it came last to", round(last, 4), 1 / len(ranks), unit="share", held="usually"),
    ]
    if longer[cause] > 0:
        evidence.append(Evidence(f"longer than the others: {_LATE[cause][0]}", round(longer[cause] / 1e6, 6), unit="s"))
    words = {"rank": number, "share": percent(share)}
    finding = Finding(
        Class.STRAGGLER, GPU_HEADLINES["straggler"].format_map(words), tuple(evidence), GPU_ADVICE["straggler"],
        share, confidence=_confidence(traced, certain), where=_where([mine], cause) if longer[cause] > 0 else (),
        ranks=(str(number),),
    )  # fmt: skip
    return Trial(finding, loop, after, saved, certain, finding.confidence)


# --- health ---------------------------------------------------------------------------------------------------------


def _healthy(traced: Traced) -> Finding:
    """Return that the devices compute most of the time; if they do not, that is no health, and the candidates are named."""
    totals, ranks = traced.totals, traced.ranks
    compute, busy = totals.share(*COMPUTING), limits.BUSY / 100
    evidence = [Evidence("a computation runs", round(compute, 4), busy, unit="share", held="good from")]
    names = _names(ranks, "compute")
    if names:
        evidence.append(Evidence("most of it in", names))
    if compute >= busy:
        return Finding(
            Class.COMPUTE_BOUND, GPU_HEADLINES["healthy"].format(share=percent(compute)), tuple(evidence), GPU_ADVICE["healthy"], 0.0,
            confidence=_confidence(traced, compute), where=_where(ranks, "compute"),
        )  # fmt: skip
    others = [name for name in totals.activities if name not in COMPUTING][:3]
    candidates = ", ".join(f"{name} {percent(totals.share(name))}" for name in others)
    return Finding(
        Class.BALANCED, GPU_HEADLINES["mostly_idle"].format(share=percent(compute), candidates=candidates), tuple(evidence),
        GPU_ADVICE["mostly_idle"].format(first=others[0]), 0.0,
        confidence="low", where=_where(ranks, "launch"), label=MOSTLY_IDLE if compute < limits.MAJORITY else NO_CAUSE,
    )  # fmt: skip
