"""The device's time: kernels, idle time, the critical path, and collectives: what of them is exposed, and which rank comes late."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np

from sm_profiler.formats.columns import Category, Floats
from sm_profiler.formats.kineto_reader import OPERATOR, RUNTIME, Collective, KinetoColumns, KinetoTrace
from sm_profiler.gpu_traces import intervals
from sm_profiler.gpu_traces.callers import Callers, launch_rows, launch_starts, names_of, wait_rows
from sm_profiler.gpu_traces.intervals import Numbers
from sm_profiler.gpu_traces.kernels import COMMUNICATION, COMPUTATION, KINDS, kinds
from sm_profiler.gpu_traces.table import Groups, TraceTable, array_of, rows_by

HOST_WAIT, KERNEL_WAIT, OTHER = "host_wait", "kernel_wait", "other"
CONSECUTIVE_US = 30.0  # a queued kernel that starts later than this waited for something besides the previous kernel

Link: TypeAlias = tuple[str, str, float, float]  # kind, name, start and duration in µs
HOST, LAUNCH, WAITING = "host", "launch", "waiting"
_CLOSE_US = 50.0  # a wait for the device ends so soon after the kernel it waited for

_OPERATION = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|send_?recv|reduce|gather|scatter|send|recv",
    re.IGNORECASE,
)
_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1,
    "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
# Bus bandwidth of n ranks as a multiple of (n - 1) / n of the algorithm's bandwidth, as NCCL's tests define it.
_BUS = {"allreduce": 2.0, "reducescatter": 1.0, "allgather": 1.0, "alltoall": 1.0}


def of_kind(device: KinetoColumns, kind: str) -> tuple[Floats, Floats]:
    """Return the union of the kernels of one kind."""
    rows = kinds(device) == KINDS.index(kind)
    return intervals.union(device.start_us[rows], device.end_us[rows])


def temporal(events: KinetoColumns) -> dict[str, float]:
    """Return idle_us, compute_us, non_compute_us and total_us from the first to the last kernel.

    `non_compute_us` is the time in which the device only communicated or copied.
    """
    device = events.device_events
    if not len(device):
        return dict.fromkeys(("idle_us", "compute_us", "non_compute_us", "total_us"), 0.0)
    busy = intervals.total(device.start_us, device.end_us)
    whole = float(device.end_us.max() - device.start_us.min())
    starts, ends = of_kind(device, COMPUTATION)
    compute = float((ends - starts).sum())
    return {"idle_us": whole - busy, "compute_us": compute, "non_compute_us": busy - compute, "total_us": whole}


def idle(events: KinetoColumns, delay_us: float = CONSECUTIVE_US) -> TraceTable:
    """Return the idle time of each stream by reason.

    `host_wait`: the host launched the next kernel after the previous one had ended. `kernel_wait`: it was queued, and
    started within `delay_us`. `other`: it was queued and started later: it waited for another stream or an event.

    Returns:
        Columns stream, category, idle_us, share.
    """
    device = events.device_events
    launched = launch_starts(events, device)
    rows = []
    for of_stream in rows_by(device.stream):
        start, end, launch = device.start_us[of_stream], device.end_us[of_stream], launched[of_stream]
        before = np.maximum.accumulate(end)[:-1]
        gap = np.maximum(start[1:] - before, 0.0)
        late = launch[1:] > before
        near = ~late & (gap < delay_us)
        sums = {HOST_WAIT: gap[late].sum(), KERNEL_WAIT: gap[near].sum(), OTHER: gap[~late & ~near].sum()}
        whole = sum(sums.values())
        rows += [
            (int(device.stream[of_stream[0]]), name, float(value), float(value / whole) if whole else 0.0)
            for name, value in sums.items()
        ]
    return TraceTable.of(("stream", "category", "idle_us", "share"), rows)


def overlap(events: KinetoColumns) -> dict[str, float]:
    """Return `share_hidden`, the share of communication that computation hides, and `exposed_us`, the rest."""
    device = events.device_events
    communication, computation = of_kind(device, COMMUNICATION), of_kind(device, COMPUTATION)
    length = float((communication[1] - communication[0]).sum())
    hidden = intervals.intersection(communication, computation) if length else 0.0
    return {"share_hidden": hidden / length if length else float("nan"), "exposed_us": length - hidden}


def by_kind(events: KinetoColumns) -> TraceTable:
    """Return the time in each kind of kernel, and in each combination of kinds that ran at the same time.

    Returns:
        Columns kind (`computation`, `communication and memory`, …), sum_us, share of the busy time.
    """
    device = events.device_events
    edges, changes = [], []
    for bit, kind in enumerate(KINDS):
        starts, ends = of_kind(device, kind)
        edges += [starts, ends]
        changes += [np.full(len(starts), 1 << bit), np.full(len(ends), -(1 << bit))]
    at, change = np.concatenate(edges), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    state = np.cumsum(change[order])[:-1] if len(order) else np.empty(0, int)
    length = np.diff(at[order])
    sums = {
        " and ".join(kind for bit, kind in enumerate(KINDS) if value >> bit & 1): float(length[state == value].sum())
        for value in range(1, 1 << len(KINDS))
        if (state == value).any()
    }
    busy = sum(sums.values())
    rows = [(kind, value, value / busy) for kind, value in sums.items() if value > 0]
    return TraceTable.of(("kind", "sum_us", "share"), sorted(rows, key=lambda row: -row[1]))


def kernels(events: KinetoColumns) -> TraceTable:
    """Return one row per kernel, the most expensive first.

    Returns:
        Columns kind, name, count, sum_us, mean_us, min_us, max_us, std_us, share of the time in all kernels.
    """
    device = events.device_events
    kind, us = kinds(device), device.duration_us
    groups = Groups(device.name.codes, kind)
    total = groups.sum(us)
    names = [device.name.values[code] for code in groups.first(device.name.codes).tolist()]
    whole = float(total.sum())
    table = TraceTable({
        "kind": array_of([KINDS[code] for code in groups.first(kind).tolist()]), "name": array_of(names),
        "count": groups.count, "sum_us": total, "mean_us": groups.mean(us), "min_us": groups.min(us),
        "max_us": groups.max(us), "std_us": groups.std(us), "share": total / whole if whole else np.zeros(len(groups)),
    })  # fmt: skip
    return table.take(np.array(sorted(range(len(names)), key=lambda row: (-total[row], names[row])), np.intp))


def critical_path(events: KinetoColumns) -> TraceTable:
    """Return the critical path of one rank, in time order.

    It is followed backwards from the last kernel: a kernel begins when its stream is free and its launch has arrived,
    whichever is later; a call that waits for the device ends with the last kernel before it; the host's other work follows
    its own thread, or, if it is idle, the thread that worked last.

    Returns:
        Columns kind (`computation`, `communication`, `memory`, `host`, `launch`: on the way to the device, `waiting`: nothing
        was recorded), name, start_us, duration_us. The rows do not overlap.
    """
    device_rows = np.flatnonzero(events.on_device)
    links = _Walk(events, device_rows).follow() if len(device_rows) else []
    return TraceTable.of(("kind", "name", "start_us", "duration_us"), links[::-1])


class _Walk:
    def __init__(self, events: KinetoColumns, device_rows: Numbers) -> None:
        self._events = events
        device = events[device_rows]
        self._launch = launch_rows(events, device)
        self._kind = [KINDS[kind] for kind in kinds(device)]
        self._name = names_of(events, device_rows)
        self._start, self._end = device.start_us.tolist(), device.end_us.tolist()
        self._previous = _previous_of_stream(device)
        by_end = np.argsort(device.end_us, kind="stable")
        self._by_end, self._ends = by_end.tolist(), device.end_us[by_end].tolist()
        top = _outermost_work(events)
        self._host_start, self._host_end = events.start_us[top].tolist(), events.end_us[top].tolist()
        self._host_thread, self._host_name = events.thread[top].tolist(), names_of(events, top)
        order = np.argsort(events.end_us[top], kind="stable")
        self._host_by_end, self._host_ends = order.tolist(), events.end_us[top][order].tolist()
        waits = wait_rows(events)
        self._waits = {
            int(events.thread[rows[0]]): (events.end_us[rows].tolist(), events.start_us[rows].tolist())
            for rows in (waits[own] for own in rows_by(events.thread[waits]))
        }

    def follow(self) -> list[Link]:
        """Return the links, the last one first."""
        links: list[Link] = []
        kernel: int | None = int(np.argmax(self._end))
        now, thread = self._end[kernel], -1
        for _ in range(4 * (len(self._start) + len(self._host_start)) + 4):
            if kernel is not None:
                start = min(self._start[kernel], now)
                links.append((self._kind[kernel], self._name[kernel], start, now - start))
                now, kernel, thread = self._before_kernel(kernel, start, links)
            else:
                now, kernel, thread = self._before_host(now, thread, links)
            if now == -np.inf:
                break
        return [link for link in links if link[3] > 0]

    def _before_kernel(self, kernel: int, now: float, links: list[Link]) -> tuple[float, int | None, int]:
        launch, previous = int(self._launch[kernel]), self._previous[kernel]
        launched = float(self._events.end_us[launch]) if launch >= 0 else -np.inf
        launched = min(launched, now)
        free = self._end[previous] if previous >= 0 else -np.inf
        if free == launched == -np.inf:
            return -np.inf, None, -1
        if now - max(free, launched) > CONSECUTIVE_US:  # it was queued, and waited for another stream
            other = self._kernel_ending(now)
            if other is not None and other != kernel and self._end[other] > max(free, launched):
                free, previous = self._end[other], other
        if launched <= free <= now:
            if now > free:
                links.append((LAUNCH, self._name[kernel], free, now - free))
            return free, previous, -1
        if now > launched:
            links.append((LAUNCH, self._name[kernel], launched, now - launched))
        return launched, None, int(self._events.thread[launch])

    def _before_host(self, now: float, thread: int, links: list[Link]) -> tuple[float, int | None, int]:
        waited = self._wait_ending(thread, now)
        if waited is not None:
            kernel = self._kernel_ending(now)
            if kernel is not None and self._end[kernel] > waited:
                end = self._end[kernel]
                if now > end:
                    links.append((HOST, "return from waiting for the device", end, now - end))
                return end, kernel, -1
        row = self._host_work(now, thread)
        if row is None:
            return -np.inf, None, -1
        end, start = min(self._host_end[row], now), self._host_start[row]
        if now > end:
            links.append((WAITING, "", end, now - end))
        # a wait for the device inside this operator hands the path over to the device
        own = self._host_thread[row]
        inner = self._last_wait(own, end)
        if inner is not None and inner > start:
            links.append((HOST, self._host_name[row], inner, end - inner))
            return inner, None, own
        links.append((HOST, self._host_name[row], start, end - start))
        return start if start < end else np.nextafter(end, -np.inf), None, own

    def _last_wait(self, thread: int, now: float) -> float | None:
        """Return the end of the last wait of a thread that ended before a moment."""
        ends, _ = self._waits.get(thread, ([], []))
        at = bisect.bisect_left(ends, now) - 1
        return ends[at] if at >= 0 else None

    def _wait_ending(self, thread: int, now: float) -> float | None:
        """Return the start of the wait of a thread that ends at a moment; None if there is none."""
        ends, starts = self._waits.get(thread, ([], []))
        at = bisect.bisect_left(ends, now)
        return starts[at] if at < len(ends) and ends[at] == now else None

    def _kernel_ending(self, now: float) -> int | None:
        at = bisect.bisect_right(self._ends, now) - 1
        return self._by_end[at] if at >= 0 and now - self._ends[at] <= _CLOSE_US else None

    def _host_work(self, now: float, thread: int) -> int | None:
        """Return the operator that runs on the thread at a moment, or the last one of any thread before it."""
        at = bisect.bisect_left(self._host_start, now) - 1
        for row in range(at, max(at - 64, -1), -1):
            if self._host_thread[row] == thread and self._host_end[row] >= now:
                return row
        at = bisect.bisect_left(self._host_ends, now) - 1
        return self._host_by_end[at] if at >= 0 else None


def _previous_of_stream(device: KinetoColumns) -> list[int]:
    """Return the number of the previous event of the same stream, -1 for the first."""
    order = np.lexsort((device.start_us, device.stream, device.device))
    previous = np.full(len(device), -1)
    same = (device.stream[order][1:] == device.stream[order][:-1]) & (
        device.device[order][1:] == device.device[order][:-1]
    )
    previous[order[1:]] = np.where(same, order[:-1], -1)
    return [int(row) for row in previous]


def _outermost_work(events: KinetoColumns) -> Numbers:
    """Return the rows of the operators and calls that no operator encloses, in time order."""
    rows = np.flatnonzero((events.category == OPERATOR) | (events.category == RUNTIME))
    outer = Callers(events).outermost(rows)
    found: Numbers = rows[(outer < 0) | (outer == rows)]
    return found


def operation_of(name: str) -> str:
    """Return the operation of a collective, such as `allreduce`."""
    found = _OPERATION.search(name)
    return found[0].lower().replace("_", "") if found else "other"


def collectives(trace: KinetoTrace) -> TraceTable:
    """Return one row per collective on the device, in time order.

    Returns:
        Columns operation, group, group_size, stream, start_us, duration_us, exposed_us (not hidden by computation), bytes and
        bus_gbps (NaN if the size was not recorded).
    """
    events = trace.events
    rows = np.flatnonzero(events.on_device)
    rows = rows[kinds(events[rows]) == KINDS.index(COMMUNICATION)]
    chosen = events[rows]
    hidden = intervals.covered(chosen.start_us, chosen.end_us, of_kind(events.device_events, COMPUTATION))
    described = [trace.collectives[number] if number >= 0 else None for number in chosen.collective.tolist()]
    names = [chosen.name.values[code] for code in chosen.name.codes]
    operations = [
        operation_of(collective.name if collective else name) for collective, name in zip(described, names, strict=True)
    ]
    size = np.array([float(_size(collective)) for collective in described])
    count = np.array([collective.group_size if collective else -1 for collective in described], np.int64)
    factor = np.array([_bus_factor(name, n) for name, n in zip(operations, count.tolist(), strict=True)])
    with np.errstate(divide="ignore", invalid="ignore"):
        bus = np.where((size > 0) & (chosen.duration_us > 0), size * factor / chosen.duration_us / 1e3, np.nan)
    return TraceTable({
        "operation": Category.of(operations),
        "group": Category.of(collective.group if collective else "" for collective in described),
        "group_size": count,
        "stream": chosen.stream,
        "start_us": chosen.start_us,
        "duration_us": chosen.duration_us,
        "exposed_us": chosen.duration_us - hidden,
        "bytes": np.where(size > 0, size, np.nan),
        "bus_gbps": bus,
    })  # fmt: skip


def _size(collective: Collective | None) -> int:
    if collective is None:
        return 0
    elements = max(collective.in_elements, collective.out_elements, 0)
    return elements * _BYTES.get(collective.element_type, 0)


def _bus_factor(operation: str, ranks: int) -> float:
    return _BUS[operation] * (ranks - 1) / ranks if operation in _BUS and ranks > 1 else 1.0


def communication(trace: KinetoTrace) -> TraceTable:
    """Return the collectives by operation and group, the most exposed first.

    Returns:
        Columns operation, group, group_size, count, sum_us, exposed_us, share_hidden, bytes, bus_gbps (median).
    """
    table = collectives(trace)
    operation, group, size = table.category("operation"), table.category("group"), table["group_size"]
    groups = Groups(operation.codes, group.codes, size)
    total, exposed = groups.sum(table["duration_us"]), groups.sum(table["exposed_us"])
    with np.errstate(divide="ignore", invalid="ignore"):
        hidden = np.where(total > 0, 1 - exposed / total, np.nan)
    return TraceTable({
        "operation": operation[groups.rows].decode(), "group": group[groups.rows].decode(), "group_size": size[groups.rows],
        "count": groups.count, "sum_us": total, "exposed_us": exposed, "share_hidden": hidden,
        "bytes": groups.sum(table["bytes"]), "bus_gbps": groups.median(table["bus_gbps"]),
    }).largest_first("exposed_us")  # fmt: skip


@attrs.frozen(eq=False)
class Arrivals:
    """When ranks came to the collectives that all of them have: they leave together, so who spends least came last.

    Attributes:
        ranks: the ranks.
        spent: microseconds of each collective and rank, shape (collectives, ranks).
        exposed: the part that no computation hides.
    """

    ranks: tuple[int, ...]
    spent: Floats
    exposed: Floats

    @property
    def waited(self) -> Floats:
        """Microseconds for which each rank waits for the last, without those that a computation hides."""
        least = self.spent.min(axis=1, keepdims=True, initial=np.inf)
        return np.asarray(np.minimum(self.exposed, self.spent - least))

    def waited_us(self, rank: int) -> float:
        """Return how long a rank waits for the last, in all collectives."""
        return float(self.waited[:, self.ranks.index(rank)].sum()) if rank in self.ranks else 0.0

    def saved_us(self) -> Floats:
        """Return what all would save if a rank did not come late: at least, usually and at most, shape (3, ranks).

        What it waits itself is subtracted: a rank that is last as often as the others delays them no more than they do.
        """
        count, waited = len(self.ranks), self.waited
        if count < 2 or not len(waited):
            return np.zeros((3, count))
        found = []
        for at in range(count):
            others = np.delete(waited, at, axis=1)[self.spent.argmin(axis=1) == at]
            sums = others.min(axis=1).sum(), np.median(others, axis=1).sum(), others.max(axis=1).sum()
            found.append(np.maximum(np.sort(sums) - waited[:, at].sum(), 0.0))
        return np.asarray(found).T


def arrivals(traces: Mapping[int, KinetoTrace]) -> Arrivals:
    """Return when ranks came to collectives.

    The n-th collective of an operation and group is the same one on every rank that has as many of them.
    """
    found = {rank: collectives(trace) for rank, trace in traces.items()} if len(traces) > 1 else {}
    rows = [numbered(table) for table in found.values()]
    common = sorted(set.intersection(*map(set, rows))) if rows else []
    spent, exposed = (
        np.array([table[name][[own[key] for key in common]] for table, own in zip(found.values(), rows, strict=True)])
        for name in ("duration_us", "exposed_us")
    )
    shape = len(found), len(common)
    return Arrivals(tuple(found), spent.reshape(shape).T, exposed.reshape(shape).T)


def stragglers(traces: Mapping[int, KinetoTrace]) -> TraceTable:
    """Return how long each rank keeps the others waiting in collectives.

    Returns:
        Columns rank, collectives (compared), last (how often it came last), late_us (sum of the differences to the mean
        time of the others), share_last.
    """
    of = arrivals(traces)
    time, count = of.spent, len(of.spent)
    others = (time.sum(axis=1, keepdims=True) - time) / max(len(of.ranks) - 1, 1)
    late = np.maximum(others - time, 0.0).sum(axis=0)
    last = np.bincount(time.argmin(axis=1) if count else [], minlength=len(of.ranks)).tolist()
    rows = [
        (rank, count, last[at], float(late[at]), last[at] / count if count else 0.0) for at, rank in enumerate(of.ranks)
    ]
    return TraceTable.of(("rank", "collectives", "last", "late_us", "share_last"), rows)


def numbered(table: TraceTable) -> dict[tuple[Any, ...], int]:
    """Return the rows of collectives by operation, group, size, how many of them there are, and their number."""
    keys = list(zip(table["operation"].tolist(), table["group"].tolist(), table["group_size"].tolist(), strict=True))
    counts, seen, found = Counter(keys), Counter[Any](), {}
    for row, key in enumerate(keys):
        found[(*key, counts[key], seen[key])] = row
        seen[key] += 1
    return found
