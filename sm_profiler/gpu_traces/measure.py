"""Division of each rank's recorded time by what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.formats.kineto_reader import (
    ANNOTATION,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPERATOR,
    PYTHON,
    RUNTIME,
    KinetoColumns,
    KinetoTrace,
)
from sm_profiler.gpu_traces import intervals
from sm_profiler.gpu_traces.callers import (
    Callers,
    PythonFrame,
    frame_of,
    is_user_code,
    launch_rows,
    step_rows,
    wait_rows,
)
from sm_profiler.gpu_traces.device_time import of_kind
from sm_profiler.gpu_traces.intervals import Numbers
from sm_profiler.gpu_traces.kernels import (
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    MEMORY,
    MatrixUnits,
    avoids_tensor_cores,
    copy_direction,
    is_elementwise,
    is_fused_attention,
    is_half,
    is_matmul,
    is_pageable,
    kinds,
    name_of,
)
from sm_profiler.gpu_traces.table import Groups
from sm_profiler.gpu_traces.traces import GpuTraces

MAX_LINES = 5
OUTSIDE = "outside"  # the sampler's name of the time between steps
# Phase → the lines in which the host was seen in it, with their shares of its samples.
SampledLines: TypeAlias = Mapping[str, tuple[tuple[PythonFrame, float], ...]]

TOP = 10  # kernels, operators and lines listed of each rank
# A gap of this share of the trace, and so many times as long as the usual one, is no habit of the loop.
ONCE_SHARE, ONCE_TIMES = 0.2, 100
ONCE_MOST = 3
# Without an operator for so long, the host does something else than launching: Python between two takes some ten microseconds.
ELSEWHERE_US = 1000.0
# Calls that ask the driver for memory of the device, and that return it; torch keeps what is freed, for the next allocation.
ALLOCATES, FREES = re.compile(r"^(cuda|hip)Malloc$"), re.compile(r"^(cuda|hip)Free$")
LOADING = re.compile(r"DataLoader|data_?loading|next_batch|load_batch|fetch_data", re.IGNORECASE)


@attrs.frozen
class CodeLine:
    """A line of Python and the time that it costs.

    Attributes:
        name: the operator, call or kernel.
        us: time, microseconds.
        file, line, function: the line; "" and 0 if it is unknown.
        sampled: the line is an estimate: the host was seen there in this phase while the trace was recorded.
    """

    name: str
    us: float
    file: str = ""
    line: int = 0
    function: str = ""
    sampled: bool = False


class CauseLines:
    """Sums up times by what the host did."""

    def __init__(self, callers: Callers, sampled: SampledLines) -> None:
        self.callers = callers
        self._sampled = sampled

    def of_launches(self, kernels: Numbers, launches: Numbers, time: Floats) -> tuple[CodeLine, ...]:
        """Sum up the times of kernels by what launched them; by their names if the trace does not hold the launches."""
        found = self.of(self.callers.operators(launches), launches, time)
        return found if any(line.name for line in found) else self.of(kernels, launches, time)

    def of(self, named: Numbers, rows: Numbers, time: Floats, moments: Floats | None = None) -> tuple[CodeLine, ...]:
        """Sum up times by name and line of Python, the most expensive first.

        Args:
            named: row of the event that gives each time its name, -1 for none.
            rows: row of the event on the host that takes or causes it, -1 for none.
            time: microseconds.
            moments: when the host spent each time; default: at the start of its row.
        """
        phases = self.callers.phases(rows) if moments is None else self.callers.phases_at(moments)
        names = (*self.callers.events.name.values, "")  # the last one is that of -1
        codes = [self._codes(found) for found in (named, self.callers.frames(rows), phases)]
        groups = Groups(*codes)
        found: dict[tuple[str, PythonFrame | None, bool], float] = {}
        for name, at, phase, us in zip(
            *(groups.first(column).tolist() for column in codes), groups.sum(time), strict=True
        ):
            frame = frame_of(names[at])
            seen = self._sampled.get(names[phase] or OUTSIDE, ()) if frame is None else ()
            rest = 1.0 - sum(share for _, share in seen)
            parts = [(line, share, True) for line, share in seen] + [(frame, rest, False)]
            for line, share, sampled in parts:
                key = names[name], line, sampled
                found[key] = found.get(key, 0.0) + us * share
        ordered = sorted(found.items(), key=lambda item: -item[1])[:MAX_LINES]
        return tuple(
            CodeLine(name, float(us), line.file, line.line, line.function, sampled)
            if line
            else CodeLine(name, float(us))
            for (name, line, sampled), us in ordered
            if us > 0
        )

    def _codes(self, rows: Numbers) -> Numbers:
        return np.where(rows >= 0, self.callers.events.name.codes[rows], -1)


@attrs.frozen(eq=False, kw_only=True)
class RankTime:
    """The recorded time of one rank.

    Attributes:
        device: name of the GPU; "" if unknown.
        us: microseconds, by what they are:
            `total`: from the first kernel to the last; `compute`: a computation ran; `exposed_communication`: communication
            ran, and no computation; `exposed_copies`: only copies ran; nothing ran, and the host loaded data (`idle_input`),
            had waited for the device (`idle_sync`), was busy in a few very long gaps (`idle_once`), freed and allocated memory
            of the device in each step (`idle_allocation`), launched too slowly (`idle_launch`), or had launched already (`idle_queued`); `idle_unrecorded`: the part of `idle_launch` in which
            the host ran nothing that torch records, for longer than the Python between two operators takes;
            `idle_boundary`: the part of `idle_input` between two steps, likewise; sums of kernels that multiply matrices
            (`matmul`), of those known to use no tensor cores (`matmul_plain`), and of those that compute element by element
            (`elementwise`); sums of copies from or to pageable memory (`pageable`), and `within` the device.
        dominant, dominant_us: the kernel, neither product nor elementwise, that takes most time, and that time.
        kernels_us: sum of the computing kernels, which may run at once.
        units: the device's tensor or matrix cores.
        copies: number of copies between host and device.
        launches: number of launches.
        steps: number of marked steps.
        short: share of the launches whose kernel is shorter than the call.
        signs: what the events show of the program: `stacks` (functions of Python were recorded, which slows the host), `backward`,
            `half precision`, `fused attention`, `convolution`, `compiled`.
        lines: cause (`input`, `sync`, `once`, `allocation`, `launch`, `communication`, `copies`, `plain`, `elementwise`, `dominant`,
            `compute`) → what costs most of it.
    """

    rank: int
    device: str
    us: Mapping[str, float]
    dominant: str
    dominant_us: float
    kernels_us: float
    units: MatrixUnits
    copies: int
    launches: int
    steps: int
    short: float
    signs: frozenset[str]
    lines: dict[str, tuple[CodeLine, ...]]

    def share(self, value: float) -> float:
        """Return a time as a share of the recorded time."""
        return value / self.us["total"] if self.us["total"] > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"rank": self.rank, "device": self.device}
        found |= {f"{name}_us": round(float(us), 3) for name, us in self.us.items()}
        found |= {"copies": self.copies, "launches": self.launches, "short_kernels": round(self.short, 4)}
        found["lines"] = {cause: [attrs.asdict(line) for line in lines] for cause, lines in self.lines.items()}
        return found


def measure(gpu: GpuTraces, sampled: Mapping[int, SampledLines] | None = None) -> tuple[RankTime, ...]:
    """Measure every rank whose trace holds kernels.

    Args:
        sampled: rank → the lines of each phase, for traces without Python stacks.
    """
    return tuple(
        measure_rank(rank, trace, CauseLines(gpu.callers(rank), (sampled or {}).get(rank, {})))
        for rank, trace in gpu.ranks.items()
        if trace.events.on_device.any()
    )


def measure_rank(rank: int, trace: KinetoTrace, of: CauseLines) -> RankTime:
    events = trace.events
    rows = np.flatnonzero(events.on_device)
    device = events[rows]
    launch = launch_rows(events, device)
    copying = np.isin(device.category, (MEMCPY, MEMSET))
    kind = np.array(KINDS)[kinds(device)]
    compute, communication = of_kind(device, COMPUTATION), of_kind(device, COMMUNICATION)
    busy_start, busy_end = intervals.union(device.start_us, device.end_us)
    busy, whole = float((busy_end - busy_start).sum()), float(busy_end[-1] - busy_start[0])
    computing = float((compute[1] - compute[0]).sum())
    length = float((communication[1] - communication[0]).sum())
    exposed = length - intervals.intersection(communication, compute)
    idle, lines = _idle(events, of, device, launch, (busy_start, busy_end))
    time = device.duration_us
    matmul = _marked(device, is_matmul)
    plain = matmul & _marked(device, avoids_tensor_cores)
    elementwise = _marked(device, is_elementwise)
    other = (device.category == KERNEL) & (kind == COMPUTATION) & ~matmul & ~elementwise
    spent = np.bincount(device.name.codes[other], time[other], max(len(device.name.values), 1))
    dominant = int(spent.argmax())
    lines |= {
        cause: of.of_launches(rows[chosen], launch[chosen], time[chosen])
        for cause, chosen in (
            ("communication", kind == COMMUNICATION),
            ("copies", kind == MEMORY),
            ("plain", plain),
            ("elementwise", elementwise),
            ("dominant", other & (device.name.codes == dominant)),
            ("compute", kind == COMPUTATION),
        )
    }
    between = copying & device.name.mask(lambda name: copy_direction(name) in ("Memcpy HtoD", "Memcpy DtoH"))
    sums = {
        "matmul": matmul, "matmul_plain": plain, "elementwise": elementwise,
        "pageable": copying & device.name.mask(is_pageable),
        "within": copying & device.name.mask(lambda name: copy_direction(name) == "Memcpy DtoD"),
    }  # fmt: skip
    known = launch >= 0
    short = time[known] < events.duration_us[launch[known]]
    properties = trace.device_properties
    return RankTime(
        rank=rank, device=name_of(properties),
        us={
            "total": whole, "compute": computing, "exposed_communication": exposed,
            "exposed_copies": max(busy - computing - exposed, 0.0), **idle,
            **{name: float(time[chosen].sum()) for name, chosen in sums.items()},
        },
        dominant=device.name.values[dominant] if spent[dominant] else "", dominant_us=float(spent[dominant]),
        kernels_us=float(time[kind == COMPUTATION].sum()), units=MatrixUnits.of(properties), copies=int(between.sum()),
        launches=int(known.sum()), steps=len(step_rows(events)), short=float(short.mean()) if len(short) else 0.0,
        signs=_signs(events), lines=lines,
    )  # fmt: skip


def _signs(events: KinetoColumns) -> frozenset[str]:
    """Return what the events show of the program; see `RankTime.signs`."""
    of_names = {
        "backward": (OPERATOR, lambda name: "backward" in name.lower()), "half precision": (KERNEL, is_half),
        "fused attention": (KERNEL, is_fused_attention), "convolution": (OPERATOR, lambda name: "conv" in name.lower()),
        "compiled": (OPERATOR, lambda name: name.startswith(("CompiledFunction", "Torch-Compiled"))),
    }  # fmt: skip
    found = {
        sign
        for sign, (kind, wanted) in of_names.items()
        if (events.name.mask(wanted) & (events.category == kind)).any()
    }
    return frozenset(found | ({"stacks"} if (events.category == PYTHON).any() else set()))


def _marked(device: KinetoColumns, wanted: Callable[[str], bool]) -> Mask:
    found: Mask = (device.category == KERNEL) & device.name.mask(wanted)
    return found


def _idle(
    events: KinetoColumns, of: CauseLines, device: KinetoColumns, launch: Numbers, busy: tuple[Floats, Floats]
) -> tuple[dict[str, float], dict[str, tuple[CodeLine, ...]]]:
    """Divide the gaps of the device by what the host did in them; see `RankTime.us`. Return the lines that cause them, too."""
    start, end = busy[1][:-1], busy[0][1:]
    first = np.searchsorted(device.start_us, end, "left")  # the kernel that ends each gap
    launched = np.where(launch[first] >= 0, events.start_us[launch[first]], np.inf)
    gap = end - start
    is_queued = launched <= start
    loading = np.flatnonzero(
        np.isin(events.category, (ANNOTATION, OPERATOR)) & events.name.mask(lambda name: LOADING.search(name) is not None)
    )  # fmt: skip
    of_loading = intervals.covered(start, end, intervals.union(events.start_us[loading], events.end_us[loading]))
    waits = wait_rows(events)
    waits = waits[np.argsort(events.end_us[waits], kind="stable")]
    after = np.searchsorted(events.end_us[waits], start, "left")
    # the host returned from its wait in the gap: it could not launch ahead
    waited = (
        (after < len(waits)) & (events.end_us[waits[np.minimum(after, max(len(waits) - 1, 0))]] <= end)
        if len(waits)
        else gap < 0
    )
    host = np.where(is_queued, 0.0, gap)
    input_us = np.minimum(of_loading, host)
    sync_us = np.where(waited, host - input_us, 0.0)
    left = host - input_us - sync_us
    quiet = np.clip(left - _worked(events, start, end, (ANNOTATION, OPERATOR, RUNTIME)), 0.0, None)
    quiet = np.where(_begins_step(events, start, end), quiet, 0.0)
    once = _once(gap, float(busy[1][-1] - busy[0][0]), len(np.unique(events.name.codes[step_rows(events)])))
    allocating = _allocations(events) if not once.any() else np.zeros(0, np.intp)  # first calls fill the cache
    of_allocating = intervals.covered(
        start, end, intervals.union(events.start_us[allocating], events.end_us[allocating])
    )
    allocation = np.minimum(of_allocating, left - quiet)
    launch_us = left - quiet - allocation
    unrecorded = np.clip(left - quiet - _worked(events, start, end, (OPERATOR, RUNTIME)), 0.0, None)
    unrecorded = np.where(unrecorded >= ELSEWHERE_US, unrecorded, 0.0)
    gaps = intervals.union(start, end)
    in_gaps = intervals.covered(events.start_us[loading], events.end_us[loading], gaps)
    loaders, spans = np.concatenate([loading, _inside(events, start, end, quiet)]), np.concatenate([in_gaps, quiet])
    lines = {"input": of.of(loaders, loaders, spans, np.concatenate([events.start_us[loading], (start + end) / 2]))}
    if len(waits):
        rows = waits[np.minimum(after, len(waits) - 1)]
        rows = rows[waited]
        named = np.where((outer := of.callers.outermost(rows)) >= 0, outer, rows)
        lines["sync"] = of.of(named, rows, sync_us[waited])
    rows = launch[first]
    middle = (start + end) / 2
    lines["launch"] = of.of(of.callers.operators(rows), rows, launch_us, middle)
    lines["once"] = of.of(of.callers.operators(rows[once]), rows[once], launch_us[once], middle[once])
    host_in_gaps = intervals.covered(events.start_us[allocating], events.end_us[allocating], gaps)
    lines["allocation"] = of.of(allocating, allocating, host_in_gaps)
    start_up = float(launch_us[once].sum())
    idle = {
        "idle_input": float(input_us.sum()) + float(quiet.sum()), "idle_sync": float(sync_us.sum()), "idle_once": start_up,
        "idle_allocation": float(allocation.sum()), "idle_launch": float(launch_us.sum()) - start_up, "idle_queued": float(gap[is_queued].sum()),
        "idle_unrecorded": float(unrecorded[~once].sum()), "idle_boundary": float(quiet.sum()),
    }  # fmt: skip
    return idle, lines


def _allocations(events: KinetoColumns) -> Numbers:
    """Return the calls that free and allocate memory of the device, if each marked step has both.

    A loop that runs keeps its memory.
    """
    calls = events.category == RUNTIME
    found = [np.flatnonzero(calls & events.name.mask(lambda name, kind=kind: kind.search(name) is not None)) for kind in (ALLOCATES, FREES)]
    steps = len(step_rows(events))
    return np.concatenate(found) if 0 < steps <= min(map(len, found)) else found[0][:0]


def _worked(events: KinetoColumns, start: Floats, end: Floats, categories: tuple[int, ...]) -> Floats:
    """Return how long of each gap the host ran events of some categories."""
    working = np.isin(events.category, categories)
    working[step_rows(events)] = False
    return intervals.covered(start, end, intervals.union(events.start_us[working], events.end_us[working]))


def _begins_step(events: KinetoColumns, start: Floats, end: Floats) -> Mask:
    """Return in which gaps a step begins."""
    begins = events.start_us[step_rows(events)]
    found: Mask = np.searchsorted(begins, start, "left") < np.searchsorted(begins, end, "right")
    return found


def _inside(events: KinetoColumns, start: Floats, end: Floats, time: Floats) -> Numbers:
    """Return the row of the longest Python function of the user's that ran within each gap, -1 if none did."""
    found = np.full(len(start), -1, np.intp)
    rows = np.flatnonzero((events.category == PYTHON) & events.name.mask(is_user_code))
    gap = np.searchsorted(start, events.start_us[rows], "right") - 1
    fits = (
        (gap >= 0) & (events.end_us[rows] <= end[np.maximum(gap, 0)]) if len(start) else np.zeros(len(rows), np.bool_)
    )
    rows, gap = rows[fits], gap[fits]
    order = np.argsort(events.duration_us[rows], kind="stable")
    found[gap[order]] = rows[order]  # the longest is written last
    return np.where(time > 0, found, -1)


def _once(gap: Floats, whole: float, steps: int) -> Mask:
    """Return which gaps do not belong to the usual loop: very long, fewer than the steps, and at most ONCE_MOST."""
    order = np.argsort(gap)
    usual = float(np.median(gap[order[:-1]])) if len(gap) > 1 else 0.0
    long: Mask = (gap > ONCE_SHARE * whole) & (gap > ONCE_TIMES * usual)
    return long if long.sum() <= ONCE_MOST and (steps <= 1 or long.sum() < steps) else np.zeros(len(gap), np.bool_)
