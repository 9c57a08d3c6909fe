"""Results with compat="service" against those of the reference implementation."""

import json
import shlex

import pytest

from sm_profiler.rules import run_rules
from tests.support.rules import DATA, as_json, differences, make_job, read

CASES = sorted(path.name for path in DATA.iterdir() if path.is_dir())

SERVICE_RULES = {  # rules that the managed service had
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "StepOutlier",
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    folder = DATA / request.param
    parameters = folder / "parameters.json"
    job = make_job(tmp_path_factory.mktemp("job"), *shlex.split((folder / "command.txt").read_text()))
    given = json.loads(parameters.read_text()) if parameters.exists() else {}
    return folder, run_rules(read(job), parameters=given, compat="service"), job


def test_service_results_match_the_reference(case):
    folder, results, _ = case
    assert not results.broken
    expected = {path.stem: json.loads(path.read_text()) for path in (folder / "expected").glob("*.json")}
    assert set(expected) == SERVICE_RULES <= set(results.results)
    found = {name: differences(as_json(results.as_dict()[name]), expected[name])[:5] for name in expected}
    assert not {name: each for name, each in found.items() if each}


def test_report_keys_are_in_order(case):
    folder, results, _ = case
    reports = results.as_dict()
    for result in reports.values():
        assert list(result) == ["RuleTriggered", "Violations", "Details", "Datapoints", "RuleParameters"]
    assert json.dumps(reports["LoadBalancing"]) == (folder / "expected/LoadBalancing.json").read_text().strip()


def test_default_results_differ_from_the_service(case):
    folder, service, job = case
    parameters = folder / "parameters.json"
    right = run_rules(read(job), parameters=json.loads(parameters.read_text()) if parameters.exists() else None)
    assert not right.broken
    as_json(right.as_dict())  # serializable
    assert right.results["CPUBottleneck"].datapoints != service.results["CPUBottleneck"].datapoints


def test_running_job_is_evaluated_up_to_the_last_complete_window(tmp_path):
    """A window is evaluated once its end has come; a finished job's last window need only have begun."""
    words = ("--minutes", 4, "--gpus", 1, "--shutdown-seconds", 90, "--start-epoch", 1_700_000_040)
    finished = make_job(tmp_path / "finished", *words)
    running = make_job(tmp_path / "running", *words, "--no-end-marker")
    found = [run_rules(read(job), compat="service").results["LoadBalancing"].datapoints for job in (finished, running)]
    # The last step ends about 150 s after the start: the window from 120 s on has begun by then, and not ended.
    assert found == [359, 239]  # the first sample comes a tick after the start
