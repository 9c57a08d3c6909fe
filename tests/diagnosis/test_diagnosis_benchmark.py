"""The benchmark of diagnosis itself: its cases, its scores, its tables."""

import ast
import json
import os
import threading

import attrs
import pytest

from benchmarks.diagnosis import table
from benchmarks.diagnosis.__main__ import kept
from benchmarks.diagnosis.adapters import Diagnosis, Named, Place, TraceML, instrumented
from benchmarks.diagnosis.manifest import CASES, PROBLEMS
from benchmarks.diagnosis.running import Outcome, lanes
from benchmarks.diagnosis.scoring import BUSY, inside, reliability, score, spread_of
from sm_profiler.report import Class

SCRIPTS = sorted(path for path in PROBLEMS.glob("*.py") if path.stem not in ("bench", "ranks", "jax_parts", "tf_parts"))
OTHERS_LOOPS = "keras_compile", "keras_fit", "keras_pipeline", "keras_tiny", "tf_generator"  # not a `for` of the script
CASE = next(case for case in CASES if case.script == "slow_getitem")
REPAIRED = {"loop": 2.0, "samples": 100, "shares": {}}
PLANTED = {"loop": 4.0, "samples": 100, "shares": {"loading": 0.5}}


def judged(main, *also, case=CASE):
    return score(Outcome(case, Diagnosis(main, also), PLANTED, REPAIRED))


def guilty(shift=0, function="elsewhere"):
    return Place("/somewhere/train.py", CASE.guilty()[0].number + shift, function)


def test_has_enough_problems_each_in_two_sizes():
    scripts = {(case.script, case.expected) for case in CASES}
    assert len(CASES) >= 48
    assert len({case.name for case in CASES}) == len(CASES)
    for script, expected in scripts:
        assert sum(case.script == script for case in CASES) >= 2, (script, expected)
    assert {case.script for case in CASES} == {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_expects_classes_that_exist_and_names_lines(case):
    kinds = {kind.value for kind in Class}
    assert kinds >= {*case.expected, *case.also, *case.accepted}
    if not case.healthy and case.line is not None:
        assert case.guilty()


def test_varied_sizes_depend_on_the_seed_alone():
    assert CASE.varied(1) == CASE.varied(1)
    assert CASE.varied(1) != CASE.varied(2)


@pytest.mark.parametrize("script", [one for one in SCRIPTS if one.stem not in OTHERS_LOOPS], ids=lambda path: path.stem)
def test_marks_the_steps_of_every_script_for_profilers_that_need_it(script):
    text = instrumented(script.read_text())
    ast.parse(text)
    assert text.count("with trace_step(model):") == 1


def test_scores_class_and_confidence():
    assert judged(Named("INPUT_BOUND", "high")).right
    wrong = judged(Named("SYNC_BOUND", "high"))
    assert not wrong.right
    assert wrong.confidently_wrong
    assert not judged(Named("SYNC_BOUND", "medium")).confidently_wrong
    accepting = attrs.evolve(CASE, accepted=("SYNC_BOUND",))
    assert not judged(Named("SYNC_BOUND", "high"), case=accepting).confidently_wrong


def test_scores_the_second_cause():
    case = attrs.evolve(CASE, also=("SYNC_BOUND",))
    assert judged(Named("INPUT_BOUND"), Named("SYNC_BOUND"), case=case).also_right
    assert judged(Named("INPUT_BOUND"), case=case).also_right is False
    assert judged(Named("INPUT_BOUND")).also_right is None


def test_the_problem_that_took_more_time_leads():
    case = next(case for case in CASES if case.script == "two_causes" and case.expected == ("INPUT_BOUND",))
    assert case.as_measured({"loading": 0.4, "norms": 0.2}) == case
    assert case.as_measured({"loading": 0.4, "norms": 0.1}).also == ()
    swapped = case.as_measured({"loading": 0.2, "norms": 0.4})
    assert (swapped.expected, swapped.also, swapped.line) == (("SYNC_BOUND",), ("INPUT_BOUND",), "norms")
    close = case.as_measured({"loading": 0.31, "norms": 0.3})
    assert close.expected == ("INPUT_BOUND", "SYNC_BOUND")


@pytest.mark.parametrize(
    ("place", "right"),
    [
        (guilty(), True),
        (guilty(shift=3), True),
        (guilty(shift=40), False),
        (guilty(shift=40, function="Records.__getitem__"), True),
        (Place("/somewhere/other.py", CASE.guilty()[0].number, "__getitem__"), False),
    ],
)
def test_scores_the_first_line_that_is_named(place, right):
    assert judged(Named("INPUT_BOUND", places=(place, guilty()))).line_right is right


def test_a_finding_without_a_line_is_not_right_and_a_missing_one_not_judged():
    assert judged(Named("INPUT_BOUND")).line_right is False
    assert judged(Named("BALANCED")).line_right is None


@pytest.mark.parametrize(("speedup", "right"), [((1.8, 2.2), True), ((1.2, 1.5), False), ((2.2, 3.0), False)])
def test_scores_the_gain_by_what_the_repaired_twin_gained(speedup, right):
    one = judged(Named("INPUT_BOUND", speedup=speedup))
    assert one.measured == 2.0
    assert one.gain_right is right


@pytest.mark.parametrize(
    ("gain", "found"),
    [
        ((1.5, 2.5), True),
        ((1.8, 2.2), True),
        ((1.8, 2.15), None),
        ((1.85, 3.0), None),
        ((1.2, 1.7), False),
        ((2.3, 3), False),
    ],
)
def test_a_gain_is_right_if_it_holds_all_that_was_measured_and_open_if_a_part(gain, found):
    assert inside(gain, spread_of([1.8, 2.2, 2.0], 9.0)) is found


def test_one_ratio_of_two_runs_beside_other_load_leaves_a_gain_open():
    case = attrs.evolve(CASE, diary="")
    found = Diagnosis(Named("INPUT_BOUND", speedup=(1.9, 2.1)))
    one = score(Outcome(case, found, PLANTED, REPAIRED, load=1.2))
    assert (one.gain_right, one.gain_open) == (True, False)
    one = score(Outcome(case, found, PLANTED, REPAIRED, load=6.0))
    assert (one.gain_right, one.gain_open) == (None, True)
    assert "1 open" in table.classes_table([one])
    pairs = [(PLANTED, REPAIRED), ({**PLANTED, "loop": 4.1}, REPAIRED)]
    assert score(Outcome(case, found, PLANTED, REPAIRED, pairs=pairs, load=6.0)).gain_right


def test_the_first_steps_of_a_twin_are_paid_once():
    """The planted loop has eight times as many steps as the twin, of which the first takes two seconds."""
    twin = {"loop": 3.0, "samples": 100, "step": 0.01, "steps": 100, "shares": {}}
    planted = {"loop": 20.0, "samples": 800, "shares": {}}
    assert Outcome(attrs.evolve(CASE, diary=""), None, planted, twin).speedups == [2.0]


def test_what_long_occurrences_leave_if_they_are_short_is_no_gain():
    case = attrs.evolve(CASE, diary="long", others="usual")
    seconds, counts = {"usual": 1.0, "long": 3.0}, {"usual": 90, "long": 10}
    planted = {"loop": 4.0, "samples": 100, "seconds": seconds, "counts": counts, "shares": {"long": 0.75}}
    assert Outcome(case, None, planted, REPAIRED).speedups == [pytest.approx(4.0 / (1.0 + 10 / 90))]


def test_without_a_diary_of_the_problem_the_twin_measures_the_gain():
    case = attrs.evolve(CASE, diary="")
    slower = {**REPAIRED, "loop": 3.2}
    found = Diagnosis(Named("INPUT_BOUND", speedup=(1.2, 1.3)))
    assert score(Outcome(case, found, PLANTED, slower)).measured == 1.25


def test_the_gain_of_one_of_two_problems_is_that_of_the_larger_one():
    case = attrs.evolve(CASE, diary="norms", second="loading", also=("SYNC_BOUND",))
    planted = {**PLANTED, "shares": {"loading": 0.5, "norms": 0.1}}
    found = Diagnosis(Named("INPUT_BOUND", speedup=(1.8, 2.2)))
    assert score(Outcome(case, found, planted, REPAIRED)).measured == 2.0


def test_counts_right_verdicts_by_confidence():
    scores = [judged(Named("INPUT_BOUND", "high")), judged(Named("SYNC_BOUND", "high")), judged(Named("X", "low"))]
    assert reliability(scores) == {"high": (1, 2), "low": (0, 1)}
    assert "| high | 1 of 2 | 50% |" in table.reliability_table(scores)
    busy = [attrs.evolve(one, machine=BUSY) for one in scores]
    assert "| high | 2 of 4 | 50% | 1 of 2 | 1 of 2 |" in table.reliability_table(scores + busy)
    assert "1 run on a busy machine and 1 run on a quiet machine" in table.runs_sentence(scores + busy)


def test_all_scores_of_all_files_count(tmp_path):
    scores = [attrs.evolve(judged(Named("INPUT_BOUND", "high")), run=turn) for turn in (0, 1)]
    for name in ("first.json", "second.json"):
        (tmp_path / name).write_text(json.dumps([one.as_dict() for one in scores]))
    found = kept([tmp_path / "first.json", tmp_path / "second.json"])
    assert sorted(one.run for one in found) == [0, 1, 2, 3]
    assert "4 runs on a quiet machine" in table.runs_sentence(found)


def test_writes_tables_between_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- classes -->\nold\n<!-- end of classes -->\nafter\n")
    table.write(page, "classes", table.classes_table([judged(Named("INPUT_BOUND", "high"))]))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| INPUT_BOUND | 1 of 1 |" in text
    assert "old" not in text
    with pytest.raises(ValueError, match="no place for the table 'problems'"):
        table.write(page, "problems", "")


def test_reads_a_summary_of_traceml():
    main = {"kind": "RESIDUAL_HEAVY", "status": "RESIDUAL-HEAVY", "summary": "Residual time is 40 %."}
    other = {"kind": "HIGH_CPU", "status": "HIGH CPU", "summary": "CPU usage was high."}
    found = TraceML().read({"primary_diagnosis": main, "system": {"issues": [other]}, "step_time": {"issues": [main]}})
    assert found.main.kind == "SYNC_BOUND"
    assert [one.kind for one in found.also] == ["HIGH_CPU"]


def test_lanes_share_the_cores():
    cores = os.sched_getaffinity(0)
    number = min(2, len(cores))
    together = threading.Barrier(number)

    def share() -> set[int]:
        together.wait()  # no thread serves two lanes
        return os.sched_getaffinity(0)

    with lanes(number) as pool:
        shares = [one.result() for one in [pool.submit(share) for _ in range(number)]]
    assert len(set.union(*shares)) == sum(map(len, shares)) == number * (len(cores) // number)
    assert os.sched_getaffinity(0) == cores
    with pytest.raises(SystemExit, match="need"):
        lanes(len(cores) + 1)
