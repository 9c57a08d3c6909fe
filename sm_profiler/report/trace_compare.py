"""Compare two recordings of torch.profiler: step time, the GPU's time by cause, operators and kernels."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import attrs
import numpy as np
import pandas as pd

from sm_profiler.diagnosis.gpu import Traced
from sm_profiler.formats.columns import Floats
from sm_profiler.formats.kineto_reader import KinetoTrace
from sm_profiler.formatting import decimal, duration, percent, plural, shorten
from sm_profiler.gpu_traces.callers import launch_rows, operators_alone, step_rows
from sm_profiler.gpu_traces.kernels import (
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    MEMORY,
    avoids_tensor_cores,
    copy_direction,
    is_elementwise,
    is_matmul,
    is_pageable,
    kind_of,
    kinds,
    uses_tensor_cores,
)
from sm_profiler.gpu_traces.measure import RankTime, measure
from sm_profiler.gpu_traces.traces import GpuTraces
from sm_profiler.printable import printable
from sm_profiler.render.blocks import PageTable
from sm_profiler.render.gpu_section import PARTS
from sm_profiler.render.page import render_page
from sm_profiler.render.words import Summary, runs_of
from sm_profiler.report.build import job_name
from sm_profiler.report.compare import Change
from sm_profiler.report.recordings import verdict_on

APPEARED, VANISHED, SLOWER, FASTER, MORE, FEWER, SAME = (
    "appeared", "vanished", "slower", "faster", "more often", "less often", "unchanged",
)  # fmt: skip
MARGIN = 0.05  # smaller relative changes of a count or of a mean time count as none
DEVIATIONS = 2.0  # standard errors that a difference of means has to exceed
_BASE = re.compile(r"^(?:void )?([^<(]+)")

STEP = "step"
MIN_STEPS = 3  # of each side; two have no spread to speak of
MAX_ROWS = 100  # of compare.json
_SHOWN = 30  # rows of the page's tables
_IN_TERMINAL = 5  # rows of each of the terminal's tables
_FACTOR_FROM = 10.0  # larger changes are shown as a factor
_NEGLIGIBLE = 0.01  # of the step: smaller parts are not shown
# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom.
_T = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09,
)  # fmt: skip


def shared_unit(before: GpuTraces, after: GpuTraces) -> str:
    """Return what counts and times of a comparison refer to: `step` if all traces mark steps, else `recording`."""
    marked = all(len(step_rows(trace.events)) for gpu in (before, after) for trace in gpu.ranks.values())
    return "step" if marked else "recording"


def kernel_differences(before: GpuTraces, after: GpuTraces) -> pd.DataFrame:
    """Return the kernels and copies of two recordings, the largest difference first.

    Counts and times are those of a step, or of the whole recording if a trace marks no steps; averaged over ranks. If one
    kernel vanished and one of the same function with other template arguments appeared, they share a row.

    Returns:
        Columns kind, name, name_before (another one, else empty), change (`appeared`, `vanished`, `slower`, `faster`, `more often`,
        `less often`, `unchanged`), count_before, count_after, us_before, us_after, mean_us_before, mean_us_after, difference_us.
    """
    unit = shared_unit(before, after)
    old, new = (_kernels(gpu, unit) for gpu in (before, after))
    renamed = _renamed(old.index.difference(new.index), new.index.difference(old.index))
    old = old.rename(index=dict(renamed))
    old = old[~old.index.duplicated()]
    table = _joined(old, new)
    former = {now: name for name, now in renamed}
    table.insert(1, "name_before", [former.get(name, "") for name in table["name"]])
    table.insert(0, "kind", [_kind(old, new, name) for name in table["name"]])
    return table


def operator_differences(before: GpuTraces, after: GpuTraces) -> pd.DataFrame:
    """Return the operators of two recordings, the largest difference first.

    Counts and times are those of a step, or of the whole recording if a trace marks no steps; averaged over ranks. Time on the
    device is that of the kernels which the operator launches itself. If nothing ran on a device, changes are those of the host.

    Returns:
        Columns name, change, count_before, count_after (calls), us_before, us_after (on the device), mean_us_before, mean_us_after,
        difference_us, host_us_before, host_us_after (on the host, without inner operators).
    """
    unit = shared_unit(before, after)
    on_host = not any(trace.events.on_device.any() for gpu in (before, after) for trace in gpu.ranks.values())
    old, new = (_operators(gpu, unit, on_host=on_host) for gpu in (before, after))
    table = _joined(old, new)
    for label, frame in (("before", old), ("after", new)):
        table[f"host_us_{label}"] = frame["host_us"].reindex(table["name"]).fillna(0.0).to_numpy()
    if on_host:
        table[["us_before", "us_after"]] = 0.0
    return table


def group_differences(before: GpuTraces, after: GpuTraces) -> pd.DataFrame:
    """Return the time on the device by what a kernel is for, which compares devices whose kernels have other names, too.

    Returns:
        Columns group (`matrix products, tensor cores`, `elementwise`, `Memcpy HtoD`, …), count_before, count_after, us_before,
        us_after, difference_us; the largest difference first.
    """
    unit = shared_unit(before, after)
    frames = []
    for gpu in (before, after):
        frame = _kernels(gpu, unit).reset_index()
        frame["group"] = [
            group_of(str(name), str(kind)) for name, kind in zip(frame["name"], frame["kind"], strict=True)
        ]
        frames.append(frame.groupby("group")[["count", "us"]].sum())
    table = _beside(*frames).reset_index()
    return _ordered(table[["group", "count_before", "count_after", "us_before", "us_after"]])


def group_of(name: str, kind: str | None = None) -> str:
    kind = kind or kind_of(name)
    if kind == MEMORY:
        return copy_direction(name) + (" (pageable)" if is_pageable(name) else "")
    if kind == COMMUNICATION:
        return "communication"
    if is_matmul(name):
        if uses_tensor_cores(name):
            return "matrix products, tensor cores"
        return "matrix products, no tensor cores" if avoids_tensor_cores(name) else "matrix products"
    return "elementwise" if is_elementwise(name) else "other computation"


def _divisor(gpu: GpuTraces, unit: str) -> float:
    """Return by what sums over all ranks are divided."""
    if unit == "step":
        return float(sum(len(step_rows(trace.events)) for trace in gpu.ranks.values()))
    return float(len(gpu.ranks))


def _kernels(gpu: GpuTraces, unit: str) -> pd.DataFrame:
    parts = []
    for trace in gpu.ranks.values():
        device = trace.events[trace.events.on_device]
        frame = pd.DataFrame({"code": device.name.codes, "us": device.duration_us, "kind": kinds(device)})
        frame["square"] = frame["us"] ** 2
        sums = frame.groupby("code").agg(
            calls=("us", "size"), us=("us", "sum"), square=("square", "sum"), kind=("kind", "first")
        )
        sums["name"] = [device.name.values[int(code)] for code in sums.index]
        parts.append(sums)
    whole = pd.concat(parts).groupby("name").agg({"calls": "sum", "us": "sum", "square": "sum", "kind": "first"})
    whole["kind"] = [KINDS[int(kind)] for kind in whole["kind"]]
    return _per_part(whole, _divisor(gpu, unit))


def _operators(gpu: GpuTraces, unit: str, *, on_host: bool) -> pd.DataFrame:
    parts = [_operators_of(gpu, rank, trace, on_host=on_host) for rank, trace in gpu.ranks.items()]
    return _per_part(pd.concat(parts).groupby("name").sum(), _divisor(gpu, unit))


def _operators_of(gpu: GpuTraces, rank: int, trace: KinetoTrace, *, on_host: bool) -> pd.DataFrame:
    events = trace.events
    on_device = np.zeros(len(events))
    device = events.device_events
    around = gpu.callers(rank).operators(launch_rows(events, device))
    known = around >= 0
    np.add.at(on_device, around[known], device.duration_us[known])
    rows, alone = operators_alone(events)
    time = (alone if on_host else on_device)[rows]
    frame = pd.DataFrame({
        "code": events.name.codes[rows], "us": time, "square": time ** 2, "host_us": alone[rows],
    })  # fmt: skip
    sums = frame.groupby("code").agg(
        calls=("us", "size"), us=("us", "sum"), square=("square", "sum"), host_us=("host_us", "sum")
    )
    sums["name"] = [events.name.values[int(code)] for code in sums.index]
    return sums


def _per_part(sums: pd.DataFrame, parts: float) -> pd.DataFrame:
    """Return counts and times of a part, and the mean and its standard error of a single call."""
    sums["mean"] = sums["us"] / sums["calls"]
    spread = (sums["square"] / sums["calls"] - sums["mean"] ** 2).clip(lower=0) ** 0.5
    sums["error"] = spread / sums["calls"] ** 0.5
    sums["count"] = sums["calls"] / parts
    for column in ("us", "host_us"):
        if column in sums:
            sums[column] /= parts
    return sums


def _renamed(gone: pd.Index[str], new: pd.Index[str]) -> list[tuple[str, str]]:
    """Pair kernels of the same function if only one of each side has it."""
    sides = []
    for names in (gone, new):
        by_base: dict[str, list[str]] = {}
        for name in names:
            found = _BASE.match(name)
            by_base.setdefault(found[1].strip() if found else name, []).append(name)
        sides.append({base: same[0] for base, same in by_base.items() if len(same) == 1})
    return [(name, sides[1][base]) for base, name in sides[0].items() if base in sides[1]]


def _kind(old: pd.DataFrame, new: pd.DataFrame, name: str) -> str:
    return str((new if name in new.index else old).loc[name, "kind"] or COMPUTATION)


def _joined(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    columns = ["count", "us", "mean", "error"]
    both = _beside(old[columns], new[columns])
    both["change"] = _changes(both)
    both = both.rename(columns={"mean_before": "mean_us_before", "mean_after": "mean_us_after"})
    both.index.name = "name"
    order = ["change", "count_before", "count_after", "us_before", "us_after", "mean_us_before", "mean_us_after"]
    return _ordered(both[order].reset_index())


def _beside(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    both = old.merge(new, how="outer", left_index=True, right_index=True, suffixes=("_before", "_after"))
    return both.fillna(0.0)


def _changes(both: pd.DataFrame) -> list[str]:
    first, second = both["count_before"].to_numpy(), both["count_after"].to_numpy()
    mean, later = both["mean_before"].to_numpy(), both["mean_after"].to_numpy()
    error = np.hypot(both["error_before"].to_numpy(), both["error_after"].to_numpy())
    clear = (np.abs(later - mean) > MARGIN * mean) & (np.abs(later - mean) > DEVIATIONS * error)
    often = np.abs(second - first) > MARGIN * first
    by_count, by_time = np.abs(second - first) * mean, np.abs(later - mean) * second
    chosen = np.select(
        [first == 0, second == 0, clear & (~often | (by_time >= by_count)), often],
        [0, 1, np.where(later > mean, 2, 3), np.where(second > first, 4, 5)],
        6,
    )
    names = (APPEARED, VANISHED, SLOWER, FASTER, MORE, FEWER, SAME)
    return [names[int(each)] for each in chosen]


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    table["difference_us"] = table["us_after"] - table["us_before"]
    order = table["difference_us"].abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)


@attrs.frozen(eq=False)
class TraceComparison:
    """Changes from one recording to another; times in microseconds, of a step or of the whole recording.

    Attributes:
        before, after: names of the recordings.
        unit: `step` or `recording`.
        changes: the whole step (if steps are marked) and the parts of the GPU's time.
        notes: what else differs: devices, ranks, precision.
        sentence: the summary.
        verdicts: classes of both.
        steps: marked steps of a rank, mean over ranks.
        groups, operators, kernels: the tables of `report.trace_compare`.
    """

    before: str
    after: str
    unit: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    sentence: str
    verdicts: tuple[str, str]
    steps: tuple[int, int]
    groups: pd.DataFrame
    operators: pd.DataFrame
    kernels: pd.DataFrame

    @property
    def step(self) -> Change | None:
        return next((change for change in self.changes if change.part == STEP), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of compare.json."""
        plain = attrs.asdict(self, filter=lambda field, _: field.name not in ("groups", "operators", "kernels"))
        tables = {"groups": self.groups, "operators": self.operators, "kernels": self.kernels}
        return plain | {name: _rows(table.head(MAX_ROWS)) for name, table in tables.items()}


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON has them, floats rounded to six digits."""
    return [
        {str(key): value if isinstance(value, str) else float(f"{value:.6g}") for key, value in row.items()}
        for row in table.to_dict("records")
    ]


def compare_traces(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> TraceComparison:
    """Compare two folders, files or prefixes of traces.

    Raises:
        SourceError: there are no traces, or they cannot be read.
    """
    sides = GpuTraces(before), GpuTraces(after)
    unit = shared_unit(*sides)
    ranks = tuple(measure(gpu) for gpu in sides)
    times = tuple(_step_times(gpu) for gpu in sides)
    counts = tuple(round(len(gpu.steps()) / len(gpu.ranks)) if unit == STEP else 0 for gpu in sides)
    changes = _step_changes(*times) if unit == STEP else ()
    changes += _part_changes(*(_parts(found, count or 1) for found, count in zip(ranks, counts, strict=True)))
    verdicts = tuple(verdict_on(Traced.of(found, gpu)).main.kind.value for gpu, found in zip(sides, ranks, strict=True))
    groups, operators = group_differences(*sides), operator_differences(*sides)
    kernels = kernel_differences(*sides)
    return TraceComparison(
        job_name(os.fspath(before)), job_name(os.fspath(after)), unit, changes, _notes(sides, ranks, groups),
        _sentence(changes, groups, unit), (verdicts[0], verdicts[1]), (counts[0], counts[1]), groups, operators, kernels,
    )  # fmt: skip


def _step_times(gpu: GpuTraces) -> Floats:
    """Return the length of each step, averaged over ranks."""
    table = gpu.steps()
    lengths = (table["end_us"] - table["start_us"]).groupby(table["step"]).mean()
    return np.asarray(lengths, np.float64)


def _step_changes(earlier: Floats, later: Floats) -> tuple[Change, ...]:
    """Return the change of the mean step, with an interval of Welch's kind on the logarithms."""
    before, after = float(earlier.mean()), float(later.mean())
    if not before > 0:
        return ()
    low = high = None
    if min(len(earlier), len(later)) >= MIN_STEPS and earlier.min() > 0 and later.min() > 0:
        logs = np.log(earlier), np.log(later)
        error = math.sqrt(sum(float(each.var(ddof=1)) / len(each) for each in logs))
        quantile = _T[min(min(len(earlier), len(later)) - 1, len(_T)) - 1]
        middle = float(logs[1].mean() - logs[0].mean())
        low, high = math.expm1(middle - quantile * error), math.expm1(middle + quantile * error)
    return (Change(STEP, before, after, after / before - 1, low, high),)


def _parts(ranks: tuple[RankTime, ...], count: int) -> dict[str, float]:
    """Return each part of the GPU's time, averaged over ranks."""
    if not ranks:
        return {}
    found = [rank.as_dict() for rank in ranks]
    return {part.key: float(np.mean([row[part.key] for row in found])) / count for part in PARTS}


def _part_changes(before: dict[str, float], after: dict[str, float]) -> tuple[Change, ...]:
    whole = max(sum(before.values()), sum(after.values()))
    pairs = {part.key: (before.get(part.key, 0.0), after.get(part.key, 0.0)) for part in PARTS}
    return tuple(
        Change(key, a, b, b / a - 1 if a > 0 else None, None, None)
        for key, (a, b) in pairs.items() if max(a, b) > _NEGLIGIBLE * whole
    )  # fmt: skip


def _notes(
    sides: tuple[GpuTraces, GpuTraces], ranks: tuple[tuple[RankTime, ...], ...], groups: pd.DataFrame
) -> tuple[str, ...]:
    notes = []
    devices = [sorted({shorten(printable(rank.device), 60) for rank in found if rank.device}) for found in ranks]
    if devices[0] and devices[1] and devices[0] != devices[1]:
        notes.append(
            f"The GPUs differ: {', '.join(devices[0])} before, {', '.join(devices[1])} after. Their kernels have other names and "
            "times; compare operators and what kernels are for."
        )
    worlds = [_world(gpu) for gpu in sides]
    if worlds[0] != worlds[1]:
        notes.append(f"The jobs differ in size: {plural(worlds[0], 'rank')} before, {worlds[1]} after.")
    products = groups[np.array([str(name).startswith("matrix products") for name in groups["group"]], np.bool_)]
    with_cores = products[products["group"] == "matrix products, tensor cores"]
    shares = [
        float(with_cores[key].sum() / products[key].sum()) if products[key].sum() else None
        for key in ("us_before", "us_after")
    ]  # fmt: skip
    if shares[0] is not None and shares[1] is not None and abs(shares[0] - shares[1]) > MARGIN:
        notes.append(
            f"Tensor cores run {percent(shares[0])} of the matrix products' time before, {percent(shares[1])} after."
        )
    return tuple(notes)


def _world(gpu: GpuTraces) -> int:
    """Return the ranks of the job, which may be more than were recorded."""
    infos = [trace.properties.get("distributedInfo") for trace in gpu.ranks.values()]
    named = [info.get("world_size") for info in infos if isinstance(info, dict)]
    return max([len(gpu.ranks), *(size for size in named if isinstance(size, int))])


def _sentence(changes: tuple[Change, ...], groups: pd.DataFrame, unit: str) -> str:
    step = next((change for change in changes if change.part == STEP), None)
    if step is None or step.change is None:
        return "The traces do not mark steps in both recordings, so counts and times of whole recordings are compared."
    if step.low is None:
        return (
            f"Too few marked steps to separate a change from variation; the mean step takes {duration(step.before / 1e6)} before, "
            f"{duration(step.after / 1e6)} after."
        )
    if not step.is_clear:
        return (
            "No significant difference: the steps differ by no more than they vary "
            f"({duration(step.before / 1e6)} before, {duration(step.after / 1e6)} after)."
        )
    slower = step.change > 0
    moved = [row for row in groups.to_dict("records") if (float(row["difference_us"]) > 0) == slower]
    why = [f"{row['group']} ({_signed_time(float(row['difference_us']))})" for row in moved[:2]]
    cause = f"; on the GPU mostly {' and '.join(why)} a {unit}" if why else ""
    return f"Steps {step.sentence}{cause}."


def _signed_time(us: float) -> str:
    return f"{'+' if us > 0 else '-'}{duration(abs(us) / 1e6)}"


def terminal_trace_comparison(found: TraceComparison) -> str:
    lines = [found.sentence, *found.notes]
    for moment, name, steps, verdict in zip(
        ("before:", "after: "), (found.before, found.after), found.steps, found.verdicts, strict=True
    ):
        lines.append(f"  {moment} {shorten(printable(name), 70)} ({plural(steps, 'step')} marked, {verdict})")
    for table in tables(found, _IN_TERMINAL, 46):
        lines += _aligned(table)
    return "\n".join(lines)


def _aligned(table: PageTable) -> list[str]:
    if not table.rows:
        return []
    rows = [table.head, *table.rows]
    widths = [max(len(printable(row[at])) for row in rows) for at in range(len(table.head))]
    lines = [""]
    for row in rows:
        cells = [
            printable(row[0]).ljust(widths[0]),
            *(printable(cell).rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return [*lines, f"  … and {table.more:,} more"] if table.more else lines


def tables(found: TraceComparison, most: int = _SHOWN, longest: int = 100) -> tuple[PageTable, ...]:
    """Return the tables of a comparison: parts of the time, purposes of kernels, operators, kernels.

    Args:
        found: the comparison.
        most: rows of the last two.
        longest: characters of a name.
    """
    labels = {part.key: part.label for part in PARTS} | {STEP: "Step"}
    a, times = f"a {found.unit}", ("Before", "After", "Change")
    parts = tuple((labels[change.part], *_times(change.before, change.after)) for change in found.changes)
    whole = max((max(change.before, change.after) for change in found.changes), default=0.0)
    groups = tuple(
        (str(row["group"]), *_times(row["us_before"], row["us_after"])) for row in found.groups.to_dict("records")
        if max(row["us_before"], row["us_after"]) > _NEGLIGIBLE * whole
    )  # fmt: skip
    return (
        PageTable((f"Time {a}", *times), parts), PageTable((f"Kernels by purpose, {a}", *times), groups),
        _table(found.operators, f"Operator, {a}", most, longest), _table(found.kernels, f"Kernel, {a}", most, longest),
    )  # fmt: skip


def _table(frame: pd.DataFrame, title: str, most: int, longest: int) -> PageTable:
    changed = frame[frame["change"] != SAME]
    kind = "us" if frame[["us_before", "us_after"]].to_numpy().any() else "host_us"
    rows = tuple(
        (
            shorten(str(row["name"]), longest), str(row["change"]), decimal(row["count_before"]), decimal(row["count_after"]),
            *_times(row[f"{kind}_before"], row[f"{kind}_after"]),
        )
        for row in changed.head(most).to_dict("records")
    )  # fmt: skip
    clock = "GPU time" if kind == "us" else "Host time"
    head = (title, "What", "Count before", "after", f"{clock} before", "after", "Change")
    return PageTable(head, rows, max(len(changed) - most, 0))


def _times(before: float, after: float) -> tuple[str, str, str]:
    change = ""
    if before and after:
        change = f"{100 * (after / before - 1):+.0f} %" if after < _FACTOR_FROM * before else f"x {after / before:.3g}"
    first, second = (duration(us / 1e6) if us else "-" for us in (before, after))
    return first, second, change


def summarize_trace_comparison(found: TraceComparison) -> Summary:
    """Return the comparison for `to_markdown`."""
    runs = runs_of((found.before, found.after), found.verdicts, found.steps)
    shown = tables(found, _IN_TERMINAL)
    return Summary(found.sentence, found.notes, runs, tuple((table.head, table.rows) for table in shown))


def render_trace_comparison(found: TraceComparison) -> str:
    slower = found.step is not None and found.step.is_clear and (found.step.change or 0) > 0
    return render_page(
        "compare.html", title="Comparison - sm-profiler", found=found, lines=found.notes, rows=(),
        tables=tables(found), method="counts and times of a step (of a recording if no steps are marked), averaged over ranks.",
        mood="issue" if slower else "healthy" if found.step is not None else "open",
    )  # fmt: skip
