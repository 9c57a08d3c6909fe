"""A part of the report that fails is left out, and named on the terminal and in report.json."""

import json

import pytest

from sm_profiler.cli import main
from sm_profiler.diagnosis.profile import verdict
from sm_profiler.diagnosis.profile.causes import ProfileCause
from sm_profiler.metrics.memory_fold import MemoryFold
from sm_profiler.metrics.system_fold import SystemFold
from sm_profiler.report import Class
from sm_profiler.rules import CPUBottleneck
from tests.support.jobs import make_job


def fail(*_):
    raise KeyError("unexpected")


def judge_everything(_context):
    raise ZeroDivisionError("no steps")


BREAKAGES = {
    "CPUBottleneck": lambda patch: patch.setattr(CPUBottleneck, "evaluate", fail),
    "SystemFold": lambda patch: patch.setattr(SystemFold, "update", fail),
    "MemoryFold": lambda patch: patch.setattr(MemoryFold, "result", once(MemoryFold.result)),
    "judge_everything": lambda patch: patch.setattr(
        verdict, "CAUSES", (ProfileCause(Class.IDLE, judge_everything), *verdict.CAUSES)
    ),
}


def once(method):
    """Return the method, failing in its first call only: that of the fold with data."""
    calls = []

    def failing(fold):
        calls.append(fold)
        return fail() if len(calls) == 1 else method(fold)

    return failing


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("broken") / "job", "--minutes", "1", "--gpus", "1")


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_failed_part_is_named_in_one_line(job, tmp_path, monkeypatch, capsys, name):
    BREAKAGES[name](monkeypatch)
    assert main(["report", str(job), "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 15
    (line,) = [line for line in lines if "Failed and left out" in line]
    assert name in line
    assert "Traceback" not in "".join(lines)
    found = json.loads((tmp_path / "report.json").read_text())
    assert list(found["broken_rules"]) == [name]


def test_the_line_is_the_last_even_of_a_long_summary(job, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    for breakage in BREAKAGES.values():
        breakage(monkeypatch)
    main(["report", str(job), "--out", str(tmp_path)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert all(name in last for name in list(BREAKAGES)[:2])


def test_a_sound_report_has_no_such_line(job, tmp_path, capsys):
    main(["report", str(job), "--out", str(tmp_path)])
    assert "left out" not in capsys.readouterr().out
