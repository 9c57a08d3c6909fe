"""Timelines written many rows at once: the same bytes as one by one."""

import io
import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formatting import shorten
from sm_profiler.timeline import writer as timeline_writer
from sm_profiler.timeline.trace_json import JsonTrace, _numbers, decimals, distinct, thousandths
from sm_profiler.timeline.writer import COUNTERS, SERIES, TimelineWriter
from tests.support.reports import events, system

NAMES = ["a", 'x"\\\n\u0000</script>\ud800', "y" * 400, "ünï→😀", "", "?" * 300, "Step:ModeKeys.TRAIN"]
PHASES = [
    "Forward", "cpu_functions", "GPUFunctions-dev:0", "DataLoaderWorker", "DataLoaderIterWorker", "", "Step:ModeKeys.TRAIN",
    "sm_profiler/gc", "\ud800\u202e" * 80,
]  # fmt: skip
ORIGIN_US = 1_700_000_010 * 1e6


class OneByOne:
    """Takes what a trace takes, and gives it each slice and value alone."""

    def __init__(self, trace):
        self._trace = trace

    def __getattr__(self, name):
        return getattr(self._trace, name)

    def slices(self, rows):
        for row in range(len(rows)):
            for announce in rows.named.get(row, ()):
                announce()
            step = int(rows.step[row])
            args = {"step": step} if step >= 0 else {}
            self._trace.slice(*rows.kind_at(row), int(rows.start[row]), int(rows.length[row]), args, 0)

    def counters(self, rows):
        edges = [*np.flatnonzero(rows.first).tolist(), len(rows)]
        for begin, end in pairwise(edges):
            for announce in rows.named.get(begin, ()):
                announce()
            values = {rows.series.values[rows.series.codes[row]]: float(rows.value[row]) for row in range(begin, end)}
            name = rows.name.values[rows.name.codes[begin]]
            self._trace.counter(int(rows.process[begin]), name, int(rows.at[begin]), values)


class PlainWriter(TimelineWriter):
    """Places slices one by one, as the lanes are described."""

    def add_events(self, events):
        finite = np.flatnonzero(np.isfinite(events.start_us) & np.isfinite(events.duration_us)).tolist()
        order = sorted(finite, key=lambda row: (events.start_us[row], -events.duration_us[row]))
        for row in order:
            begin = (float(events.start_us[row]) - self.origin_us) * 1e3
            length = float(events.duration_us[row]) * 1e3
            if not np.isfinite(begin) or not np.isfinite(length):
                continue
            phase = events.phase.values[events.phase.codes[row]]
            name = shorten(events.name.values[events.name.codes[row]], 300) or "?"
            lane = timeline_writer._lane_name(
                timeline_writer.clean(phase), int(events.tid[row]), int(events.worker_id[row])
            )
            step = int(events.step[row])
            self.add_slice(
                events.node.values[events.node.codes[row]], lane, name, shorten(phase, 100) or "event", round(begin),
                max(round(length), 0), {"step": step} if step >= 0 else {},
            )  # fmt: skip

    def add_system(self, system):
        found = {}
        for row in range(len(system)):
            text = {
                key: getattr(system, key).values[getattr(system, key).codes[row]]
                for key in ("node", "dimension", "name")
            }
            title = COUNTERS.get(text["dimension"]) or COUNTERS.get(text["name"])
            value, seconds = float(system.value[row]), float(system.timestamp[row])
            at = (seconds * 1e6 - self.origin_us) * 1e3
            if not title or text["dimension"] == "Platform" or not np.isfinite(value) or not np.isfinite(at):
                continue
            series = SERIES.get(text["name"], shorten(text["name"], 60) or "value")
            found.setdefault((text["node"], title, seconds), {})[series] = value
        for (node, title, seconds), values in sorted(found.items(), key=lambda item: item[0][2]):
            self._lanes.process(f"{node} system", order=100_000)
            self.add_counter(f"{node} system", title, round((seconds * 1e6 - self.origin_us) * 1e3), values)


def written(batches, plain=False):
    out = io.BytesIO()
    trace = JsonTrace(out)
    writer = PlainWriter(OneByOne(trace), ORIGIN_US) if plain else TimelineWriter(trace, ORIGIN_US)
    for batch in batches:
        (writer.add_events if hasattr(batch, "phase") else writer.add_system)(batch)
    done = writer.finish([], "here")
    return out.getvalue(), done


def check(batches):
    fast, slow = written(batches), written(batches, plain=True)
    assert fast == slow
    return fast[1]


TIMES = st.one_of(
    st.integers(0, 40).map(float), st.floats(0, 1e3).map(lambda x: round(x, 6)),
    st.sampled_from([-5.0, 1e6, 1.1e6, 4e9, -1.69e9, 1e12, 1e300, float("nan"), float("inf")]),
)  # fmt: skip
LENGTHS = st.one_of(st.integers(0, 12).map(float), st.sampled_from([0.0, -1.0, 1e-6, 1e-9, 2e6, 1e13, float("nan")]))
ROW = st.tuples(
    st.sampled_from(PHASES), st.sampled_from(NAMES), TIMES, LENGTHS, st.sampled_from(["algo-1-0", "algo-1-1"]),
    st.sampled_from([-1, 0, 7, 127, 128, 16_384, 10**8, 2**62]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=30), min_size=1, max_size=4), st.data())
def test_any_slices(batches, data):
    tables = []
    for rows in batches:
        made = events(rows)
        threads = data.draw(st.lists(st.sampled_from([-1, 0, 3, 2**40]), min_size=len(rows), max_size=len(rows)))
        made = timeline_writer.attrs.evolve(made, tid=np.array(threads), worker_id=np.array(threads).astype(np.int32))
        tables.append(made)
    check(tables)


VALUE = st.one_of(
    st.integers(0, 10_000).map(lambda value: value / 100),
    st.sampled_from([0.0, -0.0, 1e-9, 1e300, 5e-324, 1e15, 123456789012345.6, 1e22, -3.5, float("nan"), float("inf")]),
)
SAMPLE = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0, 1.25, 1e12, -1.7e9, 1e302]), VALUE, st.sampled_from(["algo-1", "algo-2"]), st.just("cpu"),
    st.sampled_from(["cpu0", "cpu1", "", "value", "ReceiveBytesPerSecond", "TransmitBytesPerSecond", "MemoryUsedPercent", NAMES[1]]),
    st.sampled_from(["CPUUtilization", "GPUUtilization", "Algorithm", "Platform", "I/OWaitPercentage"]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SAMPLE, min_size=1, max_size=30), min_size=1, max_size=3))
def test_any_counters(batches):
    check([system(rows) for rows in batches])


def nested(draw, at, length, depth):
    """Yield nested slices with whole milliseconds."""
    while at < length:
        end = at + draw.randint(0, max((length - at) // 2, 1))
        yield at, end - at
        if depth:
            yield from nested(draw, at, end, depth - 1)
        at = end + draw.randint(0, 3)


@pytest.mark.parametrize("seed", range(3))
def test_many_slices(seed, monkeypatch):
    monkeypatch.setattr(timeline_writer, "_ROWS", 500)
    draw = random.Random(seed)  # made-up slices
    rows = []
    for node in range(4):
        for phase in ("Forward", "cpu_functions", "sm_profiler/gc"):
            for at, length in nested(draw, 0, 2000, 3):
                name = draw.choice(NAMES[:3]) if draw.random() < 0.05 else f"f{draw.randint(0, 20)}"
                late = draw.choice([0, 1, -30]) if draw.random() < 0.002 * seed else 0
                rows.append((phase, name, (at + late) / 1e3, length / 1e3, f"algo-1-{node}", at))
    rows.sort(key=lambda row: row[2] + draw.random() * 0.1)
    parts = [events(rows[at : at + 1300]) for at in range(0, len(rows), 1300)]
    done = check(parts)
    assert done.events + done.left_out == len(rows)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 60),
    st.booleans(),
)
def test_crossing_slices(spans, size, many):
    rows = [
        ("Forward", "f", at / 1e3 + 0.1 * part, length / 1e3, "algo-1-0", -1)
        for part in range(12 if many else 1)
        for at, length in spans
    ]
    check([events(rows[at : at + size]) for at in range(0, len(rows), size)])


def test_slices_beyond_the_last_lane_are_counted():
    rows = [("Forward", "f", step / 1e4, 1.0, "algo-1-0", step) for step in range(300)]
    rows += [("Forward", "g", 0.0, 0.5, "algo-1-1", 1)]
    assert check([events(rows)]).left_out > 0


def test_numbers_in_decimal():
    draw = random.Random(1)  # made-up numbers
    numbers = [0, 1, 9, 10, 999, 1000, 9999, 10_000, 10_001, 99_999_999, 10**8, 10**15 - 1, 2**63 - 1]
    numbers += [draw.randrange(10 ** draw.randint(1, 18)) for _ in range(2000)]
    made = decimals(np.array(numbers))
    assert [bytes(row).strip(b"\0") for row in made] == [b"%d" % number for number in numbers]
    shown = [number for number in numbers if number < 10**15]
    made = thousandths(np.array(shown))
    assert [bytes(row).replace(b"\0", b"").decode() for row in made] == [f"{number / 1e3:.15g}" for number in shown]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_in_json(values):
    assert b", ".join(_numbers(np.array(values))).decode() == json.dumps(values)[1:-1]


@pytest.mark.parametrize("top", [40, 10**15])
def test_distinct(top):
    numbers = np.random.default_rng(0).integers(0, 40, 1000)
    codes, first = distinct(numbers, top)
    assert (numbers[first][codes] == numbers).all()
    assert (first == [numbers.tolist().index(number) for number in numbers[first].tolist()]).all()


def test_phases_are_cleaned_in_the_block_that_has_them(monkeypatch):
    cleaned = []
    original = timeline_writer.clean
    monkeypatch.setattr(timeline_writer, "clean", lambda text: cleaned.append(text) or original(text))
    monkeypatch.setattr(timeline_writer, "_ROWS", 10)
    phases = [f"phase-{number:02}" for number in range(100)]
    written([events([(phase, "f", at / 1e3, 1e-4, "algo-1-0", -1) for at, phase in enumerate(phases)])])
    assert sorted(cleaned) == ["here", *phases]
