"""Flame graphs of the sampled stacks, one a phase, as inline SVG; and the same stacks as a speedscope file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from sm_profiler._version import __version__
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Finding, Location
from sm_profiler.formats.event_names import CELL
from sm_profiler.formatting import clean, duration, percent, plural, shorten
from sm_profiler.metrics import parts
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.printable import cut
from sm_profiler.render.charts import element

MAX_GRAPHS = 8
MAX_FRAMES = 150  # of a graph
MAX_DEPTH = 24
MIN_PHASE = 0.01  # of all samples' time
MIN_WIDTH = 0.004  # of a graph; a narrower frame cannot be seen
MAX_ROWS = 12  # of a table
MAX_SOURCE = 40  # characters of a cell's line in its name
ROW = 20
SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

INSIDE = "inside compiled"
_TITLES = {
    "start": "Before the first step", "first_steps": "In the slow first steps", "worker": "In the loader's workers", "end": "After the last step",
    INSIDE: "Inside the compiled functions, in a detailed window", "gc": "Lines that cause garbage collections", "outside": "Outside the phases, and between them",
}  # fmt: skip
_ORDER = (
    "start", "first_steps", "wait", "worker", "forward", "backward", "optimizer", "compiled", "outside", "evaluation",
)  # fmt: skip


@attrs.define(eq=False)
class FlameNode:
    """A frame with the frames that it calls."""

    place: Place | None
    name: str
    seconds: float = 0.0
    calls: dict[Any, FlameNode] = attrs.field(factory=dict)

    def called(self, key: Any, place: Place | None, name: str) -> FlameNode:
        return self.calls.setdefault(key, FlameNode(place, name))


@attrs.frozen
class Graph:
    """The flame graph of one phase.

    Attributes:
        title: its name on the page.
        seconds: time of its samples.
        drawing: the SVG.
        rows: line, function, source and share of its most expensive lines.
        left_out: what was too small to draw, in a sentence; or "".
    """

    phase: str
    title: str
    seconds: float
    drawing: Markup
    rows: tuple[tuple[str, ...], ...]
    left_out: str


def short_file(file: str) -> str:
    """Return the end of a path that identifies a file to its author."""
    pieces = file.replace("\\", "/").split("/")
    return shorten("/".join(pieces[-3:]) if len(pieces) > 4 - bool(pieces[0]) else file, 60)  # a file and two folders


def at_line(location: Location | Place) -> str:
    """Return a place as `train.py:83`, or as `cell 5: "loss.backward()"`."""
    source = getattr(location, "source", "")
    if location.file.startswith(CELL) and source:
        return f'{short_file(location.file)}: "{cut(clean(source), MAX_SOURCE)}"'
    return f"{short_file(location.file)}:{location.line}"


def part_of(finding: Finding, location: Location) -> str:
    """Return what a line has to do with a finding: `41 % of the lost time`."""
    if finding.kind is Class.MEMORY_GROWTH:
        return "adds to what grows"
    if finding.kind is Class.HANG:
        return "waits here"
    if finding.kind is Class.PADDING_WASTE:
        return "makes the batches"
    if location.share <= 0:
        return "defined here"
    of = {Class.INCONCLUSIVE: "time before the first step", Class.BALANCED: "time outside the phases"}
    seen = f", in {plural(location.samples, 'sample')}" if location.samples else ""
    return f"{percent(location.share)} of the {of.get(finding.kind, 'lost time')}{seen}"


def graphs(samples: Samples, inside: Samples | None = None) -> list[Graph]:
    """Return the graphs of the phases that take time, in the order of a step, and of what compiled functions do."""
    by_phase: dict[str, list[Sampled]] = {}
    for stack in samples.stacks:
        by_phase.setdefault(stack.part, []).append(stack)
    whole = sum(stack.seconds for stack in samples.stacks)
    sums = {phase: sum(stack.seconds for stack in stacks) for phase, stacks in by_phase.items()}
    chosen = sorted((phase for phase in sums if sums[phase] > MIN_PHASE * whole), key=lambda phase: -sums[phase])
    chosen = sorted(chosen[:MAX_GRAPHS], key=lambda phase: (_ORDER.index(phase) if phase in _ORDER else 99, phase))
    found = [_graph(phase, by_phase[phase], samples) for phase in chosen]
    return [*found, _graph(INSIDE, inside.stacks, inside)] if inside and inside.stacks else found


def _graph(phase: str, stacks: Sequence[Sampled], samples: Samples) -> Graph:
    root = tree(stacks)
    drawn = list(_layout(root))[:MAX_FRAMES]
    depth = max((part[1] for part in drawn), default=0) + 1
    title = _title(phase)
    label = f"{title}: flame graph of {duration(root.seconds)}, summed over processes"
    frames = [_frame(node, level, start, root.seconds) for node, level, start in drawn]
    drawing = element(
        "svg", *frames, class_="flame", width="100%", height=depth * ROW, role="group", aria_label=label
    )  # fmt: skip
    missing = 1.0 - sum(node.seconds for node, level, _ in drawn if not level) / root.seconds if root.seconds else 0.0
    count = _count(root) - len(drawn)
    note = (
        f"{plural(count, 'frame')} narrower than {percent(MIN_WIDTH)} or beyond the first {MAX_FRAMES} {'is' if count == 1 else 'are'} not drawn"
        if count
        else ""
    )
    if missing > MIN_WIDTH:
        note += f"; {percent(missing)} of the time belongs to no line"
    return Graph(phase, title, root.seconds, drawing, tuple(_rows(stacks, samples)), note and f"{note}.")


def _title(phase: str) -> str:
    known = {part.key: part.label for part in parts.PARTS}
    return _TITLES.get(phase) or known.get(phase) or shorten(phase, 40)


def tree(stacks: Iterable[Sampled]) -> FlameNode:
    """Merge stacks from the outermost frame on; the innermost function of a library is the last."""
    root = FlameNode(None, "")
    for stack in stacks:
        root.seconds += stack.seconds
        node = root
        for place in stack.places[:MAX_DEPTH]:
            node = node.called(place, place, place.function)
            node.seconds += stack.seconds
        if stack.leaf and stack.places:
            node = node.called(stack.leaf, None, stack.leaf)
            node.seconds += stack.seconds
    return root


def _count(node: FlameNode) -> int:
    return sum(1 + _count(inner) for inner in node.calls.values())


def _layout(root: FlameNode) -> Iterator[tuple[FlameNode, int, float]]:
    """Yield frames that can be seen with their level and start, level by level."""
    level, row = 0, [(root, 0.0)]
    while row:
        below = []
        for node, start in row:
            for inner in sorted(node.calls.values(), key=lambda item: (-item.seconds, item.name)):
                if inner.seconds >= MIN_WIDTH * root.seconds:
                    yield inner, level, start
                    below.append((inner, start))
                start += inner.seconds  # the next frame's start
        level, row = level + 1, below


def _frame(node: FlameNode, level: int, start: float, whole: float) -> Markup:
    left, width = start / whole, node.seconds / whole
    where = f"{at_line(node.place)} " if node.place else ""
    name = f"{where}{shorten(node.name, 80)}"
    return element(
        "svg",
        element("title", f"{name}: {duration(node.seconds)}, {percent(width)}"),
        element("rect", width="100%", height=ROW - 1, class_="user" if node.place else "library"),
        element("text", name, x=4, y=14),
        x=f"{100 * left:.3f}%", y=level * ROW, width=f"{100 * width:.3f}%", height=ROW, class_="frame",
        data_from=f"{left:.6f}", data_span=f"{width:.6f}",
    )  # fmt: skip


def _rows(stacks: Iterable[Sampled], samples: Samples) -> Iterator[tuple[str, ...]]:
    sums: dict[Place, float] = {}
    whole = 0.0
    for stack in stacks:
        whole += stack.seconds
        if stack.places:
            sums[stack.places[-1]] = sums.get(stack.places[-1], 0.0) + stack.seconds
    for place, seconds in sorted(sums.items(), key=lambda item: (-item[1], item[0].file, item[0].line))[:MAX_ROWS]:
        source = cut(clean(samples.source(place)), 100)
        yield at_line(place), shorten(place.function, 60), source, duration(seconds), percent(seconds / whole)


def to_speedscope(samples: Samples, name: str) -> dict[str, Any]:
    """Return the stacks as a file for speedscope.app: one profile per process and phase."""
    frames: dict[tuple[str, str, int], int] = {}
    by_profile: dict[tuple[str, str], list[Sampled]] = {}
    for stack in samples.stacks:
        by_profile.setdefault((stack.process, stack.part), []).append(stack)
    profiles = []
    for (process, phase), stacks in sorted(by_profile.items()):
        rows, weights = [], []
        for item in stacks:
            keys = [(place.function, place.file, place.line) for place in item.places]
            keys += [(item.leaf, "", 0)] if item.leaf else []
            rows.append([frames.setdefault(key, len(frames)) for key in keys])
            weights.append(item.seconds)
        profiles.append(
            {
                "type": "sampled", "name": f"{process} {_title(phase)}", "unit": "seconds", "startValue": 0,
                "endValue": sum(weights), "samples": rows, "weights": weights,
            }
        )  # fmt: skip
    return {
        "$schema": SPEEDSCOPE_SCHEMA, "name": name, "exporter": f"sm-profiler {__version__}", "activeProfileIndex": 0,
        "shared": {
            "frames": [
                {"name": f"{function} ({file}:{line})", "file": file, "line": line} if file else {"name": function}
                for function, file, line in frames
            ]
        },
        "profiles": profiles,
    }  # fmt: skip
