"""Comparison of two runs: coverage of the intervals, chance against change, exit codes."""

import json

import numpy as np
import pytest
from report_helpers import make_job, report_from, training

from sm_profiler.cli import main
from sm_profiler.errors import ConfigError
from sm_profiler.report.compare import RegressionLimit, compare, render_comparison, terminal_comparison


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
    assert "slower" in found.sentence
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
    assert "slower" in capsys.readouterr().out
    assert main(["compare", str(slow), str(fast), "--fail-on", "regression>5%"]) == 0
    assert "faster" in capsys.readouterr().out
    assert main(["compare", str(slow), str(fast), "--fail-on", "nonsense"]) == 2
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.json"}


def test_hostile_names_are_escaped():
    a = report_from(training(50), name="</style><script>alert(1)</script>")
    page = render_comparison(compare(a, a))
    assert "<script>alert" not in page
    assert len(terminal_comparison(compare(a, a)).splitlines()) <= 10


def test_comparison_states_what_was_predicted_and_what_came():
    found = compare(report_from(training(400, wait=0.0205)), report_from(training(400, wait=0.0005)))
    assert "Repairing INPUT_BOUND: predicted 2." in terminal_comparison(found)
    assert "times as fast, measured 3" in render_comparison(found)
    (one,) = json.loads(json.dumps(found.as_dict()))["predictions"]
    assert one["findings"] == ["INPUT_BOUND"]
    assert one["predicted"]["low"] <= one["measured"]["value"] <= one["predicted"]["high"]
    assert one["held"]
    assert compare(report_from(training(400)), report_from(training(400))).predictions == ()
