"""The first screen of the page: the ledger of all ranks, verdict card, charts of the evidence, job at a glance; the heat map."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain, groupby
from typing import Any

import attrs
import numpy as np
from markupsafe import Markup

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.ledger import UNKNOWN, Totals
from sm_profiler.diagnosis.model import Finding, Report
from sm_profiler.diagnosis.profile.case import mean_or_none
from sm_profiler.diagnosis.profile.ledger import PHASE
from sm_profiler.diagnosis.profile.lines import MODULE
from sm_profiler.formats.columns import Floats
from sm_profiler.formats.process_end import CRASHED, INTERRUPTED, KILLED, OUT_OF_MEMORY, RUNNING, STOPPED
from sm_profiler.formatting import clean, duration, in_unit, is_library, percent, percent_of_cost, plural, shorten, size
from sm_profiler.metrics.hang import Hang
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.metrics.startup import billed_time, job_parts, repeated_work, unstored_attempts
from sm_profiler.metrics.system_fold import Use
from sm_profiler.printable import cut, printable
from sm_profiler.render import charts, gpu_section
from sm_profiler.render.blocks import Picture, Section, cut_table
from sm_profiler.render.charts import ChartPart, drawing, element, text
from sm_profiler.render.flame import at_line, part_of, short_file
from sm_profiler.render.words import gain_of_finding

MAX_ACTIVITIES = 8  # columns of the table, parts of the bar; the others are summed
MIN_NAMED = 0.0005  # smaller shares are drawn but not in the legend
MAX_NAME = 40
# Activity → key of `COLOURS`, and its letter in a terminal without colours; in the order of a step, as bars show them.
_SHOWN = {
    "waiting for data": ("amber", "W"), "data wait": ("amber", "W"), "making batches": ("bronze", "M"),
    "copies to the device": ("navy", "D"), "forward": ("blue", "F"), "backward": ("sky", "B"), "optimizer": ("teal", "O"),
    "compiled": ("blue", "C"), "compute": ("blue", "C"), "waiting for results": ("pine", "R"),
    "elementwise kernels": ("sky", "V"), "products without tensor cores": ("mint", "P"), "the largest other kernel": ("pine", "1"),
    "communication": ("teal", "X"), "waiting for other ranks": ("slate", "N"), "copies": ("navy", "D"),
}  # fmt: skip
_SHOWN_LAST = {
    "logging": ("sand", "L"), "callbacks": ("olive", "K"), "saving": ("plum", "S"), "compiling": ("steel", "J"),
    "compiling again": ("steel", "A"), "garbage collection": ("brick", "G"), "evaluation": ("violet", "E"),
    "idle after a wait for the GPU": ("rose", "S"), "idle before a late launch": ("steel", "L"),
    "idle while its memory is freed and allocated": ("brick", "A"),
    "idle in a few long gaps": ("sand", "G"), "idle with work queued": ("grey", "q"),
    "other code": ("rose", "x"), "step": ("grey", "."), "unseen": ("pale", "?"),
}  # fmt: skip
_DECLARED = (("moss", "Y"), ("mint", "Z"), ("stone", "V"), ("sand", "U"), ("olive", "T"))  # in turn, for other names
_ON_DEVICE = frozenset({"forward", "backward", "optimizer"})

MAX_BARS = 12  # bars of single ranks or GPUs
MAX_LINE_POINTS = 500
MAX_OPEN_STACKS = 4  # the others are folded
MAX_STACKS = 64
ENDINGS = {  # state of the job → its words below the duration
    RUNNING: "still running", CRASHED: "failed", KILLED: "killed", OUT_OF_MEMORY: "out of memory", STOPPED: "stopped",
    INTERRUPTED: "interrupted",
}  # fmt: skip
LEVELS = 5  # of 20 % each
MAX_LINES = 64  # of a picture; devices of a node share lines beyond that
LEFT, WIDTH, GAP = 110.0, 890.0, 4.0
LINE_HEIGHTS = (6.0, 16.0)
Row = tuple[str, str]  # node and name of a device


@attrs.frozen
class Share:
    """An activity's share of the time of all ranks.

    Attributes:
        name: the activity, or the name of the script's phase, printable.
        share: share of the time, 0 to 1.
        seconds: seconds a step.
        colour: a key of `COLOURS`.
        letter: its letter in a terminal without colours.
    """

    name: str
    share: float
    seconds: float
    colour: str
    letter: str

    @property
    def is_named(self) -> bool:
        return self.share >= MIN_NAMED

    @property
    def label(self) -> str:
        """The name at the start of an entry."""
        return self.name[:1].upper() + self.name[1:]


def shares(totals: Totals | None, *, on_device: bool = False) -> list[Share]:
    """Return the activities of all ranks in the order of a step; of many, the smallest are summed."""
    if totals is None:
        return []
    steps = sum(rank.steps for rank in totals.ranks) or 1
    names, count = totals.activities[:MAX_ACTIVITIES], len(totals.activities)
    declared = [name for name in names if name not in _SHOWN and name not in _SHOWN_LAST]
    shown = {**_SHOWN, **{name: _DECLARED[at % len(_DECLARED)] for at, name in enumerate(declared)}, **_SHOWN_LAST}

    def share(name: str, look: tuple[str, str], *activities: str) -> Share:
        part = totals.share(*activities)
        return Share(name, part, part * totals.duration / steps, *look)

    found = [
        share(_name(name) + (" (GPU)" if on_device and name in _ON_DEVICE else ""), look, name)
        for name, look in shown.items()
        if name in names
    ]
    if count > len(names):
        found.append(share(f"{count - len(names)} others", ("grey", "-"), *totals.activities[MAX_ACTIVITIES:]))
    return found


def _name(activity: str) -> str:
    return shorten(printable(activity.removeprefix(PHASE)), MAX_NAME)


def ledger_picture(totals: Totals, title: str, *, on_device: bool = False) -> Picture:
    """Draw the activities of all ranks as a bar."""
    found = shares(totals, on_device=on_device)
    drawn = [ChartPart(each.label, each.share, each.colour, f"{duration(each.seconds)} per step") for each in found]
    legend = tuple(
        (each.label, each.colour, f"{percent(each.share)}|{duration(each.seconds)} per step")
        for each in found
        if each.is_named
    )
    return Picture(charts.bar(drawn, title), title, legend, "bar")


def ledger_tiles(totals: Totals) -> list[tuple[str, str, str]]:
    """Return the tiles of a report on nothing but a ledger: label, value, note."""
    steps = max((rank.steps for rank in totals.ranks), default=0)
    return [
        ("Ranks", f"{len(totals.ranks):,}", f"up to {steps:,} steps each"),
        ("Recorded", duration(totals.duration), "of all ranks together"),
        ("Known", percent(totals.coverage), "of the time belongs to an activity"),
        ("Computing", percent(totals.useful), "of the time"),
    ]


def ledger_section(totals: Totals, left_out: str | None = None) -> Section:
    """Return the section of the page: a row a rank, a column an activity, how much is known, and what is left out."""
    names = totals.activities[:MAX_ACTIVITIES]
    rest = totals.activities[MAX_ACTIVITIES:]
    head = (
        "Rank",
        "Steps",
        "Seconds",
        *(label[:1].upper() + label[1:] for label in map(_name, names)),
        *(["Other"] if rest else []),
    )
    rows = []
    for rank in totals.ranks:
        spent = [rank.seconds.get(name, 0.0) for name in names] + (
            [sum(rank.seconds.get(name, 0.0) for name in rest)] if rest else []
        )
        rows.append(
            (
                shorten(rank.name, 40),
                f"{rank.steps:,}",
                duration(sum(rank.seconds.values())),
                *(duration(share) if share else "" for share in spent),
            )
        )
    unknown = [name for name in names if name in UNKNOWN]
    sentences = [
        "Every second of every rank belongs to exactly one activity; each row adds up to the rank's time.",
        f"Known: {percent(totals.coverage)} of the time. report.json has the seconds, under ledger.",
    ]
    if left_out:
        sentences.append(left_out)
    if unknown:
        sentences.append(
            "Unseen is time for which nothing was recorded; a step is one of which only the length is known."
        )
    return Section("ledger", "Where every second went", tuple(sentences), (cut_table(head, rows),))


def finding_view(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.kind.value,
        "name": finding.label,
        "headline": finding.headline,
        "next": finding.next_step,
        "gain": gain_of_finding(finding),
        "confidence": finding.confidence,
        "reason": finding.doubt,
        "healthy": finding.kind.is_healthy and not finding.is_open,
        "open": finding.is_open,
        "where": [
            {
                "place": at_line(location),
                "function": shorten(location.function, 60) if location.function != MODULE else "",
                "rank": shorten(location.rank, 40),
                "phase": shorten(location.phase, 40),
                "part": part_of(finding, location),
                "source": cut(clean(location.source), 160),
            }
            for location in finding.where
        ],
        "evidence": [
            {
                "metric": fact.metric,
                "value": in_unit(fact.value, fact.unit),
                "threshold": fact.compared,
                "where": shorten(fact.where, 40),
            }
            for fact in finding.evidence
        ],
    }


def stacks_view(hang: Hang | None) -> dict[str, Any]:
    """Return the stacks of a training that stopped as text; empty if it went on."""
    if hang is None:
        return {}
    every = hang.stacks()
    shown = [
        {
            "rank": shorten(stack.rank, 40),
            "thread": shorten(stack.thread, 60),
            "training": stack.training,
            "frames": [
                {"text": f"{short_file(file)}:{line} in {shorten(function, 80)}", "own": not is_library(file)}
                for file, line, function in stack.frames
            ],
        }
        for stack in every[:MAX_STACKS]
    ]
    alone = [process.name for process in hang.stopped if len(process.stacks) == 1]
    children = [
        f"{shorten(child['name'], 40)} ({child['pid']}) of {shorten(child['rank'], 40)}: state {child['state'][:1] or '?'}"
        + (f", waits in {shorten(child['waits_in'], 40)}" if child["waits_in"].strip("0") else "")
        for child in hang.children[:MAX_STACKS]
    ]
    return {
        "open": shown[:MAX_OPEN_STACKS],
        "more": shown[MAX_OPEN_STACKS:],
        "left_out": max(len(every) - MAX_STACKS, 0),
        "alone": f"No other Python thread of the script is alive in {', '.join(alone[:MAX_OPEN_STACKS])}."
        if alone
        else "",
        "children": children,
    }


def pictures(report: Report) -> list[Picture]:
    """Draw the evidence: where the loop's time goes, then what belongs to the class of the verdict.

    A slow start is no part of the loop, so the bar of the whole job is drawn for it, even if another finding leads.
    """
    metrics, kind = report.metrics, report.verdict.kind
    if report.ledger is None:
        return _usage(metrics)
    title = "Where the training loop's time goes" if metrics.loop else "Where the time of all ranks goes"
    loop = ledger_picture(report.ledger, title, on_device=metrics.on_device)
    if not metrics.loop:
        return [loop]
    draw = _EVIDENCE.get(kind)
    extra = draw(report) if draw else []
    if kind is Class.INITIALIZATION_BOUND:
        return [*extra, loop]
    slow_start = any(finding.kind is Class.INITIALIZATION_BOUND for finding in report.verdict.also)
    return [loop, *extra, *(_job_bar(report) if slow_start else [])]


def _rank_bars(report: Report) -> list[Picture]:
    drawn = []
    for rank in report.ledger.ranks[:MAX_BARS] if report.ledger else ():
        bar = ledger_picture(Totals((rank,)), f"Where the time of {rank.name} goes")
        drawn.append(Picture(bar.drawing, shorten(rank.name, 40), (), "bar thin"))
    return drawn


def _step_strip(report: Report) -> list[Picture]:
    """Draw the steps in order; of a long job with a period, a stretch in which single steps are visible."""
    metrics = report.metrics
    rank = max(metrics.ranks, key=lambda item: item.stall_share)
    lengths, long = rank.iterations.length, rank.stalls.long
    first, last = 0, len(lengths)
    if rank.stalls.period and last > charts.MAX_STRIP_BARS:
        first = (last - charts.MAX_STRIP_BARS) // 2
        last = first + charts.MAX_STRIP_BARS
    shown = f"Steps {first:,} to {last:,} of {len(lengths):,}" if first else "Every step"
    shown = f"A sample of {len(lengths):,} of {rank.train_steps:,} steps" if rank.judged is not None else shown
    longest = duration(float(lengths[first:last].max()))
    title = f"{shown} in order, long ones marked ({shorten(rank.name, 40)}, up to {longest})"
    return [
        Picture(charts.step_strip(lengths[first:last].tolist(), long[first:last].tolist(), title), title, (), "strip")
    ]


def _job_bar(report: Report) -> list[Picture]:
    metrics = report.metrics
    if not metrics.loop:
        return []
    drawn = [ChartPart(part.label, part.seconds, part.colour) for part in job_parts(metrics)]
    whole = sum(part.value for part in drawn) or 1.0
    legend = tuple((part.name, part.colour, f"{percent(part.value / whole)}|{duration(part.value)}") for part in drawn)
    title = "Where the job's time goes"
    return [Picture(charts.bar(drawn, title), title, legend, "bar")]


def _memory(report: Report) -> list[Picture]:
    """Draw the memory of the largest process; else of the first GPU or node with samples."""
    metrics = report.metrics
    name, (seconds, values) = max(
        metrics.memory.items(), key=lambda item: float(max(item[1][1], default=0.0)), default=("", ((), ()))
    )
    if len(seconds) > 1:
        every = max(len(seconds) // MAX_LINE_POINTS, 1)
        label = f"Resident memory of {shorten(name, 40)} (up to {size(float(max(values)))})"
        return [Picture(charts.line(list(seconds[::every]), list(values[::every]), label), label, (), "strip")]
    for metric, title in (("gpu_memory", "GPU memory over time"), ("memory", "Memory over time")):
        for data in metrics.system.of(metric).values():
            rows = data.count > 0
            if rows.sum() > 1:
                drawing = charts.line(data.seconds[rows].tolist(), data.mean[rows].tolist(), title)
                return [Picture(drawing, title, (), "strip")]
    return []


def _usage(metrics: JobMetrics) -> list[Picture]:
    """Draw the mean use of each resource, for a job without steps."""
    drawn = []
    for metric, title, colour in (("gpu", "GPU", "blue"), ("cpu", "CPU", "teal"), ("memory", "Memory", "violet")):
        mean = metrics.mean_of(metric)
        if mean is not None:
            label = f"{title}: {mean:.0f} % used on average"
            bar = charts.bar([ChartPart("used", mean, colour), ChartPart("free", 100 - mean, "pale")], label)
            drawn.append(Picture(bar, label, (), "bar thin"))
    return drawn


def _gpus(report: Report) -> list[Picture]:
    """Draw how busy each GPU is; of many, the extremes."""
    metrics = report.metrics
    rows = [(f"{gpu.node} {gpu.name}", gpu.mean) for gpu in metrics.gpus if math.isfinite(gpu.mean)]
    if len(rows) > MAX_BARS:
        means = [mean for _, mean in rows]
        rows = [("most-utilized GPU", max(means)), ("least-utilized GPU", min(means))]
    drawn = []
    for name, mean in rows:
        bar = [ChartPart("busy", mean, "blue"), ChartPart("idle", 100 - mean, "pale")]
        label = f"{shorten(name, 30)}: {mean:.0f} % busy"
        drawn.append(Picture(charts.bar(bar, f"{name}: {mean:.0f} % busy"), label, (), "bar thin"))
    return drawn


# Charts next to the loop's bar.
_EVIDENCE: dict[Class, Callable[[Report], list[Picture]]] = {
    Class.STRAGGLER: _rank_bars, Class.PERIODIC_STALL: _step_strip, Class.STEP_OUTLIERS: _step_strip,
    Class.INITIALIZATION_BOUND: _job_bar, Class.MEMORY_GROWTH: _memory, Class.INPUT_BOUND: _gpus,
    Class.UNBALANCED_GPUS: _gpus, Class.HOST_BOUND: _gpus, Class.COMPUTE_BOUND: _gpus,
}  # fmt: skip


def glance(report: Report) -> list[tuple[str, str, str]]:  # one branch for each tile
    """Return the tiles: label, value, note."""
    metrics = report.metrics
    if not metrics.ranks and report.gpu_traces:
        return gpu_section.tiles(report.gpu_traces)
    if not metrics.ranks and report.ledger:
        return ledger_tiles(report.ledger)
    length = duration(metrics.duration) if metrics.duration else "unknown"
    tiles = [("Duration", length, ENDINGS.get(metrics.ending.state, ""))]
    speed = metrics.steps_per_second
    if speed:
        first = metrics.ranks[0]
        steps, ends = int(first.train.sum()), {one.name: one for one in metrics.ending.ranks if one.counted}
        steps -= first.name in ends and ends[first.name].step == steps - 1  # the step in which it stopped is none
        note = f"{steps:,} steps" + (f" on each of {len(metrics.ranks)} ranks" if len(metrics.ranks) > 1 else "")
        tiles.append(("Training speed", f"{speed:.3g} steps/s", note))
        if metrics.batch_size:
            samples = speed * metrics.batch_size * len(metrics.ranks)
            tiles.append(("Samples", f"{samples:,.0f} /s", f"{metrics.batch_size} per batch"))
    machines = plural(len(metrics.nodes), "node")
    if metrics.gpus:
        mean = mean_or_none([gpu.mean for gpu in metrics.gpus])
        value = f"{mean:.0f} %" if mean is not None else "unknown"
        tiles.append(("GPU use", value, f"{plural(len(metrics.gpus), 'GPU')}, {machines}"))
    cpu, memory = metrics.mean_of("cpu"), metrics.mean_of("memory")
    if cpu is not None:
        cores = plural(sum(metrics.system.cores.values()), "core")
        tiles.append(("CPU use", f"{cpu:.0f} %", cores if metrics.gpus else f"{cores}, {machines}"))
    if memory is not None:
        tiles.append(("Memory", f"{memory:.0f} %", "of the node" if len(metrics.nodes) == 1 else "of the nodes"))
    if metrics.ranks:
        count, downtime = metrics.interruptions
        repeated = repeated_work(metrics)
        notes = [f"{duration(downtime)} of downtime"] if downtime else []
        notes += [f"{plural(repeated.steps, 'step')} done again"] if repeated else []
        notes += [unstored] if (unstored := unstored_attempts(metrics)) else []
        notes += metrics.moves
        tiles.append(("Interruptions", str(count) if count else "none", ", ".join(notes)))
    billed = billed_time(metrics.description)
    if billed is not None:
        note = f"of {duration(billed.training_s)} of training" + (", spot" if billed.spot else "")
        tiles.append(("Billed", duration(billed.billable_s), note))
    recorded = metrics.overhead is not None and math.isfinite(metrics.overhead)
    note = "of the loop's time" + (", in a run that is too short to show more" if report.is_short_for_cost else "")
    if report.cost_of_windows is not None and not report.is_short_for_cost:
        note = f"{note}, {percent_of_cost(report.cost_of_windows)} for its windows"
    tiles.append(
        (
            "Profiling cost",
            percent_of_cost(metrics.overhead or 0.0) if recorded else "unknown",
            note if recorded else "not recorded by the hook",
        )
    )
    if report.cost:
        lost = f"about ${report.cost.lost_per_hour:.2f}/h"
        whole = f"${report.cost.lost_usd:.2f} in all, "
        rough = " at an estimated price" if report.cost.price_estimated else ""
        tiles.append(("Lost money", lost, f"{whole}estimate, {report.cost.instance_type}{rough}"))
    return tiles


@attrs.frozen(eq=False)
class MapLine:
    """A line of a map: the busiest core, or the idlest GPU, of some devices of a node."""

    node: str
    name: str
    values: Floats


def heat_section(use: Mapping[str, Use], start: float) -> Section | None:
    """Return the section, None without system metrics; `start` is the job's, seconds since the epoch."""
    pictures, sentences = [], []
    for kind, colour, singular in (("gpu", "blue", "GPU"), ("cpu", "teal", "core")):
        heat = use.get(kind, Use())
        rows = heat.ordered()
        means = heat.means(rows)
        if not np.isfinite(means).any():
            continue
        lines = lines_of(rows, means, busiest=kind == "cpu")
        each = -(-len(rows) // len(lines))
        sentences.append(sentence(rows, means, singular) + (" More devices are left out." if heat.is_cut else ""))
        caption = f"Use of {plural(len(rows), singular)} over time"
        if each > 1:
            caption += f"; a line shows the {'busiest core' if kind == 'cpu' else 'idlest GPU'} of up to {each}"
        pictures.append(Picture(draw(heat, lines, colour, caption, start), caption, legend(colour), "chart wide"))
    return Section("heat", "Cores and GPUs over time", tuple(sentences), pictures=tuple(pictures)) if pictures else None


def lines_of(rows: list[Row], means: Floats, *, busiest: bool) -> list[MapLine]:
    """Return at most MAX_LINES lines; none has devices of two nodes, unless there are more nodes than lines."""
    numbered = list(enumerate(rows))
    nodes = [list(group) for _, group in groupby(numbered, key=lambda pair: pair[1][0])]
    if len(nodes) > MAX_LINES:
        each = -(-len(nodes) // MAX_LINES)
        groups = [list(chain.from_iterable(nodes[at : at + each])) for at in range(0, len(nodes), each)]
    else:
        each = next(
            size for size in range(1, len(rows) + 1) if sum(-(-len(node) // size) for node in nodes) <= MAX_LINES
        )
        groups = [node[at : at + each] for node in nodes for at in range(0, len(node), each)]
    found = []
    for group in groups:
        first, last = group[0][1], group[-1][1]
        values = means[[number for number, _ in group]]
        filled = np.where(np.isfinite(values), values, -np.inf if busiest else np.inf)
        chosen = filled.max(axis=0) if busiest else filled.min(axis=0)
        name = first[1] if len(group) == 1 else f"{first[1]} to {last[1]}"
        node = first[0] if first[0] == last[0] else f"{first[0]} to {last[0]}"
        found.append(MapLine(node, name, np.where(np.isfinite(chosen), chosen, np.nan)))
    return found


def sentence(rows: list[Row], means: Floats, singular: str) -> str:
    """Return a sentence about a map: the mean, the most and the least busy device."""
    with np.errstate(invalid="ignore"):
        counts = np.isfinite(means).sum(axis=1)
        whole = np.where(counts > 0, np.nansum(means, axis=1) / np.maximum(counts, 1), np.nan)
    if len(rows) == 1:
        return f"The {singular} is {whole[0]:.0f} % busy on average."
    most, least = int(np.nanargmax(whole)), int(np.nanargmin(whole))
    several = len({row[0] for row in rows}) > 1

    def named(at: int) -> str:
        return f"{shorten(rows[at][1], 30)}{f' of {shorten(rows[at][0], 40)}' if several else ''}"

    return (
        f"{plural(len(rows), singular)} are {np.nanmean(whole):.0f} % busy on average: "
        f"{named(most)} most ({whole[most]:.0f} %), {named(least)} least ({whole[least]:.0f} %)."
    )


def legend(colour: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{20 * level} to {20 * level + 20} %", f"{colour} l{level}", "") for level in range(LEVELS))


def draw(heat: Use, lines: list[MapLine], colour: str, title: str, start: float) -> Markup:
    """Draw lines as runs of equal level, a path for each level: the size is bounded by lines and columns."""
    height = min(max(320.0 / len(lines), LINE_HEIGHTS[0]), LINE_HEIGHTS[1])
    columns = lines[0].values.shape[0]
    wide = WIDTH / columns
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    labels, top, node = [], 0.0, ""
    several = len({line.node for line in lines}) > 1
    for line in lines:
        if line.node != node:
            top += GAP if node else 0.0
            node = line.node
            if several:
                labels.append(text(LEFT - 8, top + 11, shorten(node, 16), anchor="end"))
        if not several and (height >= LINE_HEIGHTS[1] or line is lines[0] or line is lines[-1]):
            labels.append(text(LEFT - 8, top + min(height, 12.0), shorten(line.name, 16), anchor="end"))
        at = 0
        for level, run in groupby(levels(line.values)):
            length = len(list(run))
            if level >= 0:
                paths[level].append(f"M{LEFT + at * wide:.5g} {top + height / 2:.5g}h{length * wide:.4g}")
            at += length
        top += height
    drawn = [
        element("path", d="".join(path), class_=f"s-{colour} l{level}", stroke_width=height)
        for level, path in enumerate(paths)
        if path
    ]
    axis = charts.time_axis(LEFT, WIDTH, top + 16, heat.first * heat.width - start, columns * heat.width)
    return drawing(LEFT + WIDTH, top + 22, title, *drawn, *labels, *axis, kind="chart heat")


def levels(values: Floats) -> list[int]:
    whole = np.nan_to_num(values, nan=-1.0)
    return [int(level) for level in np.where(whole < 0, -1, np.minimum(whole // (100 / LEVELS), LEVELS - 1))]
