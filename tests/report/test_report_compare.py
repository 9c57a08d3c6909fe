"""Comparison of two runs: coverage of the intervals, chance against change, batch sizes, other load, exit codes."""

import json

import attrs
import numpy as np
import pytest

from sm_profiler.cli import main
from sm_profiler.diagnosis.model import Interval
from sm_profiler.errors import ConfigError
from sm_profiler.formats.event_names import LOOP
from sm_profiler.metrics.system_fold import Usage
from sm_profiler.report.compare import (
    Change,
    Comparison,
    Prediction,
    RegressionLimit,
    _change,
    _rows,
    _Time,
    compare,
    render_comparison,
    summarize_comparison,
    terminal_comparison,
)
from tests.support.jobs import make_job
from tests.support.reports import START_S, report_from, training


def noisy(rng, factor=1.0, steps=300):
    rows, now = [], 1.0
    for step in range(steps):
        forward = factor * 0.01 * rng.lognormal(0, 0.2)
        rows += training(1, at=now, forward=forward, number=step)
        now += 0.0072 + forward
    return report_from(rows)


def test_reports_a_regression_and_its_part():
    found = compare(report_from(training(200)), report_from(training(200, forward=0.006)))
    assert found.step.change == pytest.approx(0.003 / 0.0102, abs=0.01)
    assert found.sentence.startswith("Steps take 29.4 % more time (2")
    assert "forward" in found.sentence
    assert RegressionLimit.parse("regression>5%").is_exceeded_by(found)
    assert not RegressionLimit.parse("regression > 40 %").is_exceeded_by(found)


def test_equal_runs_do_not_differ():
    rng = np.random.default_rng(11)
    alarms = 0
    for _ in range(20):
        found = compare(noisy(rng), noisy(rng))
        alarms += found.step.is_clear
        assert not RegressionLimit.parse("regression>5%").is_exceeded_by(found)
    assert alarms <= 4


def test_the_interval_covers_the_true_change():
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(20):
        found = compare(noisy(rng), noisy(rng, 1.1))
        truth = (0.0072 + 0.011 * np.exp(0.02)) / (0.0072 + 0.01 * np.exp(0.02)) - 1
        covered += found.step.low <= truth <= found.step.high
    assert covered >= 16


def test_reports_too_few_steps():
    found = compare(report_from(training(5)), report_from(training(200)))
    assert "Too few" in found.sentence
    assert not RegressionLimit.parse("regression>5%").is_exceeded_by(found)
    render_comparison(found)


@pytest.mark.parametrize("text", ["", "5%", "regression>", "regression>5", "regression>x%"])
def test_rejects_other_limits(text):
    with pytest.raises(ConfigError, match="regression>5%"):
        RegressionLimit.parse(text)


def test_command_exit_codes_and_files(tmp_path, capsys):
    fast = make_job(tmp_path / "fast", "--scenario", "cpu-only", "--minutes", "2", "--steps-per-second", "5")
    slow = make_job(tmp_path / "slow", "--scenario", "cpu-only", "--minutes", "2", "--steps-per-second", "4")
    out = tmp_path / "out"
    assert main(["compare", str(fast), str(slow), "--fail-on", "regression>5%", "--out", str(out)]) == 1
    assert "Steps with their evaluation take 24.6 % more time (" in capsys.readouterr().out
    assert main(["compare", str(slow), str(fast), "--fail-on", "regression>5%"]) == 0
    assert "less time (" in capsys.readouterr().out
    assert main(["compare", str(slow), str(fast), "--fail-on", "nonsense"]) == 2
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.json"}


def test_columns_are_apart_and_nothing_is_zero():
    """The rest of a difference of times was shown as 7.07e-13 µs, in the column of the other run."""
    changes = (
        Change("between", 125e-6, 7e-19, None, None, None),
        Change("forward", 0.9999e-3, 0.9999e-3, 0.0, -0.1, 0.1),
    )
    found = Comparison("a", "b", changes, "", ("BALANCED", "BALANCED"), (200, 200))
    first, second = terminal_comparison(found).splitlines()[-2:]
    assert first.split() == ["Between", "phases", "125", "µs", "0", "µs"]
    assert second.split()[:5] == ["Forward", "1e+03", "µs", "1e+03", "µs"]


def test_hostile_names_are_escaped():
    a = report_from(training(50), name="</style><script>alert(1)</script>")
    page = render_comparison(compare(a, a))
    assert "<script>alert" not in page
    assert len(terminal_comparison(compare(a, a)).splitlines()) <= 12


def test_comparison_states_what_was_predicted_and_what_came():
    found = compare(report_from(training(400, wait=0.0205)), report_from(training(400, wait=0.0005)))
    assert "Repairing INPUT_BOUND: predicted 2." in terminal_comparison(found)
    assert "times as fast, measured 3" in render_comparison(found)
    (one,) = json.loads(json.dumps(found.as_dict()))["predictions"]
    assert one["findings"] == ["INPUT_BOUND"]
    assert one["predicted"]["low"] <= one["measured"]["value"] <= one["predicted"]["high"]
    assert one["held"]
    assert compare(report_from(training(400)), report_from(training(400))).predictions == ()


def test_no_gain_is_credited_to_what_is_still_found():
    """The factor of the whole comparison was "measured" for repairs that were not made."""
    found = compare(report_from(training(400, wait=0.0205)), report_from(training(400, wait=0.0105)))
    (one,) = found.predictions
    assert not one.repaired
    assert one.sentence.startswith("INPUT_BOUND is still found: predicted 2.")
    assert "measured" not in one.sentence
    assert (one.as_dict()["measured"], one.as_dict()["held"]) == (None, None)


@pytest.mark.parametrize(
    ("after", "claimed"),
    [
        ({"wait": 0.0005, "outside": 0.0492}, False),  # slower: the new cause hides the other
        ({"wait": 0.0005, "outside": 0.0122}, False),  # faster than before, and not by as much as predicted
        ({"wait": 0.0005, "outside": 0.0012}, True),
        ({"wait": 0.0005, "forward": 0.012}, True),  # without a new cause, less than predicted is that
    ],
)
def test_a_cause_that_is_gone_beside_a_new_one_is_not_called_repaired(after, claimed):
    """A healthy but oversubscribed run and one with a straggler "repaired" the first: 0.27 times as fast."""
    found = compare(report_from(training(400, wait=0.0205)), report_from(training(400, **after)))
    assert found.verdicts[0] == "INPUT_BOUND"
    assert found.verdicts[1] != "INPUT_BOUND"
    assert ("Repairing" in terminal_comparison(found)) == claimed
    assert ("Repairing" in render_comparison(found)) == claimed


def test_what_is_new_is_stated():
    """Of a run with another problem than the first one, only the class of it was shown."""
    before, after = report_from(training(400)), report_from(training(400, wait=0.0205))
    found = compare(before, after)
    assert found.notes[0] == f"New is INPUT_BOUND: {after.verdict.main.headline}"
    assert found.notes[0] in terminal_comparison(found)
    assert not any("New is" in note for note in compare(after, before).notes)


def of_batches(size, **times):
    return report_from(training(400, **times), metadata=({"samples_per_step": size},))


def shared(report, share):
    """Let other programs keep the main thread waiting for a core."""
    seconds = START_S + np.arange(20.0)
    usage = Usage(seconds, np.arange(20.0), np.zeros(20), share * np.arange(20.0))
    return attrs.evolve(report, metrics=attrs.evolve(report.metrics, usage={"algo-1-0": usage}))


def test_larger_batches_are_compared_per_sample_in_every_statement():
    before = of_batches(16, forward=0.0003, backward=0.0005, optimizer=0.0001, wait=0.0001)
    after = of_batches(128, backward=0.003)  # steps 6.8 times as long, batches 8 times as large
    found = compare(before, after)
    plain = compare(report_from(training(400, forward=0.0003, backward=0.0005, optimizer=0.0001, wait=0.0001)), report_from(training(400, backward=0.003)))  # fmt: skip
    assert found.per == "sample"
    assert found.step.change + 1 == pytest.approx((plain.step.change + 1) / 8)
    assert found.sentence.startswith("Samples take ")
    assert found.predictions[0].measured.value == pytest.approx(1 / (1 + found.step.change))
    assert RegressionLimit.parse("regression>5%").is_exceeded_by(plain)
    assert not RegressionLimit.parse("regression>20%").is_exceeded_by(found)
    for text in (terminal_comparison(found), render_comparison(found), summarize_comparison(found).tables[0][0][0]):
        assert "per sample" in text
    assert "A step trains 16 samples before and 128 after" in terminal_comparison(found)
    assert found.as_dict()["samples"] == (16, 128)


def test_the_loaders_batch_sizes_come_before_the_models_inputs():
    runs = [
        report_from(training(200), metadata=({"batch_size": size, "samples_per_step": 7.0 * size},)) for size in (8, 16)
    ]
    assert compare(*runs).samples == (8, 16)
    assert compare(of_batches(16), of_batches(16.1)).per == "step"


def test_unknown_batch_sizes_are_stated():
    assert "Batch sizes unknown: steps are compared." in terminal_comparison(
        compare(report_from(training(200)), of_batches(16))
    )
    assert "Batch sizes" not in terminal_comparison(compare(of_batches(16), of_batches(16)))


def test_different_scripts_are_stated():
    def of(script):
        frames = [[f"/job/{script}", 50, "<module>"], ["/job/lib.py", 30, "train"]]
        return report_from([*training(200), (LOOP, "train", 1.5, 0.0, "algo-1-0", 3, {"frames": frames})])

    def text(*scripts):
        return terminal_comparison(compare(*(of(script) for script in scripts)))

    assert "The scripts differ: a.py and b.py." in text("a.py", "b.py")
    assert "scripts" not in text("a.py", "a.py")
    assert "scripts" not in terminal_comparison(compare(report_from(training(200)), of("b.py")))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((-0.367, -0.415, -0.313), "take 36.7 % less time (31.3 to 41.5 %)"),
        ((0.12, 0.08, 0.16), "take 12 % more time (8 to 16 %)"),
        ((6.197, 5.9, 6.5), "take 7.2 times as long (6.9 to 7.5)"),
        ((-0.8, -0.82, -0.78), "are 5.0 times as fast (4.5 to 5.6)"),
        ((-0.97, -0.98, -0.96), "are 33 times as fast (25 to 50)"),
    ],
)
def test_words_of_a_change(change, text):
    assert Change("length", 1.0, 1 + change[0], *change).sentence == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (0.0004, "0.0 %"),
        (-0.0004, "0.0 %"),
        (-0.0006, "-0.1 %"),
        (0.051, "+5.1 %"),
        (8.97, "10 times"),
        (1.5, "2.5 times"),
    ],
)
def test_signs_and_digits_of_a_change(change, text):
    rows = _rows(Comparison("a", "b", (Change("forward", 1.0, 1 + change, change, -1.0, 1.0),), "", ("", ""), (1, 1)))
    assert rows[0][3] == text


def test_evaluation_counts_in_the_headline_and_in_what_was_predicted():
    def run(every):
        rows, now = [], 1.0
        for start in range(0, 400, every):
            rows += training(every, at=now, number=start)
            now += every * 0.0102
            rows += training(5, at=now, number=5 * start, mode="EVAL", backward=0, optimizer=0)
            now += 5 * 0.0042
        return report_from(rows)

    found = compare(run(4), run(100))
    assert "Steps with their evaluation" in found.sentence
    assert "mostly in: evaluation" in found.sentence
    assert found.step.part == "loop"
    (one,) = found.predictions
    assert one.findings == ("EVALUATION_BOUND",)
    assert one.measured.value == pytest.approx(1 / (1 + found.step.change))
    assert one.measured.value > 1.3


def test_the_load_of_other_programs_is_named_and_taken_out():
    quiet, slow = report_from(training(400)), report_from(training(400, forward=0.0045))
    found = compare(quiet, shared(slow, 0.13))
    assert found.step.change == pytest.approx(0, abs=0.01)
    assert found.step.high == pytest.approx(0.15, abs=0.02)
    assert "no significant difference" in found.sentence
    assert "waiting for a CPU core 0 % of the loop before and 13 % after" in terminal_comparison(found)
    *own, waited = found.changes
    assert all(one.change == pytest.approx(one.after / one.before - 1) for one in own)
    assert (waited.part, waited.before) == ("others", 0)
    assert found.step.after + waited.after == pytest.approx(0.0117, rel=0.01)  # as the clock shows it
    assert "Waiting for a core          0 µs   1.52 ms\n" in terminal_comparison(found) + "\n"
    assert not RegressionLimit.parse("regression>5%").is_exceeded_by(found)
    assert RegressionLimit.parse("regression>5%").is_exceeded_by(compare(quiet, slow))
    assert found.others == pytest.approx((0, 0.13))


def test_time_by_the_clock_leads_if_other_programs_delayed_a_run():
    """The summary was “No significant difference” for steps that took 40 % longer."""
    quiet, slow = report_from(training(400)), shared(report_from(training(400, forward=0.0052)), 0.18)
    found = compare(quiet, slow)
    assert found.sentence.startswith(
        "With waits for a core, steps take 10.2 ms before and 12.4 ms after, 21.6 % more. Without those for other programs: no sig"
    )
    assert found.elapsed.change == pytest.approx(0.216, abs=0.005)
    assert "By the clock" in terminal_comparison(found).splitlines()[-1]
    assert "+21.6 %" in terminal_comparison(found).splitlines()[-1]
    assert found.as_dict()["elapsed"]["after"] == pytest.approx(0.0124, rel=0.01)
    assert 'class="card open"' in render_comparison(found)  # not the colour of what is well
    assert compare(quiet, quiet).elapsed is None
    faster = compare(slow, quiet)
    assert "12.4 ms before and 10.2 ms after, 17.7 % less." in faster.sentence


def test_runs_too_short_to_show_the_load_are_compared_with_a_doubt():
    short, long = report_from(training(60)), report_from(training(60))
    short = attrs.evolve(short, metrics=attrs.evolve(short.metrics, metadata={"framework": "pytorch"}, usage={}))
    found = compare(short, long)
    assert found.changes
    assert "The run before was too short to show whether other programs used the cores" in terminal_comparison(found)
    assert "Both runs were too short" in terminal_comparison(compare(short, short))
    assert "too short" not in terminal_comparison(compare(long, long))


@pytest.mark.parametrize(
    ("share", "forward", "waits"),
    [
        ((0.0, 0.86), 0.06, "86 % of the loop after"),
        ((0.13, 0.22), 0.007, "22 % of the loop after"),
        ((0.3, 0.3), 0.001, "30 % of the loop before and 30 % of the loop after"),
        ((0.25, 0.0), 0.001, "25 % of the loop before"),
        ((0.0, 0.25), 0.003, "25 % of the loop after"),
    ],
)
def test_a_change_that_load_may_explain_is_none(share, forward, waits):
    """Identical code was called 40 % slower: torch's own threads wait for a core, too, and only the main one's waits are known."""
    runs = report_from(training(400)), report_from(training(400, forward=forward))
    found = compare(*(shared(run, one) for run, one in zip(runs, share, strict=True)))
    assert found.changes == ()
    assert found.step is None  # exit code 2 of --fail-on
    assert found.sentence.startswith(
        f"Not comparable: other programs kept the training's main thread waiting for a CPU core {waits}. How long"
    )
    assert "Not comparable" in render_comparison(found)


@pytest.mark.parametrize(("share", "forward"), [((0.25, 0.0), 0.009), ((0.0, 0.25), 0.001)])
def test_what_is_faster_in_spite_of_load_is_faster(share, forward):
    runs = report_from(training(400)), report_from(training(400, forward=forward))
    found = compare(*(shared(run, one) for run, one in zip(runs, share, strict=True)))
    assert found.step.is_clear
    assert (found.step.change > 0) == (forward > 0.003)
    parts = {one.part: one.change for one in found.changes}
    assert parts["forward"] is not None
    assert parts["backward"] is None  # as long by the clock in both runs, so load may hide a change


def test_times_under_load_do_not_test_a_prediction():
    """They were the measured gain, "which may be chance"."""
    before = report_from(training(400, wait=0.0205))
    for wait, forward in ((0.0005, 0.03), (0.0005, 0.003)):
        after = shared(report_from(training(400, wait=wait, forward=forward)), 0.46)
        (one,) = compare(before, after).predictions
        assert one.sentence.startswith("Repairing INPUT_BOUND: predicted 2.")
        assert one.sentence.endswith(" times as fast, which times with this load of other programs do not test.")
        assert (one.measured, one.held) == (None, None)


def test_times_of_runs_that_mostly_waited_for_others_are_shown_without_a_change():
    """The comparison had no number at all, which on a lab's server is every comparison."""
    found = compare(report_from(training(400)), shared(report_from(training(400, forward=0.06)), 0.86))
    forward = next(one for one in found.measured if one.part == "forward")
    assert forward.after == pytest.approx(0.06, rel=0.05)
    assert forward.change is None
    assert found.step is None
    (row,) = [line for line in terminal_comparison(found).splitlines() if "Forward" in line]
    assert "60" in row
    assert "%" not in row
    assert "Forward" in render_comparison(found)
    assert found.as_dict()["measured"][0]["change"] is None


def test_a_limit_that_cannot_be_checked_is_an_error(tmp_path, capsys):
    job = make_job(tmp_path / "job", "--scenario", "cpu-only", "--minutes", "2")
    empty = make_job(tmp_path / "empty", "--scenario", "cpu-only", "--minutes", "1", "--steps-per-second", "0.1")
    assert main(["compare", str(job), str(empty)]) == 0
    assert main(["compare", str(job), str(empty), "--fail-on", "regression>5%"]) == 2
    printed = capsys.readouterr()
    assert (
        printed.err.splitlines()[-1]
        == "sm-profiler: --fail-on regression>5% could not be checked: the runs are not comparable"
    )
    assert printed.out.count("Too few training steps") == 2  # once for each command
    assert "Too few" not in printed.err


def test_tables_are_refused_as_tables(tmp_path, capsys):
    """The message was that the table is no folder."""
    table = tmp_path / "times.csv"
    table.write_text("step,forward_ms,backward_ms\n" + "".join(f"{step},3,5\n" for step in range(20)))
    job = make_job(tmp_path / "job", "--scenario", "cpu-only", "--minutes", "2")
    for pair in ((table, table), (job, table), (table, job)):
        assert main(["compare", *map(str, pair)]) == 2
        assert "tables of times cannot be compared" in capsys.readouterr().err


def test_data_without_recorded_waits_has_a_row():
    runs = [
        report_from([row for row in training(400, wait=wait) if row[0] != "DataLoaderWait"]) for wait in (0.02, 0.001)
    ]
    assert compare(*runs).sentence.endswith("mostly in: data and other code.")


def test_what_is_still_found_but_hardly_costs_anything_was_repaired():
    (one,) = compare(report_from(training(400, wait=0.0405)), report_from(training(400, wait=0.0045))).predictions
    assert (one.repaired, one.findings) == (True, ("INPUT_BOUND",))


def test_predictions_hold_as_they_are_shown():
    shown = Prediction(("FAIL_SLOW",), True, Interval(1.29, 1.4, 1.577), Interval(1.5, 1.58, 1.6))
    assert shown.sentence == "Repairing FAIL_SLOW: predicted 1.3 to 1.6 times as fast, measured 1.58."
    chance = attrs.evolve(shown, measured=Interval(0.95, 1.27, 1.35))
    assert chance.sentence.endswith("measured 1.27, which may be chance.")


def test_what_rounding_leaves_of_a_difference_is_no_base():
    before, after = (_Time(mean, np.full(100, mean)) for mean in (2e-18, 65.8e-6))
    change = _change("between", before, after, (1.0, 1.0))
    assert (change.change, change.low, change.high) == (None, None, None)
