"""A detailed window's operators are in the hook's timeline and in the trace that the hook keeps: the notebook has them once."""

import gzip
import json

import dask
import pytest

from sm_profiler.analysis import MergedTimeline, PandasFrame
from sm_profiler.analysis.readers import LocalAlgorithmMetricsReader
from sm_profiler.formats.layout import detailed_folder, metadata_path
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook.convert import operators

START_US = 1_700_000_000_000_000
STEPS = [(5, START_US), (6, START_US + 1000), (-1, START_US + 2000)]
OPERATORS = 4


def window(folder, source, *, converted):
    """Write a window's trace as the hook keeps it, with times finer than a microsecond, and its operators as events."""
    made = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::randn", "pid": 7, "tid": 7, "ts": 100.25 + 400 * at, "dur": 3.4}
        for at in range(OPERATORS)
    ]
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": START_US * 1000, "traceEvents": made}
    path = folder / detailed_folder("pytorch", START_US, 5) / f"{source}.trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    (folder / metadata_path("pytorch", source, START_US, START_US + 2000, 5)).touch()
    writer = TraceWriter(folder, source)
    writer.write([TraceEvent("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", START_US, 1000, '{"step_num":5}')])
    writer.write(operators(trace, STEPS, 7) if converted else ())
    writer.close()


def randn(frame):
    return frame[frame["framework_metric"] == "aten::randn"]


@pytest.fixture
def profile(tmp_path):
    window(tmp_path, "7-algo-1", converted=True)
    return tmp_path


def test_each_operator_of_a_window_is_in_the_frames_once(profile):
    """There were two rows of each: one with its step, and one of the phase `python` with the step -1."""
    pf = PandasFrame(str(profile))
    for found in (pf.get_all_framework_metrics(), pf.get_latest_data()[1], pf.get_all_dataloader_metrics()):
        assert randn(found)["step"].tolist() == [5, 5, 5, 6]
        assert set(randn(found)["process"]) == {"cpu_functions"}
    with dask.config.set(scheduler="synchronous"):
        assert len(randn(pf.to_dask().compute())) == OPERATORS
    events = LocalAlgorithmMetricsReader(str(profile)).get_events(START_US, START_US + 2000)
    assert sum(event.event_name == "aten::randn" for event in events) == OPERATORS


def test_no_sum_counts_an_operator_of_a_window_twice(profile):
    pf = PandasFrame(str(profile))
    moment = START_US + 101
    _, by_name, _ = pf.get_framework_metrics_by_timesteps([moment, moment + 1000])
    assert by_name == {"aten::randn": 3}
    by_phase, _ = pf.get_framework_metrics_by_begin_and_end_timesteps([START_US], [START_US + 2000])
    assert by_phase == {"cpu_functions": 1.0}


def test_the_merged_timeline_has_each_operator_once(profile, tmp_path):
    name = MergedTimeline(str(profile)).merge_timeline(START_US, START_US + 2000)
    with open(name, encoding="utf-8") as file:
        assert sum(event["name"] == "aten::randn" for event in json.load(file)) == OPERATORS


def test_a_trace_whose_operators_are_nowhere_else_is_read(profile):
    window(profile, "8-algo-1", converted=False)
    found = randn(PandasFrame(str(profile)).get_all_framework_metrics())
    assert found.groupby("nodeID").size().to_dict() == {"algo-1-7": OPERATORS, "algo-1-8": OPERATORS}
