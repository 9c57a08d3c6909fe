"""Rules on empty, huge, incomplete and invalid jobs."""

import numpy as np
import pytest

from sm_profiler.errors import ConfigError
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.rules import RULES, BatchSize, CPUBottleneck, LoadBalancing, ProfilerReport, StepOutlier, run_rules
from tests.support.rules import MemorySource, as_json, batches, events, samples, source_of, system

NAMES = [rule.name() for rule in RULES]
QUICK = {
    "CPUBottleneck_patience": 10,
    "LowGPUUtilization_patience": 10,
    "LoadBalancing_patience": 10,
    "BatchSize_patience": 10,
}
COMPATS = pytest.mark.parametrize("compat", [None, "service"])


def steps(count, *, every=1.0, length=0.5, node="algo-1-0", at=0.0):
    return [
        (at + index * every, length, "Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", {"step": index, "node": node})
        for index in range(count)
    ]


@COMPATS
def test_job_without_data(compat):
    results = run_rules(MemorySource([]), compat=compat)
    assert not results.broken
    assert not results.fired
    assert list(results.results) == NAMES
    as_json(results.as_dict())
    if compat is None:
        assert {name for name in NAMES if "not_evaluated" in results.as_dict()[name]["Details"]} == set(NAMES)


@COMPATS
@pytest.mark.parametrize(
    "rows",
    [
        [(1.0, "gpu", "gpu0", "GPUUtilization", 5.0)],
        [(1.0, "cpu", "cpu0", "CPUUtilization", 95.0)],
        [(1.0, "memory", "MemoryUsedPercent", "", 5.0)],
        [(1.0, "gpu", "gpu0", "GPUMemoryUtilization", 5.0)],
        [(1.0, "network", "ReceiveBytesPerSecond", "Algorithm", 0.0)],
        [(1.0, "", "", "", 0.0)],
    ],
)
def test_job_with_one_row(compat, rows):
    results = run_rules(source_of(system(rows)), compat=compat)
    assert not results.broken
    assert not results.fired
    as_json(results.as_dict())


@COMPATS
def test_job_with_one_event(compat):
    results = run_rules(source_of(SystemColumns.empty(), events(steps(1))), compat=compat)
    assert not results.broken
    assert not results.fired


def test_load_balancing_needs_two_gpus():
    results = run_rules(source_of(samples(400, gpus=1)), parameters=QUICK)
    assert "one GPU per node" in results.as_dict()["LoadBalancing"]["Details"]["not_evaluated"]


@COMPATS
def test_512_gpus(compat):
    nodes = tuple(f"algo-{number}" for number in range(1, 65))
    rows = samples(130, gpus=8, cores=2, nodes=nodes, every=1.0, use=lambda _, gpu: 95.0 if gpu else 3.0)
    results = run_rules(source_of(rows), parameters=QUICK, compat=compat)
    assert not results.broken
    balance = results.as_dict()["LoadBalancing"]
    assert len(balance["Details"]) == 64
    if compat is None:
        assert balance["RuleTriggered"] == 64 * 7  # the idle GPU differs from every other one of its node
        assert results.results["CPUBottleneck"].datapoints == 64 * 130
        assert list(balance["Details"])[:3] == ["algo-1", "algo-2", "algo-3"]


def test_512_gpus_on_one_node():
    results = run_rules(source_of(samples(30, gpus=512, cores=1)), parameters=QUICK)
    assert not results.broken
    assert results.results["LoadBalancing"].triggered == 0


@COMPATS
@pytest.mark.parametrize("family", ["cpu", "gpu", "memory", "network"])
def test_missing_kind_of_metric(compat, family):
    rows = samples(300)
    results = run_rules(source_of(rows[~rows.type.mask(family)], events(steps(140))), parameters=QUICK, compat=compat)
    assert not results.broken
    as_json(results.as_dict())


@COMPATS
def test_missing_gpu_memory(compat):
    rows = samples(700, use=20.0)
    rows = rows[~rows.dimension.mask("GPUMemoryUtilization")]
    results = run_rules(source_of(rows), parameters=QUICK, compat=compat)
    assert not results.broken
    assert results.results["BatchSize"].triggered == 0


@COMPATS
def test_invalid_values_break_no_rule(compat):
    rows = samples(300)
    value, timestamp = rows.value.copy(), rows.timestamp.copy()
    value[::7], value[::11], value[::13], value[::17], value[::19] = np.nan, np.inf, -19.61, 1e300, -np.inf
    timestamp[5], timestamp[50] = np.nan, np.inf
    odd = SystemColumns(timestamp, value, rows.node, rows.type, rows.name, rows.dimension)
    happenings = events(
        [
            *steps(150),
            (3.0, -2.0, "Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", {"step": -1}),
            (4.0, 1e6, "x" * 10_000, "</script>", {"node": "weird host"}),
            (5.0, float("nan"), "n", "Forward"),
            (6.0, 0.0, "", "", {"node": ""}),
            (7.0, 0.1, "DataLoaderIter", "DataLoaderIter", {"num_workers": 2**31 - 1}),
        ]
    )
    minutes = batches(samples(300))
    minutes[0].system, minutes[0].events = odd, happenings
    results = run_rules(MemorySource(minutes), parameters=QUICK, compat=compat)
    assert not results.broken
    assert list(results.results) == NAMES


@COMPATS
def test_long_stretch_without_data_is_skipped(compat):
    """One row of 1970 and one of 2100."""
    rows = SystemColumns.concat([samples(50), samples(50)])
    timestamp = rows.timestamp.copy()
    timestamp[0], timestamp[-1] = 5.0, 4.1e9
    odd = SystemColumns(timestamp, rows.value, rows.node, rows.type, rows.name, rows.dimension)
    assert not run_rules(source_of(odd), compat=compat).broken


def test_late_rows_count_once_on_arrival():
    rows = samples(1200)
    in_time, late = batches(rows)[:8], batches(rows)[0]
    late_rows = late.system[:40]
    in_time[0].system = in_time[0].system[40:]
    in_time[7].system = SystemColumns.concat([in_time[7].system, late_rows])
    results = run_rules(MemorySource(in_time))
    of_gpu0 = [batch.system.name.mask("gpu0") & batch.system.dimension.mask("GPUUtilization") for batch in in_time]
    assert results.results["LoadBalancing"].datapoints == sum(int(mask.sum()) for mask in of_gpu0)


class TestDifferencesFromTheService:
    """Faults of the service that the default computation does not have."""

    def both(self, rows, happenings=None, **parameters):
        given = {**QUICK, **parameters}
        right = run_rules(source_of(rows, happenings), parameters=given)
        service = run_rules(source_of(rows, happenings), parameters=given, compat="service")
        return right.as_dict(), service.as_dict()

    def test_gpus_are_compared_with_each_other(self):
        rows = samples(400, use=lambda _, gpu: 95.0 if gpu else 3.0)
        right, service = self.both(rows)
        assert right["LoadBalancing"]["RuleTriggered"] == 1
        assert right["LoadBalancing"]["Details"]["algo-1"]["distances"]["gpu0"]["gpu1"] == pytest.approx(
            np.sqrt(np.log(2))
        )
        assert service["LoadBalancing"]["RuleTriggered"] == 0

    def test_slow_start_fires(self):
        rows, happenings = samples(1200), events(steps(10, at=550))
        right, service = self.both(rows, happenings, MaxInitializationTime_threshold=5)
        assert (
            right["MaxInitializationTime"]["RuleTriggered"] == 4
        )  # the windows that ended after 6, 7, 8 and 9 minutes
        assert service["MaxInitializationTime"]["RuleTriggered"] == 0

    def test_batch_size_reports_last_window_and_own_whiskers(self):
        rows = samples(1200, use=lambda sample, _: 10.0 + sample % 7, memory=lambda sample, _: 40.0 + sample % 5)
        right, service = self.both(rows)
        assert right["BatchSize"]["Details"]["last_timestamp"] > service["BatchSize"]["Details"]["last_timestamp"]
        node = right["BatchSize"]["Details"]["algo-1"]
        assert node["gpu0_memory"]["lower"] == 40.0
        assert node["gpu0_memory"]["p25"] - 1.5 * (node["gpu0_memory"]["p75"] - node["gpu0_memory"]["p25"]) < 40
        assert node["cpu"]["p50"] == pytest.approx(30.0)

    def test_memory_increase_compares_adjacent_windows(self):
        rows = samples(1200, memory=lambda sample, _: 20.0 if sample < 1000 else 40.0)
        right, _ = self.both(rows, GPUMemoryIncrease_patience=100)
        found = right["GPUMemoryIncrease"]
        # Ten values before, ten after: 20 points at most; it stays above 5 for 13 samples of each GPU (3..10..., 16).
        assert found["RuleTriggered"] == 2 * 15
        assert found["Details"]["algo-1"]["gpu0"]["increase"] > 5

    def test_others_is_the_time_outside_steps(self):
        right, _ = self.both(samples(400), events(steps(150, every=1.0, length=0.75)))
        phase = right["OverallFrameworkMetrics"]["Details"]["phase"]
        assert phase["others"] == pytest.approx(100 * (149 * 0.25) / (149 + 0.75))

    def test_cpu_and_gpu_labels_are_not_swapped(self):
        operators = [(index * 0.5, 0.4, "op", "gpu_functions-dev:0") for index in range(300)]
        operators += [(index * 0.5, 0.1, "op", "cpu_functions") for index in range(300)]
        right, service = self.both(samples(400, use=1.0, cpu=99.0), events(operators))
        for found in (right, service):
            assert found["CPUBottleneck"]["RuleTriggered"]
        assert right["CPUBottleneck"]["Details"]["ratio"]["gpu_functions-dev:0"] > 60
        assert service["CPUBottleneck"]["Details"]["ratio"]["gpu_functions-dev:0"] < 40

    def test_last_minute_counts(self):
        right, service = self.both(samples(200))
        assert right["CPUBottleneck"]["Datapoints"] == 200
        assert service["CPUBottleneck"]["Datapoints"] == 120

    def test_step_across_two_windows_counts_once(self):
        happenings = events([*steps(250, every=0.7, length=0.69)])
        right, service = self.both(samples(600), happenings)
        assert right["StepOutlier"]["Datapoints"] == 250
        assert service["StepOutlier"]["Datapoints"] > 250

    def test_step_outlier_reports_every_phase(self):
        evaluation = [
            (600.0 + index * 0.3, 0.2, "Step:ModeKeys.EVAL", "Step:ModeKeys.EVAL", {"step": index})
            for index in range(150)
        ]
        right, service = self.both(samples(1600), events([*steps(150), *evaluation]))
        phases = [each["phase"] for each in right["StepOutlier"]["Details"]["step_details"].values()]
        assert phases == ["Step:ModeKeys.EVAL", "Step:ModeKeys.TRAIN"]
        assert len(service["StepOutlier"]["Details"]["step_details"]) == 1

    def test_bottleneck_counts_one_data_point_per_node_and_sample(self):
        rows = samples(300, nodes=("algo-1", "algo-2"), jitter=0.03)  # reading the GPUs is slow
        right, service = self.both(rows)
        assert right["CPUBottleneck"]["Datapoints"] == 600
        assert service["CPUBottleneck"]["Datapoints"] != 480

    def test_few_workers_do_not_fire_if_the_loop_does_not_wait(self):
        def loading(wait):
            return [
                (
                    index * 1.0,
                    wait,
                    "_MultiProcessingDataLoaderIter::GetNext",
                    "DataLoaderIter",
                    {"num_workers": 1, "pin_memory": 0},
                )
                for index in range(100)
            ]

        right, service = self.both(samples(400, cores=8), events(loading(0.01)))
        assert right["Dataloader"]["RuleTriggered"] == 0
        assert service["Dataloader"]["RuleTriggered"] == 1
        right, _ = self.both(samples(400, cores=8), events(loading(0.6)))
        assert right["Dataloader"]["RuleTriggered"] == 1
        assert right["Dataloader"]["Details"]["waiting_share"]["algo-1"] == pytest.approx(0.6)

    @pytest.mark.parametrize("every", [1, 4])
    def test_waits_outside_of_a_short_dataloader_window_are_judged(self, every):
        """The default window is that of a step, whose events are too few: the rule was silent."""
        loader = ("_MultiProcessingDataLoaderIter::GetNext", "DataLoaderIter")
        rows = [(7.0, 0.5, *loader, {"step": 7, "num_workers": 1})]
        rows += [
            (index * 1.0, 0.6, "DataLoaderWait", "DataLoaderWait", {"step": index}) for index in range(0, 100, every)
        ]
        right, _ = self.both(samples(400, cores=8), events(rows))
        assert right["Dataloader"]["RuleTriggered"] == 1
        assert right["Dataloader"]["Datapoints"] == 100 // every
        assert right["Dataloader"]["Details"]["waiting_share"]["algo-1"] == pytest.approx(0.6)
        right, _ = self.both(samples(400, cores=8), events(rows[1:]))
        assert right["Dataloader"]["RuleTriggered"] == 0
        assert "number of workers was not recorded" in right["Dataloader"]["Details"]["not_evaluated"]
        assert right["Dataloader"]["Details"]["waiting_share"]["algo-1"] == pytest.approx(0.6)


class TestParameters:
    def test_strings_are_converted(self):
        rule = CPUBottleneck(threshold="40", patience="5.0")
        assert (rule.parameters.threshold, rule.parameters.patience) == (40, 5)
        assert rule.report["RuleParameters"] == "threshold:40\ncpu_threshold:90\ngpu_threshold:10\npatience:5"

    def test_service_has_its_own_default_threshold(self):
        assert LoadBalancing().report["RuleParameters"] == "threshold:0.5\npatience:1000"
        assert LoadBalancing(compat="service").report["RuleParameters"] == "threshold:0.2\npatience:1000"

    def test_step_outlier_accepts_threshold_for_stddev(self):
        assert StepOutlier(threshold="4").report["RuleParameters"] == "threshold:4\nmode:None\nn_outliers:10\nstddev:4"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: CPUBottleneck(threshold=101), "CPUBottleneck: threshold must be a valid percentile!"),
            (lambda: CPUBottleneck(threshold="many"), "CPUBottleneck: threshold must be a number, not 'many'"),
            (lambda: CPUBottleneck(threshold=float("nan")), "CPUBottleneck: threshold must be a number, not 'nan'"),
            (lambda: CPUBottleneck(patience=0), "CPUBottleneck: patience must be a positive integer!"),
            (lambda: CPUBottleneck(patience=1.5), "CPUBottleneck: patience must be a positive integer!"),
            (lambda: BatchSize(windows=3), "BatchSize has no parameter 'windows'"),
            (lambda: StepOutlier(mode=7), "StepOutlier: mode must be a string"),
            (lambda: CPUBottleneck(compat="aws"), 'compat is None or "service"'),
            (lambda: CPUBottleneck(scan_interval_us=-1), "scan_interval_us must be a positive integer!"),
            (lambda: CPUBottleneck(scan_interval_us="10"), "scan_interval_us must be at least 100000"),
            (lambda: CPUBottleneck(threshold=10**400), "CPUBottleneck: threshold must be a number"),
            (lambda: StepOutlier(mode=["x"]), "StepOutlier: mode must be a string"),
            (lambda: ProfilerReport(**{"no\nrule": 1}), r"Key (no\nrule) does not follow naming scheme"),
            (lambda: ProfilerReport(CPUBottleneck=1), "does not follow naming scheme: <rule_name>_<parameter_name>"),
            (lambda: ProfilerReport(Cpu_threshold=1), "invalid rule name!"),
            (lambda: ProfilerReport(cpubottleneck_patience="x"), "CPUBottleneck: patience must be a number"),
        ],
    )
    def test_errors_are_one_line(self, make, message):
        with pytest.raises(ConfigError) as caught:
            make()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_rule_names_ignore_case(self):
        report = ProfilerReport(CpUbOtTlEnEcK_threshold="7", opt_out_telemetry="true")
        assert report.rules["CPUBottleneck"].parameters.threshold == 7


def test_report_without_windows():
    report = ProfilerReport()
    assert report.results()
    assert EventColumns.empty().start_us.shape == (0,)
