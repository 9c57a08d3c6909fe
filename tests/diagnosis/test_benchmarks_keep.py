"""Both benchmarks of diagnosis keep their runs and judge them again."""

import json
import sys

import pytest

from benchmarks.diagnosis import __main__ as diagnosis
from benchmarks.diagnosis import adapters, keeping
from benchmarks.strangers import __main__ as strangers
from tests.support.jobs import make_job

DIARY = {"loop": 4.0, "samples": 100, "step": 0.02, "shares": {"loading": 0.5}}


@pytest.fixture
def runs(monkeypatch):
    """Replace the scripts by a synthetic job each; `fails` lets the runs under the profiler fail."""

    class Runs:
        fails = False
        count = 0

    def execute(command, folder, **variables):
        Runs.count += 1
        (folder / "diary.json").write_text(json.dumps(DIARY))
        if "sm_profiler" in command:
            if Runs.fails:
                raise adapters.FailedRunError("exit code -11")
            make_job(folder / "sm-profiler" / "train", "--scenario", "dataloader-slow", "--minutes", "2")
        return f"training took {2.0 if variables.get('REPAIRED') else 4.0} s"

    monkeypatch.setattr(adapters, "execute", execute)
    monkeypatch.setattr(strangers, "execute", execute)
    return Runs


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return a function that runs a benchmark and returns the tables that it prints."""

    def tables(benchmark, *words):
        monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, words)])
        benchmark.main()
        text = capsys.readouterr().out
        return text[text.index("| ") :]

    return tables


BOTH = pytest.mark.parametrize(
    ("benchmark", "case"), [(diagnosis, "slow_getitem-share0.5"), (strangers, "leaf_photos")]
)


@BOTH
def test_a_kept_run_is_judged_again_without_running(benchmark, case, runs, tmp_path, printed):
    first = printed(benchmark, "--cases", case, "--keep", tmp_path)
    count = runs.count
    assert printed(benchmark, "--judge", tmp_path) == first
    assert runs.count == count > 0
    ((folder, facts),) = keeping.kept(tmp_path).items()
    assert (folder.name, keeping.profile_in(folder).name) == (case, "train")
    assert len(facts["load_average"]) == 3


@BOTH
def test_a_kept_run_that_failed_is_not_judged(benchmark, case, runs, tmp_path, printed):
    runs.fails = True
    first = printed(benchmark, "--cases", case, "--keep", tmp_path)
    assert "0 of 1" in first
    assert printed(benchmark, "--judge", tmp_path) == first
    ((_, facts),) = keeping.kept(tmp_path).items()
    assert "exit code -11" in facts["failed"]


def test_repeated_runs_are_kept_apart(runs, tmp_path, printed):
    first = printed(diagnosis, "--cases", "slow_getitem-share0.5", "--repeat", 2, "--seed", 5, "--keep", tmp_path)
    assert "2 of 2" in first
    assert printed(diagnosis, "--judge", tmp_path) == first
    assert len(keeping.kept(tmp_path)) == 2


@pytest.mark.parametrize("benchmark", [diagnosis, strangers])
def test_nothing_kept_is_an_error(benchmark, tmp_path, printed):
    with pytest.raises(SystemExit, match="nothing was kept"):
        printed(benchmark, "--judge", tmp_path)


def test_profiles_of_other_profilers_are_not_kept(tmp_path, printed, capsys):
    with pytest.raises(SystemExit):
        printed(diagnosis, "--profiler", "traceml", "--keep", tmp_path)
    assert "--keep" in capsys.readouterr().err
