"""Use of each core and each GPU over time, as heat maps whose size does not depend on the job's length."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, groupby

import attrs
import numpy as np
from markupsafe import Markup

from sm_profiler.formats.columns import Floats
from sm_profiler.formatting import duration, plural, shorten
from sm_profiler.metrics.system_fold import Use
from sm_profiler.render.blocks import Picture, Section
from sm_profiler.render.charts import drawing, element, text

LEVELS = 5  # of 20 % each
MAX_LINES = 64  # of a picture; devices of a node share lines beyond that
LEFT, WIDTH, GAP = 110.0, 890.0, 4.0
LINE_HEIGHTS = (6.0, 16.0)
Row = tuple[str, str]  # node and name of a device


@attrs.frozen(eq=False)
class Line:
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


def lines_of(rows: list[Row], means: Floats, *, busiest: bool) -> list[Line]:
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
        found.append(Line(node, name, np.where(np.isfinite(chosen), chosen, np.nan)))
    return found


def sentence(rows: list[Row], means: Floats, singular: str) -> str:
    """Return a sentence about a map: the mean, the most and the least busy device."""
    with np.errstate(invalid="ignore"):
        counts = np.isfinite(means).sum(axis=1)
        whole = np.where(counts > 0, np.nansum(means, axis=1) / np.maximum(counts, 1), np.nan)
    if len(rows) == 1:
        return f"The {singular} is {whole[0]:.0f} % busy on average."
    most, least = int(np.nanargmax(whole)), int(np.nanargmin(whole))

    def named(at: int) -> str:
        return f"{shorten(rows[at][1], 30)} of {shorten(rows[at][0], 40)}"

    return (
        f"{plural(len(rows), singular)} are {np.nanmean(whole):.0f} % busy on average: "
        f"{named(most)} most ({whole[most]:.0f} %), {named(least)} least ({whole[least]:.0f} %)."
    )


def legend(colour: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{20 * level} to {20 * level + 20} %", f"{colour} l{level}", "") for level in range(LEVELS))


def draw(heat: Use, lines: list[Line], colour: str, title: str, start: float) -> Markup:
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
    begin, span = heat.first * heat.width - start, columns * heat.width
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "start" if not share else "end" if share == 1 else "middle"
        label = duration(max(begin + span * share, 0.0)) if begin + span * share >= 1 else "0"
        labels.append(text(LEFT + WIDTH * share, top + 16, label, anchor=anchor))
    return drawing(LEFT + WIDTH, top + 22, title, *drawn, *labels, kind="chart heat")


def levels(values: Floats) -> list[int]:
    """Return the level of each value, -1 if it is missing."""
    whole = np.nan_to_num(values, nan=-1.0)
    return [int(level) for level in np.where(whole < 0, -1, np.minimum(whole // (100 / LEVELS), LEVELS - 1))]
