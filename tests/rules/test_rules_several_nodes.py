"""compat="service" on three nodes and more, against a plain computation event by event."""

import shlex

import naive_service
import pytest

from sm_profiler.errors import ConfigError
from sm_profiler.rules import BatchSize, CPUBottleneck, GPUMemoryIncrease, LowGPUUtilization, ProfilerReport, run_rules
from tests.support.rules import as_json, events, make_job, read, samples, source_of

PATIENT = {rule: {"patience": 200} for rule in naive_service.LIMITS}
IMPATIENT = {  # thresholds that nearly every sample passes: most details
    "CPUBottleneck": {"threshold": 1, "cpu_threshold": 30, "gpu_threshold": 95, "patience": 50},
    "IOBottleneck": {"threshold": 1, "io_threshold": 1, "gpu_threshold": 95, "patience": 50},
    "LowGPUUtilization": {"threshold_p95": 99, "threshold_p5": 80, "window": 60, "patience": 50},
    "GPUMemoryIncrease": {"increase": 1, "patience": 50, "window": 5},
    "BatchSize": {"cpu_threshold_p95": 99, "gpu_threshold_p95": 99, "gpu_memory_threshold_p95": 99, "window": 60}
    | {"patience": 50},
}
JOBS = [
    ("--scenario cpu-bottleneck --nodes 3 --gpus 2 --cpus 4 --interval-ms 200 --minutes 3 --seed 31", PATIENT),
    ("--scenario io-bottleneck --nodes 3 --gpus 2 --cpus 4 --interval-ms 200 --minutes 3 --seed 32", PATIENT),
    ("--scenario cpu-bottleneck --nodes 4 --gpus 1 --cpus 2 --interval-ms 100 --minutes 3 --seed 33", IMPATIENT),
    ("--scenario io-bottleneck --nodes 5 --gpus 1 --cpus 2 --interval-ms 100 --minutes 2.5 --seed 34", IMPATIENT),
    ("--scenario small-batch --nodes 3 --gpus 2 --cpus 2 --minutes 4 --start-epoch 1700000001 --seed 35", IMPATIENT),
    ("--scenario memory-increase --nodes 4 --gpus 2 --cpus 2 --minutes 4 --horovod --seed 36", IMPATIENT),
    ("--scenario unbalanced --nodes 3 --gpus 4 --cpus 2 --minutes 3 --start-epoch 1700002700 --seed 37", IMPATIENT),
    ("--scenario step-outliers --nodes 3 --gpus 1 --cpus 2 --minutes 5 --shutdown-seconds 100 --seed 38", PATIENT),
    ("--scenario no-framework --nodes 12 --gpus 1 --cpus 1 --minutes 3 --interval-ms 300 --seed 39", IMPATIENT),
    ("--scenario fluctuating-gpu --nodes 6 --gpus 1 --cpus 1 --minutes 3 --interval-ms 200 --seed 40", IMPATIENT),
]


def compare(job, given):
    """Compare the results of a job's folder; return the results."""
    parameters = {f"{rule}_{name}": value for rule, values in given.items() for name, value in values.items()}
    found = run_rules(read(job), parameters=parameters, compat="service")
    assert not found.broken
    for rule, (triggered, violations, datapoints, details) in naive_service.evaluate(job, **given).items():
        one = as_json(found.as_dict()[rule])
        assert (rule, one["RuleTriggered"], one["Violations"], one["Datapoints"]) == (
            (rule, triggered, violations, datapoints)
        )
        shown = one["Details"]
        if rule == "StepOutlier":
            shown = {
                process: {name: each[name] for name in ("phase", "number_of_outliers", "step_numbers")}
                for process, each in shown["step_details"].items()
            }
        assert {key: shown.get(key) for key in details} == approximately(details), rule
    return found.as_dict()


def approximately(value):
    if isinstance(value, dict):
        return {key: approximately(one) for key, one in value.items()}
    return pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value


def test_devices_of_all_nodes_in_the_same_moment_count(tmp_path):
    rows = samples(300, gpus=2, cores=3, use=5.0, cpu=95.0, wait=60.0, nodes=("algo-1", "algo-2", "algo-3"))
    results = run_rules(source_of(rows, events([])), parameters={"CPUBottleneck_patience": 10}, compat="service")
    for rule in ("CPUBottleneck", "IOBottleneck"):
        counts = list(results.as_dict()[rule]["Details"]["bottlenecks"].values())
        assert counts
        assert all(each == {"GPUs": 6, "CPUs": 9} for each in counts)


def test_three_nodes_equal_the_rules_event_by_event(tmp_path):
    words = "--scenario cpu-bottleneck --nodes 3 --gpus 1 --cpus 1 --interval-ms 200 --minutes 2 --seed 30"
    compare(make_job(tmp_path, *shlex.split(words)), {rule: {"patience": 100} for rule in PATIENT})


@pytest.mark.long
@pytest.mark.parametrize(("words", "given"), JOBS, ids=[words.split()[1] + words[-3:] for words, _ in JOBS])
def test_many_nodes_equal_the_rules_event_by_event(tmp_path, words, given):
    results = compare(make_job(tmp_path, *shlex.split(words)), given)
    if "bottleneck" in words.split()[1]:
        sizes = results["CPUBottleneck" if "cpu-" in words else "IOBottleneck"]["Details"]["bottlenecks"].values()
        per_node = int(words.split()[words.split().index("--gpus") + 1])
        assert any(each["GPUs"] > per_node for each in sizes)  # nodes that were sampled in the same microsecond


class TestParameters:
    @pytest.mark.parametrize(
        ("rule", "values"),
        [
            (CPUBottleneck, {"threshold": 101}),
            (CPUBottleneck, {"threshold": "-5", "patience": 0}),
            (BatchSize, {"gpu_threshold_p95": "101", "window": 0}),
            (GPUMemoryIncrease, {"increase": -1}),
        ],
    )
    def test_the_container_takes_what_the_sdk_refuses(self, rule, values):
        with pytest.raises(ConfigError, match=r"must be a (valid percentile|positive integer)!"):
            rule(**values)
        shown = rule(compat="service", **values).report["RuleParameters"].split("\n")
        assert {f"{name}:{value}" for name, value in values.items()} <= set(shown)
        ProfilerReport(compat="service", **{f"{rule.__name__}_{name}": value for name, value in values.items()})

    @pytest.mark.parametrize(
        "values", [{"threshold": "many"}, {"patience": 1.5}, {"patience": "x"}, {"threshold": float("inf")}]
    )
    def test_no_option_makes_a_number_of_a_word(self, values):
        with pytest.raises(ConfigError):
            CPUBottleneck(compat="service", **values)

    def test_a_threshold_above_all_values_never_fires(self):
        rows = samples(300, use=5.0, cpu=99.0)
        for threshold, triggered in ((99, True), (101, False)):
            given = {"CPUBottleneck_threshold": threshold, "CPUBottleneck_patience": 10}
            results = run_rules(source_of(rows), parameters=given, compat="service")
            assert bool(results.results["CPUBottleneck"].triggered) is triggered

    def test_a_window_of_none_is_all_values(self):
        rows = samples(400, gpus=1, use=lambda index, _: 90.0 if index < 40 else 5.0)
        given = {"LowGPUUtilization_patience": 10, "LowGPUUtilization_window": 0}
        details = run_rules(source_of(rows), parameters=given, compat="service").results["LowGPUUtilization"].details
        assert details["algo-1"]["gpu0"]["gpu_max"] == 90
        with pytest.raises(ConfigError, match="window must not be negative"):
            LowGPUUtilization(compat="service", window=-1)
