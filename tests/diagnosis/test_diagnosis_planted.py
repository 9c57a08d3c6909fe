"""Verdicts on the benchmark's training scripts, compared with the scripts' own measurements."""

import os

import pytest

from benchmarks.diagnosis.adapters import Ours
from benchmarks.diagnosis.manifest import CASES
from benchmarks.diagnosis.running import FailedRunError, run_case
from benchmarks.diagnosis.scoring import score

pytestmark = [pytest.mark.alone, pytest.mark.slow]

MAX_RETRIED = 2  # of the sample, on a machine that does other work too
# `make test` runs one of each kind: in the loader, between ranks, two at once.
QUICK = ("slow_getitem", "late_forward", "two_causes")
SAMPLE = [case for case in CASES if case.sample and case.script in QUICK]
# They take half an hour: SM_PROFILER_DIAGNOSIS=sample leaves all but the manifest's sample out.
SOME = os.environ.get("SM_PROFILER_DIAGNOSIS") == "sample"
OTHERS = [case for case in CASES if case not in SAMPLE and (case.sample or not SOME)]


def check(case):
    outcome = run_case(case, Ours())
    result = score(outcome)
    assert result.right, (result.error, result.headline, result.also, result.planted)
    if case.also:
        assert result.also_right is not False, (result.also, result.planted)
    if case.diary and not case.second:  # both clocks time the same work, except for their own calls and the first steps
        measured = 1 - 1 / outcome.speedups[0]
        assert outcome.diagnosis.main.share == pytest.approx(measured, rel=0.25, abs=0.06), result.headline
    if "rank" in outcome.planted:
        assert outcome.diagnosis.main.rank == f"algo-1-{outcome.planted['rank']}"


def check_twice(case, retried):
    """Judge a second run if the first fails, because on a shared machine another problem may dominate some seconds."""
    try:
        check(case)
    except (AssertionError, FailedRunError) as error:  # gloo may abort as its processes end
        retried.append(f"{case.name}: {str(error).splitlines()[0]}")
        check(case)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_names_the_planted_problem(case, retried):
    check_twice(case, retried)


def test_few_verdicts_need_a_second_run(retried):
    assert len(retried) <= MAX_RETRIED, retried


@pytest.mark.long
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_names_the_other_planted_problems(case, retried):
    check_twice(case, retried)
