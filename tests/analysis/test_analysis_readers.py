"""Readers and parsers of single files: the old library's own expectations, on the same real files, under its names."""

import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

import sm_profiler.analysis
from sm_profiler.analysis import MetricsHistogram, TrainingJob
from sm_profiler.analysis.smdebug_alias import _MODULES, install_as_smdebug
from sm_profiler.errors import SourceError
from sm_profiler.formats.event_objects import event_arguments
from tests.support.jobs import make_job

SAMPLES = Path(__file__).parents[1] / "data/formats"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def old_names(monkeypatch):
    """Provide the old names during one test."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install_as_smdebug()
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "smdebug":
            del sys.modules[name]


def test_every_old_module_can_be_imported():
    for name in _MODULES:
        module = __import__(name, fromlist=["x"])
        assert module.__name__ == name
    import smdebug.pytorch
    from smdebug.core.modes import ModeKeys
    from smdebug.exceptions import NoMoreProfilerData, RuleEvaluationConditionMet
    from smdebug.profiler.analysis.notebook_utils.heatmap import Heatmap
    from smdebug.profiler.analysis.notebook_utils.metrics_histogram import MetricsHistogram
    from smdebug.profiler.analysis.notebook_utils.step_histogram import StepHistogram
    from smdebug.profiler.analysis.notebook_utils.step_timeline_chart import StepTimelineChart
    from smdebug.profiler.analysis.notebook_utils.timeline_charts import TimelineCharts
    from smdebug.profiler.analysis.python_profile_analysis import PyinstrumentAnalysis, cProfileAnalysis
    from smdebug.profiler.analysis.utils import merge_timelines
    from smdebug.profiler.analysis.utils.pandas_data_analysis import PandasFrameAnalysis, Resource, StatsBy
    from smdebug.profiler.analysis.utils.python_profile_analysis_utils import Metrics
    from smdebug.profiler.analysis.utils.pytorch_dataloader_analysis import PT_dataloader_analysis
    from smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS, PYTHONTIMELINE_SUFFIX
    from smdebug.profiler.python_profile_utils import PythonProfileModes, StepPhase
    from smdebug.rules.rule import Rule
    from smdebug.rules.rule_invoker import invoke_rule
    from smdebug.trials.profiler_trial import ProfilerTrial

    ours = sm_profiler.analysis
    assert merge_timelines.MergedTimeline is ours.MergedTimeline
    assert smdebug.pytorch.modes is ModeKeys
    assert (Heatmap, MetricsHistogram, StepHistogram, StepTimelineChart, TimelineCharts) == (
        ours.Heatmap, ours.MetricsHistogram, ours.StepHistogram, ours.StepTimelineChart, ours.TimelineCharts,
    )  # fmt: skip
    assert (PandasFrameAnalysis, Resource, StatsBy) == (ours.PandasFrameAnalysis, ours.Resource, ours.StatsBy)
    assert (PyinstrumentAnalysis, cProfileAnalysis) == (ours.PyinstrumentAnalysis, ours.cProfileAnalysis)
    assert PT_dataloader_analysis is ours.PT_dataloader_analysis
    assert (CONVERT_TO_MICROSECS, PYTHONTIMELINE_SUFFIX) == (1_000_000, "pythontimeline.json")
    assert all(
        (
            NoMoreProfilerData,
            RuleEvaluationConditionMet,
            Metrics,
            PythonProfileModes,
            StepPhase,
            Rule,
            invoke_rule,
            ProfilerTrial,
        )
    )
    with pytest.raises(ImportError, match="mxnet"):
        import smdebug.mxnet
    with pytest.raises(ImportError):
        from smdebug.profiler.utils import nonsense  # noqa: F401
    with pytest.raises(ImportError, match="profiling, not tensors"):
        from smdebug.pytorch import get_collections  # noqa: F401
    assert "PandasFrame" in dir(ours)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ours.nonsense


def test_create_trial_opens_a_profile(job, tmp_path):
    from smdebug.trials import create_trial
    from smdebug.trials.profiler_trial import ProfilerTrial

    trial = create_trial(f"{job} ", profiler=True, output_dir=str(tmp_path), follow=False)
    assert isinstance(trial, ProfilerTrial)
    assert (trial.name, trial.path) == (job.name, str(job))
    with pytest.raises(SourceError, match=r"pass profiler=True .*PandasFrame"):
        create_trial("s3://bucket/tensors")


def test_parses_the_timeline_of_a_hook():
    from smdebug.profiler import SMProfilerEvents
    from smdebug.profiler.utils import TimeUnits, get_node_id_from_tracefilename

    file = str(SAMPLES / "1589314018481947000_1234-testhost_model_timeline.json")
    parser = SMProfilerEvents()
    parser.read_events_from_file(file)
    events = parser.get_all_events()
    assert len(events) == 49
    assert events[10].node_id == get_node_id_from_tracefilename(file)
    assert len(parser.get_events_within_time_range(0, 1589314018.4700, unit=TimeUnits.SECONDS)) == 39
    moments = [datetime.fromtimestamp(at, timezone.utc) for at in (0, 1589314018.4700)]
    assert len(parser.get_events_within_range(*moments)) == 39
    assert parser.get_events_start_time_sorted()[0].start_time == 1589314018458743
    assert parser.get_events_end_time_sorted()[-1].end_time == 1589314018481947
    assert parser.get_process_info(events[0].phase_pid).name == events[0].event_phase
    assert parser.get_processes()
    parser.clear_events()
    assert parser.get_all_events() == []
    with pytest.raises(SourceError, match="cannot be read"):
        parser.read_events_from_file(str(SAMPLES / "nothing.json"))


def test_parses_a_horovod_timeline():
    from smdebug.profiler import HorovodProfilerEvents

    folder = SAMPLES / "horovod_timeline_traces/framework/pevents/2020070206"
    parser = HorovodProfilerEvents()
    parser.read_events_from_file(
        str(folder / "1593673051473228_88359-8c859046be41.ant.amazon.com_horovod_timeline.json")
    )
    assert len(parser.get_all_events()) == 19
    assert len(parser.get_events_within_time_range(1593673051473000, 1593673051473228)) == 12
    assert parser.get_events_start_time_sorted()[0].start_time == 1592860696000713
    assert parser.get_events_end_time_sorted()[-1].end_time == 1593673051473228


def test_parses_traces_of_tensorflow():
    from smdebug.profiler import TensorboardProfilerEvents
    from smdebug.profiler.utils import read_tf_profiler_metadata_file

    (file,) = (SAMPLES / "tfprofiler_timeline_traces").rglob("*.trace.json.gz")
    assert read_tf_profiler_metadata_file(str(file)) == (
        "80807-8c859046be41.ant.amazon.com",
        "1596659864545103",
        "1596659864854168",
    )
    parser = TensorboardProfilerEvents()
    parser.read_events_from_file(str(file))
    assert parser.get_all_events()[0].start_time == 1596659864566410
    assert len(parser.get_all_events()) == 798
    assert parser.get_events_start_time_sorted()[0].start_time - 1596659864545103 == 21307
    last = parser.get_events_end_time_sorted()[-1]
    assert last.end_time - 1596659864545103 == 293205
    assert len(parser.get_processes()) == 2
    assert parser.get_process_info(last.pid).get_thread_info(last.tid).tid == last.tid
    (file,) = (SAMPLES / "tfprofiler_local_missing_metadata").rglob("*.trace.json.gz")
    assert read_tf_profiler_metadata_file(str(file)) == ("", "0", "0")
    assert read_tf_profiler_metadata_file("a.pb") == ("", "0", "0")


@pytest.mark.parametrize(
    ("name", "count", "late"), [("1591160699.algo-1.json", 14, 2), ("1591160699.algo-1.json.corrupt", 13, 1)]
)
def test_parses_a_system_metrics_file(name, count, late):
    from smdebug.profiler.system_profiler_file_parser import ProfilerSystemEvents
    from smdebug.profiler.utils import TimeUnits

    parser = ProfilerSystemEvents()
    parser.read_events_from_file(str(SAMPLES / name))
    assert len(parser.get_all_events()) == count

    def within(*limits):
        return len(parser.get_events_within_time_range(*limits[:2], TimeUnits.SECONDS, *limits[2:]))

    assert within(0, 1591170700.4570) == count
    assert within(0, 1591170700.4570, "cpu") == 4
    assert within(0, 1591167699.9572) == 11
    assert within(1591169699.4579, 2591167699.9572) == late
    assert within(1591169699.4579, 2591167699.9572, "gpu") == late
    assert within(0, 0, "gpu") == 0
    with pytest.raises(SourceError, match="Value"):
        parser.read_event_from_dict({"Type": "cpu", "Dimension": ""})


@pytest.mark.parametrize("keep", [True, False])
def test_readers_return_events_of_a_time_range(keep):
    from smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
    from smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader
    from smdebug.profiler.utils import TimeUnits

    traces = str(SAMPLES / "test_traces")
    assert (
        len(LocalAlgorithmMetricsReader(traces, keep).get_events(1589930980, 1589930995, unit=TimeUnits.SECONDS)) == 4
    )
    events = LocalAlgorithmMetricsReader(str(SAMPLES / "model_timeline_traces"), keep).get_events(
        1590461127873222, 1590461139949971
    )
    assert len(events) == 54
    assert events[0].node_id == "0001"
    reader = LocalAlgorithmMetricsReader(str(SAMPLES / "horovod_timeline_traces"), keep)
    assert len(reader.get_events(1593673051472800, 1593673051473100)) == 15
    assert reader.get_events(0, 2e15, file_suffix_filter=["pythontimeline.json"]) == []
    reader = LocalSystemMetricsReader(traces, use_in_memory_cache=keep)
    assert len(reader.get_events(1591100000, 1692300000, unit=TimeUnits.SECONDS)) == 78
    assert len(reader.get_events(1591100000, 1692300000, TimeUnits.SECONDS, "cpu")) == 68
    assert len(reader.get_events(1591100000, 1591167699, TimeUnits.SECONDS)) == 10
    assert len(reader.get_events(1591748165, 1600000000, TimeUnits.SECONDS)) == 32
    assert reader.get_timestamp_of_first_available_file() == 1591160699000000
    assert reader.get_timestamp_of_latest_available_file() == 1591748160000000


def test_properties_in_file_names():
    from smdebug.core.access_layer.utils import is_s3
    from smdebug.profiler import utils

    assert is_s3("s3://bucket/a/b") == (True, "bucket", "a/b")
    assert is_s3("/a/b") == (False, None, None)

    name = "job/profiler-output/system/incremental/2020060500/1591160699.algo-1.json"
    assert utils.get_node_id_from_system_profiler_filename(name) == "algo-1"
    assert utils.get_utctimestamp_us_since_epoch_from_system_profiler_file(name) == 1591160699000000
    assert utils.get_utctimestamp_us_since_epoch_from_system_profiler_file(name.replace("algo", "lgo")) is None
    assert utils.get_timestamp_from_tracefilename("x/framework/pevents/2020/1593_0-algo-1_model_timeline.json") == 1593
    for time in ("²", "9" * 310, "9" * 5000, "١٢", "-1", "1e9", ""):
        assert (
            utils.get_timestamp_from_tracefilename(f"x/framework/pevents/2020/{time}_0-algo-1_model_timeline.json") == 0
        )
    assert utils.us_since_epoch_to_human_readable_time(1_700_000_000_008_444) == "2023-11-14T22:13:20:008444"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "job", "--minutes 1.5 --gpus 1 --steps-per-second 2")


def test_readers_return_events_of_a_step_range(job):
    from smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
    from smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader

    reader = LocalAlgorithmMetricsReader(str(job))
    steps = [event for event in reader.get_events_by_step(3, 6) if event.event_name == "Step:ModeKeys.TRAIN"]
    assert [int(event.event_args["step_num"]) for event in steps] == [3, 4, 5]
    assert steps[0].process_info.name == "Step:ModeKeys.TRAIN"
    assert steps[0].file_type == "PythontimelineMetrics"
    assert '"ph": "X"' in steps[0].to_json()
    assert reader.get_events_by_step(3, 6, file_suffix_filter=["horovod_timeline.json"]) == []
    assert reader.get_events_by_step(3, 100_000) == []
    assert {event.type for event in LocalSystemMetricsReader(str(job)).get_events_by_step(3, 9, "cpu")} == {"cpu"}


def test_event_arguments_equal_those_of_the_file(job):
    from sm_profiler.source import open_source

    events = open_source(job).events()
    args = event_arguments(events[events.phase.mask("DataLoaderIter")])[0]
    assert args == {"pid": 27, "worker_id": 0, "num_workers": 4, "pin_memory": True}
    args = event_arguments(events[events.phase.mask("cpu_functions")])[0]
    assert args == {"step_num": 5, "tid": 1, "device": "cpu"}


class _Clock:
    """A fake SageMaker client whose job changes over time."""

    def __init__(self, monkeypatch, states):
        self.states, self.slept = list(states), 0
        monkeypatch.setattr(
            "sm_profiler.analysis.readers.describe",
            lambda *_, **__: self.states[min(self.slept, len(self.states) - 1)],
        )
        monkeypatch.setattr("time.sleep", self.sleep)
        self.arrives = lambda: None

    def sleep(self, seconds):
        assert seconds == 10
        self.slept += 1
        self.arrives()


@pytest.fixture
def training_job(monkeypatch, tmp_path):
    """A job whose output is in a folder; test_analysis_notebook.py covers `describe` with the real client."""
    monkeypatch.setattr("sm_profiler.analysis.readers.profiler_output", lambda *_, **__: str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return tmp_path / "out"


def test_waits_for_data(training_job, monkeypatch, job, capsys):
    clock = _Clock(monkeypatch, [{"TrainingJobStatus": "InProgress", "SecondaryStatus": "Starting"}] * 9)

    def arrives():
        if clock.slept == 3:
            for path in job.rglob("*.json"):
                target = training_job / path.relative_to(job)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())

    clock.arrives = arrives
    asked = TrainingJob("job", "us-east-1")
    asked.wait_for_sys_profiling_data_to_be_available()
    assert clock.slept == 3
    asked.wait_for_framework_profiling_data_to_be_available()
    printed = capsys.readouterr().out
    assert printed.count("not available yet") == 1  # once a status
    assert "Profiler data from system is available" in printed
    assert asked.get_systems_metrics_reader().get_events(0, 2e15, event_type="cpu")
    assert asked.get_framework_metrics_reader().get_timestamp_of_latest_available_file() > 0
    assert asked.get_config_and_profiler_s3_output_path() == (None, str(training_job))
    assert "ProfilerConfig" not in printed  # it filled the screen of a notebook
    assert repr(asked).startswith("<TrainingJob job: ")
    assert repr(asked).endswith(f", profile in {training_job}>")


def test_readers_of_a_job_with_data_need_no_wait(training_job, monkeypatch, job):
    _Clock(monkeypatch, [{"TrainingJobStatus": "Completed", "SecondaryStatus": "Completed"}] * 9)
    asked = TrainingJob("job", "us-east-1")
    assert (asked.get_systems_metrics_reader(), asked.get_framework_metrics_reader()) == (None, None)
    with pytest.raises(SourceError, match="which wait_for_sys_profiling_data_to_be_available"):
        MetricsHistogram(asked.get_systems_metrics_reader())
    shutil.copytree(job, training_job, dirs_exist_ok=True)
    assert MetricsHistogram(asked.get_systems_metrics_reader()).last_timestamp > 0
    assert asked.get_framework_metrics_reader().get_timestamp_of_latest_available_file() > 0


def test_shows_the_report_of_the_data_so_far(training_job, monkeypatch, job):
    answer = {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}
    _Clock(monkeypatch, [answer] * 9)
    asked = TrainingJob("job", "us-east-1")
    with pytest.raises(SourceError, match="does not contain a profile"):
        asked.report()
    shutil.copytree(job, training_job, dirs_exist_ok=True)
    shown = asked.report(height=500)
    assert "height: 500px" in shown._repr_html_()
    assert shown.report.metrics.ranks


def test_waiting_ends_with_a_job_without_data(training_job, monkeypatch):
    _Clock(monkeypatch, [{"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed"}])
    with pytest.raises(SourceError, match="ended with status Failed; it has no profiler data") as caught:
        TrainingJob("job", "us-east-1").wait_for_sys_profiling_data_to_be_available()
    assert "profiler data from system: its training has not started (Failed)." in str(caught.value)  # as in a report


def test_missing_region_is_a_source_error(monkeypatch):
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(SourceError, match="region"):
        TrainingJob("job")
