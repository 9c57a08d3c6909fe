"""Fuzzing of the report's own events: arbitrary arguments, names and metadata end in a report without control characters.

`make test` tries 30 inputs; `SM_PROFILER_FUZZ` sets the number, `SM_PROFILER_FUZZ_SEED` the first seed. The keys of the
arguments are all texts in the report's source, so that new events are included.
"""

import json
import os
import random
import re
from pathlib import Path

import pytest

from sm_profiler.formats import event_names
from sm_profiler.formats.trace_records import COLLECTORS, validated
from sm_profiler.formats.trace_records import NUMBERS as NUMBERS_OF_PROCESS
from sm_profiler.formats.trace_records import TEXTS as TEXTS_OF_PROCESS
from sm_profiler.render.page import render_html
from sm_profiler.report import terminal_summary
from sm_profiler.report.write import to_json
from tests.support.reports import gpu_samples, report_from, training

ROOT = Path(__file__).parents[2]

COUNT = min(int(os.environ.get("SM_PROFILER_FUZZ", "30")), 20_000)
SEED = int(os.environ.get("SM_PROFILER_FUZZ_SEED", "0"))
PARTS = 4
KEYS = sorted({
    key
    for path in (ROOT / "sm_profiler").glob("re*/**/*.py")
    for key in re.findall(r'["\']([a-z][a-z_]{1,25})["\']', path.read_text("utf-8"))
})  # fmt: skip
PHASES = sorted(
    value for value in vars(event_names).values() if isinstance(value, str) and value.startswith(event_names.OWN)
)
TEXTS = [
    "",
    "cpu",
    "stall",
    "window",
    "\x1b[2J\x07",
    "</script><img src=x>",
    "²",
    "9" * 310,
    "x" * 5000,
    "\ud800",
    "a\nb",
    "{{7*7}}",
]
NUMBERS = [
    0, 1, -1, 3.5, 1e-320, 1e308, -1e308, 10**400, -(10**400), 2**63, 2**64, float("nan"), float("inf"), True, False, None,
]  # fmt: skip
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]")


def anything(draw, depth=0):
    """Return a JSON value."""
    kind = draw.randrange(8 if depth < 3 else 5)
    if kind < 3:
        return draw.choice(NUMBERS)
    if kind < 5:
        return draw.choice(TEXTS)
    if kind == 5:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(5))]
    if kind == 6:
        return {draw.choice([*KEYS, *TEXTS]): anything(draw, depth + 1) for _ in range(draw.randrange(5))}
    return [[anything(draw, 3) for _ in range(draw.randrange(7))] for _ in range(draw.randrange(4))]


def process_record(draw):
    """Return the metadata of a process as the readers pass it on."""
    keys = draw.sample([*KEYS, *NUMBERS_OF_PROCESS, *TEXTS_OF_PROCESS, COLLECTORS], 60)
    return validated({key: anything(draw) for key in keys})


def job(draw):
    """Return the rows of a job with arbitrary events of our own between its steps."""
    rows = training(draw.choice((0, 5, 80)), wait=draw.choice((0, 0.02)), every=draw.choice((None, 7)), stall=0.2)
    for phase in PHASES:
        for _ in range(draw.randrange(6)):
            args = {key: anything(draw) for key in draw.sample(KEYS, draw.choice((0, 20, len(KEYS))))}
            args = args if draw.random() < 0.9 else anything(draw)
            node, name = draw.choice(["algo-1-0", "algo-2-1", *TEXTS]), draw.choice(["save", *TEXTS])
            length = draw.choice([0.0, 0.01, 1.0, 1e6])
            rows.append((phase, name, draw.uniform(0, 3), length, node, draw.choice([-1, 3, 2**40]), args))
    return rows


@pytest.mark.first(2)
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("part", range(PARTS))
def test_arbitrary_events_of_our_own_end_in_a_report(part):
    for seed in range(SEED + part * COUNT // PARTS, SEED + (part + 1) * COUNT // PARTS):
        draw = random.Random(seed)  # repeatable
        metadata = tuple(process_record(draw) for _ in range(draw.randrange(3)))
        try:
            report = report_from(job(draw), gpu_samples(draw.choice((5, 95)), 5), metadata=metadata)
            summary, page = terminal_summary(report), render_html(report)
            text = to_json(report)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        assert not CONTROL.search(summary), f"seed {seed}"
        assert not re.search(r"<img src=x|[\x00\x1b]", page), f"seed {seed}"
        json.loads(text, parse_constant=lambda word, seed=seed: pytest.fail(f"seed {seed}: {word} is not JSON"))
