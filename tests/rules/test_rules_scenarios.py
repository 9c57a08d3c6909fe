"""Each rule fires in the scenarios of make_job that it is made for, and in no others."""

import pytest

from sm_profiler.rules import RULES, run_rules
from tests.support.rules import as_json, make_job, read

PATIENT = {  # ten minutes have 1200 samples
    "CPUBottleneck_patience": 200,
    "IOBottleneck_patience": 200,
    "LowGPUUtilization_patience": 200,
    "LowGPUUtilization_window": 200,
    "GPUMemoryIncrease_patience": 200,
    "BatchSize_patience": 200,
    "BatchSize_window": 200,
    "LoadBalancing_patience": 200,
    "MaxInitializationTime_threshold": 4,
}
# scenario → rules that have to fire, rules that may fire
SCENARIOS = {
    "healthy": (set(), set()),
    "cpu-bottleneck": ({"CPUBottleneck", "LowGPUUtilization"}, set()),
    "io-bottleneck": ({"IOBottleneck", "LowGPUUtilization"}, set()),
    "low-gpu": ({"LowGPUUtilization"}, set()),
    "fluctuating-gpu": ({"LowGPUUtilization"}, set()),
    "small-batch": ({"BatchSize", "LowGPUUtilization"}, set()),
    "memory-increase": ({"GPUMemoryIncrease"}, set()),
    "unbalanced": ({"LoadBalancing", "LowGPUUtilization"}, set()),
    "step-outliers": ({"StepOutlier"}, set()),
    "slow-init": ({"MaxInitializationTime"}, {"LowGPUUtilization", "BatchSize", "GPUMemoryIncrease"}),
    "dataloader-slow": ({"Dataloader", "LowGPUUtilization"}, set()),
    "cpu-only": (set(), set()),
    "no-framework": (set(), {"LowGPUUtilization"}),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def judged(request, tmp_path_factory):
    job = make_job(
        tmp_path_factory.mktemp("job"),
        "--scenario",
        request.param,
        "--gpus",
        2,
        "--cpus",
        8,
        "--minutes",
        10,
        "--seed",
        3,
    )
    return request.param, run_rules(read(job), parameters=PATIENT)


def test_expected_rules_fire(judged):
    scenario, results = judged
    must, may = SCENARIOS[scenario]
    assert not results.broken
    assert must <= set(results.fired) <= must | may


def test_rules_without_data_report_why(judged):
    scenario, results = judged
    silent = {name for name, each in results.results.items() if each.not_evaluated}
    if scenario == "cpu-only":
        assert {
            "CPUBottleneck",
            "IOBottleneck",
            "LowGPUUtilization",
            "GPUMemoryIncrease",
            "BatchSize",
            "LoadBalancing",
        } == silent
    elif scenario == "no-framework":
        assert silent == {"StepOutlier", "Dataloader", "OverallFrameworkMetrics", "MaxInitializationTime"}
    else:
        assert not silent
    as_json(results.as_dict())


def test_every_rule_fires_in_a_scenario():
    fire = set().union(*(must for must, _ in SCENARIOS.values()))
    assert fire == {rule.name() for rule in RULES} - {"OverallSystemUsage", "OverallFrameworkMetrics"}
