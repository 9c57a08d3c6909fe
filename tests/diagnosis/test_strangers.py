"""The scripts of strangers and their truth agree."""

import ast
import re

import pytest

from benchmarks.diagnosis.adapters import Diagnosis, Named, Place
from benchmarks.strangers.__main__ import Row, judged, table, together
from benchmarks.strangers.truth import HERE, strangers
from sm_profiler.report import Class

EVERY = [*strangers(sealed=False), *strangers(sealed=True)]
BY_NAME = {one.name: one for one in EVERY}
HEALTHY = {"BALANCED", "COMPUTE_BOUND"}


def test_every_script_has_an_entry_and_every_entry_a_script():
    for sealed in (False, True):
        folder = HERE / ("sealed" if sealed else "open")
        assert {path.stem for path in folder.glob("*.py")} == {one.name for one in strangers(sealed=sealed)}
    assert len(BY_NAME) == len(EVERY) == 247
    assert sum(one.sealed for one in EVERY) == 20
    assert sum(one.healthy for one in EVERY) >= 15


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_a_script_agrees_with_its_truth(one):
    text = one.path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    assert ast.get_docstring(ast.parse(text))
    assert {part: len(lines) for part, lines in one.lines().items()} == dict.fromkeys(one.guilty, 1)
    assert not {*one.expected} & {*one.also}
    assert {*one.expected, *one.also} <= {kind.value for kind in Class}
    assert one.repair == ("REPAIRED=1" if 'environ.get("REPAIRED"' in text else "none")
    assert one.healthy == (set(one.expected) == HEALTHY)
    assert one.measured in ("loop", "job")
    assert (one.ranks > 1) == ("init_process_group" in text)
    assert "training took" in text


def test_no_script_states_its_problem():
    words = re.compile(r"GUILTY|problem|bottleneck|too slow|BOUND|sm.profiler|truth", re.IGNORECASE)
    for one in EVERY:
        assert not words.search(one.path.read_text(encoding="utf-8")), one.name


def named(kind, line=0, gain=None, confidence="high"):
    saved = gain and (1 - 1 / gain[0], (1 - 1 / gain[0] + 1 - 1 / gain[1]) / 2, 1 - 1 / gain[1])
    return Named(kind, confidence, (Place("/x/train.py", line, "f"),) if line else (), gain, saved=saved)


def test_judges_class_line_and_gain():
    one = BY_NAME["fraud"]
    line = one.lines()[one.guilty[0]][0]
    row = Row(one.name, one.framework, one.expected, plain=20.0, repaired=10.0)
    good = judged(one, row, Diagnosis(named("SYNC_BOUND", line + 2, (1.8, 2.2))))
    assert (good.right, good.line_right, good.gain_right, good.confidently_wrong) == (True, True, True, False)
    bad = judged(one, row, Diagnosis(named("BALANCED"), (named("SYNC_BOUND", line - 9, (2.5, 3.0)),)))
    assert (bad.right, bad.line_right, bad.gain_right, bad.confidently_wrong) == (False, False, False, True)
    assert "| **all** |" in table([good, bad])
    assert "1 of 2" in table([good, bad])


def test_of_two_problems_either_may_lead_and_their_gains_are_combined():
    one = BY_NAME["orders_json"]
    row = Row(one.name, one.framework, one.expected, plain=20.0, repaired=10.0)
    first, second = named("CHECKPOINTING", gain=(1.25, 1.25)), named("INPUT_BOUND", gain=(1.25, 2.0))
    both = judged(one, row, Diagnosis(first, (second,)))
    assert (both.right, both.also_right, both.gain_right) == (True, True, True)
    assert both.gain == pytest.approx((1 / 0.6, 1 / 0.3), rel=0.05)  # one of them is exact
    assert both.gain[0] < 1 / 0.6 < 1 / 0.3 < both.gain[1]  # two runs differ by chance
    half = judged(one, row, Diagnosis(first))
    assert (half.right, half.also_right, half.gain, half.gain_right) == (True, False, None, None)
    assert together([second]) == (1.25, 2.0)
    assert together([named("MEMORY_GROWTH")]) is None


def test_a_healthy_script_has_no_gain_to_judge():
    one = BY_NAME["digits_cnn"]
    row = judged(one, Row(one.name, one.framework, one.expected, plain=20.0), Diagnosis(named("BALANCED")))
    assert (row.right, row.line_right, row.gain_right, row.gain) == (True, None, None, None)
    wrong = judged(one, row, Diagnosis(named("INPUT_BOUND", 5, (1.2, 1.3))))
    assert (wrong.right, wrong.confidently_wrong) == (False, True)
