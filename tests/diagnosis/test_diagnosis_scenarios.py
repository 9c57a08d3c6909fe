"""Verdicts on synthetic jobs of all scenarios, in two sizes."""

import pytest

from sm_profiler.report import Class, build_report
from sm_profiler.source import open_source
from tests.support.jobs import shared_job

EXPECTED = {
    "healthy": {Class.COMPUTE_BOUND, Class.BALANCED},
    "cpu-bottleneck": {Class.INPUT_BOUND},
    "io-bottleneck": {Class.INPUT_BOUND},
    "low-gpu": {Class.HOST_BOUND},
    "fluctuating-gpu": {Class.HOST_BOUND},
    "small-batch": {Class.BATCH_TOO_SMALL},
    "memory-increase": {Class.MEMORY_GROWTH},
    "unbalanced": {Class.UNBALANCED_GPUS},
    "step-outliers": {Class.PERIODIC_STALL},
    "slow-init": {Class.INITIALIZATION_BOUND},
    "dataloader-slow": {Class.INPUT_BOUND},
    "cpu-only": {Class.BALANCED},
    "no-framework": {Class.INCONCLUSIVE},
}
SIZES = {
    "small": "--minutes 4 --gpus 2",
    "two-nodes": "--minutes 7 --gpus 4 --nodes 2 --steps-per-second 2 --cpus 8 --seed 5",
}


@pytest.mark.parametrize("size", ["small", pytest.param("two-nodes", marks=pytest.mark.long)])
@pytest.mark.parametrize("scenario", EXPECTED)
def test_verdict_of_scenario(scenario, size):
    job = shared_job("--scenario", scenario, SIZES[size])
    verdict = build_report(open_source(job, cache=False)).verdict
    assert verdict.kind in EXPECTED[scenario], verdict.main.headline


def test_headline_states_the_period():
    verdict = build_report(open_source(shared_job("--scenario step-outliers"), cache=False)).verdict
    assert "Every 12 steps" in verdict.main.headline
