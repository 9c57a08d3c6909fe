"""One pass, the event API and merged partial folds give the same results."""

import copy
import json
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.formats.event_objects import system_events, trace_events
from sm_profiler.rules import ProfilerReport, run_rules, windows
from sm_profiler.rules.base import node_of
from tests.support.rules import MemoryBatch, MemorySource, as_json, differences, make_job, read

EAGER = {
    "CPUBottleneck_patience": 40,
    "CPUBottleneck_threshold": 10,
    "CPUBottleneck_cpu_threshold": 60,
    "IOBottleneck_patience": 40,
    "IOBottleneck_threshold": 1,
    "IOBottleneck_io_threshold": 3,
    "LowGPUUtilization_patience": 70,
    "LowGPUUtilization_window": 90,
    "LowGPUUtilization_threshold_p95": 95,
    "GPUMemoryIncrease_patience": 30,
    "GPUMemoryIncrease_window": 5,
    "GPUMemoryIncrease_increase": 1,
    "BatchSize_patience": 50,
    "BatchSize_window": 40,
    "BatchSize_gpu_threshold_p95": 100,
    "BatchSize_gpu_memory_threshold_p95": 100,
    "LoadBalancing_patience": 20,
    "LoadBalancing_threshold": 0.05,
    "StepOutlier_stddev": 1,
    "StepOutlier_n_outliers": 1,
    "MaxInitializationTime_threshold": 0.5,
    "Dataloader_max_threshold": 40,
}
NUMBERS = count()
jobs = st.fixed_dictionaries(
    {
        "--scenario": st.sampled_from(
            [
                "healthy",
                "cpu-bottleneck",
                "small-batch",
                "memory-increase",
                "step-outliers",
                "slow-init",
                "dataloader-slow",
                "unbalanced",
            ]
        ),
        "--nodes": st.integers(1, 3),
        "--gpus": st.integers(1, 3),
        "--cpus": st.integers(1, 5),
        "--minutes": st.sampled_from([1.5, 3, 4]),
        "--start-epoch": st.integers(1_700_000_000, 1_700_000_060),
        "--seed": st.integers(0, 1000),
        "--steps-per-second": st.sampled_from([2, 9]),
        "--shutdown-seconds": st.sampled_from([2, 70]),
    }
)
RELAXED = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def job_of(tmp_path, options):
    words = [str(word) for pair in options.items() for word in pair]
    return make_job(tmp_path / str(next(NUMBERS)), *words, *(["--horovod"] if options["--seed"] % 2 else []))


def folded(found):
    report = ProfilerReport(**EAGER)
    for window in found:
        report.update(window)
    return report


def assert_same(one, other):
    one, other = as_json(one.results().as_dict()), as_json(other.results().as_dict())
    assert list(one) == list(other)
    found = [each for name in one for each in differences(unordered(one[name]), unordered(other[name]), name)]
    assert not found[:5]


def unordered(value):
    """Sort all keys: their order of appearance is lost when parts of a job are merged."""
    return json.loads(json.dumps(value, sort_keys=True))


@given(jobs, st.floats(0, 1))
@RELAXED
def test_merging_minutes(tmp_path, options, where):
    found = list(windows(read(job_of(tmp_path, options))))
    cut = int(where * len(found))
    first, second, whole = folded(found[:cut]), folded(found[cut:]), folded(found)
    first.merge(second)
    assert_same(first, whole)


@pytest.mark.parametrize("scenario", ["step-outliers", "memory-increase"])
def test_a_copy_goes_its_own_way(tmp_path, scenario):
    """The live page makes its reports from copies of the folds, which share arrays with them."""
    options = ("--scenario", scenario, "--nodes", "2", "--gpus", "2", "--minutes", "4")
    found = list(windows(read(make_job(tmp_path / "job", *options))))
    half = len(found) // 2
    first = folded(found[:half])
    copied = copy.deepcopy(first)
    for window in found[half:]:
        copied.update(window)
    assert_same(copied, folded(found))
    again = copy.deepcopy(first)
    again.results()
    for window in reversed(found[half:]):
        again.update(window)
    again.results()
    assert_same(first, folded(found[:half]))
    for window in found[half:]:
        first.update(window)
    assert_same(first, folded(found))


@given(jobs)
@RELAXED
def test_merging_many_parts_in_reverse(tmp_path, options):
    found = list(windows(read(job_of(tmp_path, options))))
    merged = folded(found[-1:])
    for window in reversed(found[:-1]):
        merged.merge(folded([window]))
    assert_same(merged, folded(found))


@given(jobs.filter(lambda options: options["--nodes"] > 1))
@RELAXED
def test_merging_nodes(tmp_path, options):
    batches = list(read(job_of(tmp_path, options)).batches())
    start_us = min(batch.minute_us for batch in batches)
    parts = []
    for node in {name for batch in batches for name in batch.system.node.values}:
        own = [
            MemoryBatch(
                batch.system[batch.system.node.mask(node)],
                batch.events[batch.events.node.mask(lambda process, node=node: node_of(process) == node)],
                batch.minute_us,
            )
            for batch in batches
        ]
        parts.append(folded(in_windows(own, start_us)))
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    assert_same(merged, folded(in_windows(batches, start_us)))


def in_windows(batches, start_us):
    class Started(MemorySource):
        first_timestamp_us = property(lambda _: start_us)

    source = Started(batches)
    return list(windows(source))


@given(jobs)
@RELAXED
def test_event_objects_give_the_same_results(tmp_path, options):
    """The old API passes lists of objects instead of columns."""
    found = list(windows(read(job_of(tmp_path, options))))
    by_event = ProfilerReport(**EAGER)
    for window in found:
        rows, happenings = system_events(window.new_system), trace_events(window.events)
        by_event.invoke_for_timerange(window.start_us, window.end_us, rows, happenings)
    assert_same(by_event, folded(found))


def test_every_row_counts_exactly_once(tmp_path):
    job = make_job(
        tmp_path, "--minutes", 3.4, "--gpus", 2, "--nodes", 2, "--steps-per-second", 0.2, "--start-epoch", 1_700_000_011
    )
    source = read(job)
    found = list(windows(source))
    everything = read(job)
    assert sum(len(window.new_system) for window in found) == len(everything.system())
    assert sum(len(window.new_events) for window in found) == len(everything.events())
    for window in found:
        inside = (window.system.timestamp * 1e6 >= window.start_us) & (window.system.timestamp * 1e6 <= window.end_us)
        assert inside.all()
        assert np.all((window.events.start_us <= window.end_us) & (window.events.end_us >= window.start_us))


def test_service_results_cannot_be_merged():
    with pytest.raises(ValueError, match="service"):
        ProfilerReport(compat="service").merge(ProfilerReport(compat="service"))


def test_run_rules_equals_folding(tmp_path):
    job = make_job(tmp_path, "--minutes", 3, "--gpus", 2)
    results = run_rules(read(job), parameters=EAGER)
    assert as_json(results.as_dict()) == as_json(folded(windows(read(job))).results().as_dict())
