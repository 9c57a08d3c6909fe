"""Public trainings: the hook counts the steps that the library counts, and changes nothing."""

import os

import measure
import pytest

from sm_profiler.report import Class, build_report
from sm_profiler.source import open_source
from tests.support.profiles import recorded

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def _environment():
    """Without the libraries, which another environment has, the tests are skipped; in CI they fail."""
    if not measure.PYTHON.exists():
        message = "no environment with the libraries: `make test-long` creates it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


@pytest.mark.parametrize("name", measure.NAMES)
def test_steps_agree_with_the_librarys_count_and_results_are_identical(tmp_path, name):
    profile = tmp_path / "profile"
    both = measure.start(name, tmp_path / "off"), measure.start(name, tmp_path / "on", profile)
    off, on = (measure.counted(process, tmp_path / folder) for process, folder in zip(both, ("off", "on"), strict=True))
    assert on == off
    events = recorded(profile)
    seen = measure.steps_of(events)
    assert (seen["Step:ModeKeys.TRAIN"], seen["Step:ModeKeys.EVAL"]) == (off["train"], off["eval"])
    assert off["forwards"] in {None, seen["Forward"]}
    assert measure.stray(events) == []


def test_a_loop_that_acts_and_learns_in_turns_is_judged(tmp_path):
    measure.counted(measure.start("dqn", tmp_path / "on", tmp_path / "profile", {}), tmp_path / "on")
    report = build_report(open_source(tmp_path / "profile", cache=False))
    assert report.verdict.kind is not Class.INCONCLUSIVE
