"""Charts: their data, their figures, and that saved pages are standalone."""

import re
import traceback
from pathlib import Path

import numpy as np
import pytest

from sm_profiler.analysis import (
    Heatmap,
    MetricsHistogram,
    PandasFrame,
    PandasFrameAnalysis,
    PT_dataloader_analysis,
    StatsBy,
    StepHistogram,
    StepTimelineChart,
    TimelineCharts,
)
from sm_profiler.analysis.charts import (
    bars_of,
    chosen,
    duration_edges,
    heat_rows,
    plain,
    system_series,
    time_annotations,
)
from sm_profiler.analysis.readers import LocalSystemMetricsReader
from sm_profiler.analysis.timeline_charts import MAX_SPENT
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.system_writer import Measurement, SystemWriter
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.source import open_source
from sm_profiler.storage.base import AccessDeniedError
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
END_US = 1_700_000_090_000_000
START_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "job", "--minutes", "1.5", "--nodes", "2", "--gpus", "2", "--cpus", "3", "--steps-per-second", "2")  # fmt: skip


@pytest.fixture(scope="module")
def source(job):
    return open_source(job)


def test_series_and_totals(source):
    system = source.system()
    series = system_series(system)
    assert "CPUUtilization-nodeid:algo-2" in series
    devices = series["CPUUtilization-nodeid:algo-1"]
    assert list(devices) == ["cpu0", "cpu1", "cpu2", "total"]
    mine = system.node.mask("algo-1") & system.dimension.mask("CPUUtilization")
    assert devices["total"][:, 1].mean() == pytest.approx(system.value[mine].mean())
    assert (np.diff(devices["total"][:, 0]) > 0).all()
    together = system_series(system, by_node=False)
    assert (
        len(together["GPUUtilization"]["gpu0"])
        == (system.dimension.mask("GPUUtilization") & system.name.mask("gpu0")).sum()
    )
    assert "total" not in together[""]  # memory and operations a second have no common mean
    assert system_series(SystemColumns.empty()) == {}


def test_selects_names_by_regular_expression():
    assert chosen(["cpu0", "cpu1", "gpu0", "cpu0"], ["cpu", "1"]) == ["cpu0", "cpu1"]
    with pytest.raises(ConfigError, match="regular expression"):
        chosen(["a"], ["("])


def test_time_annotations_are_milliseconds(source):
    events = source.events()
    one = events[events.name.mask("Step:ModeKeys.TRAIN") & (events.step == 3) & events.node.mask("algo-1-0")]
    assert time_annotations(one) == {"Step:ModeKeys.TRAIN_3": pytest.approx(one.duration_us[0] / 1000)}
    spent = time_annotations(events)
    assert list(spent.values()) == sorted(spent.values(), reverse=True)
    assert time_annotations(EventColumns.empty()) == {}


def test_bars_keep_the_longest(source):
    events = source.events()
    names = [events.phase.values[code] for code in events.phase.codes]
    bars = bars_of(events, names, 10)
    assert len(bars.row) == 10
    assert bars.left_out == len(events) - 10
    assert sorted(bars.end_ms - bars.start_ms) == pytest.approx(sorted(events.duration_us / 1e3)[-10:], abs=0.01)


def test_edges_of_equal_durations():
    assert len(duration_edges(np.array([2.0, 2.0]))) == 51


def test_heatmap_rows_are_percent(source):
    rows = heat_rows(system_series(source.system()), [".*"], [".*"])
    assert np.nanmax(rows.values) <= 100 + 1e-9
    assert len(rows.names) == len(rows.values)
    assert heat_rows({}, [".*"], [".*"]).values.shape == (0, 0)


def check_page(path):
    page = path.read_text()
    assert "Bokeh" in page
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=", markup)
    return page


def test_labels_are_not_rendered_as_math():
    # Bokeh would load MathJax from the network for such a label
    assert plain("a$$x$$") == "a$ $x$ $"
    assert plain(r"\[x\] \(y\)") == r"\ [x\] \ (y\)"


def test_timeline_charts(job, tmp_path, capsys):
    charts = TimelineCharts(job, select_dimensions=["CPU", "GPUU"], select_events=["total"], x=50)
    assert len(charts.figures) == 4
    assert "CPUUtilization-nodeid:algo-1_total" in check_page(charts.save(tmp_path / "folder" / "page.html"))
    totals = [charts.system_metrics[f"CPUUtilization-nodeid:algo-{node}"]["total"] for node in (1, 2)]
    times = max(totals, key=len)[:, 0]  # points are counted on the longest chart of CPUs
    spent = charts.find_time_annotations([60, 40])
    printed = capsys.readouterr().out
    assert f"Selected timerange: {times[40]} to {times[60]}" in printed
    assert any(name.startswith("Step:ModeKeys.TRAIN_") for name in spent)
    spent_lines = [line for line in printed.splitlines() if line.startswith("Spent ")]
    assert len(spent_lines) == min(len(spent), MAX_SPENT)
    assert (f"… and {len(spent) - MAX_SPENT:,} more" in printed) == (len(spent) > MAX_SPENT)
    assert f"Spent {next(iter(spent.values()))} ms (cumulative time) in {next(iter(spent))}" in printed
    detailed = charts.plot_detailed_profiler_data([20, 40])
    assert {"worker 0", "worker 2"} <= set(detailed.loading.rows)
    assert "Step:ModeKeys.TRAIN" in detailed.others.rows
    check_page(detailed.save(tmp_path / "detailed.html"))
    assert charts.find_time_annotations([]) == {}
    assert charts.plot_detailed_profiler_data([]) is None
    with pytest.raises(ConfigError, match="are not indices of points"):
        charts.find_time_annotations([-3, 5])


def test_timeline_charts_follow_a_running_job(job, capsys):
    charts = TimelineCharts(
        PandasFrame(job).system_metrics_reader,
        starttime=START_US,
        endtime=START_US + 40_000_000,
        select_events=["cpu1"],
    )
    source = charts.sources["CPUUtilization-nodeid:algo-1"]["cpu1"]
    before = len(source.data["x"])
    charts.update_data(END_US)
    assert len(source.data["x"]) > before
    assert charts.figures[0].x_range.end == pytest.approx(source.data["x"][-1], abs=1000)
    assert "new system metrics events" in capsys.readouterr().out


def test_timeline_charts_of_an_empty_range(job, tmp_path):
    charts = TimelineCharts(job, starttime=0, endtime=1)
    check_page(charts.save(tmp_path / "page.html"))
    assert charts.find_time_annotations([0, 1]) == {}


def test_step_timeline_chart(job, tmp_path):
    chart = StepTimelineChart(job, width=10)
    assert chart.source.data["y"].min() > 0
    assert len(chart.steps.number) == sum(open_source(job).events().name.mask(lambda name: name.startswith("Step")))
    chart.update_data(START_US + 30_000_000)
    assert len(chart.source.data["x"]) < len(StepTimelineChart(job).steps.number)
    check_page(chart.save(tmp_path / "page.html"))
    histogram = StepHistogram(job)
    with pytest.raises(SourceError, match="nothing has been drawn"):
        histogram.save(tmp_path / "none.html")
    histogram.plot(show_workers=True)
    assert {"Step:ModeKeys.TRAIN-nodeid:algo-1-0", "Forward-nodeid:algo-2-3"} <= set(histogram.step_metrics)
    assert not any("SubModule" in name for name in histogram.step_metrics)
    histogram.plot(endtime=START_US + 30_000_000, select_metrics=["Step"], show_workers=False)
    few = sum(map(len, histogram.step_metrics.values()))
    histogram.update_data(END_US)
    assert sum(map(len, histogram.step_metrics.values())) > few
    assert set(histogram.sources) <= set(histogram.step_metrics)
    check_page(histogram.save(tmp_path / "steps.html"))


def test_step_timeline_chart_needs_a_step(tmp_path):
    folder = make_job(tmp_path / "job", "--minutes", "1", "--scenario", "no-framework")
    with pytest.raises(SourceError, match="no step"):
        StepTimelineChart(folder)
    histogram = StepHistogram(folder)
    histogram.plot()
    check_page(histogram.save(tmp_path / "page.html"))


def test_histograms_and_heatmap(job, tmp_path):
    histogram = MetricsHistogram(job)
    histogram.plot(
        endtime=START_US + 40_000_000, select_dimensions=["CPU", "^-nodeid"], select_events=["total", "IOPS"]
    )
    data = histogram.sources["CPUUtilization-nodeid:algo-1"]["total"].data
    counted = data["top"].sum()
    assert counted == len(histogram.system_metrics["CPUUtilization-nodeid:algo-1"]["total"])
    rates = histogram.sources["-nodeid:algo-1"]["IOPS"].data
    assert rates["top"].sum() == len(histogram.system_metrics["-nodeid:algo-1"]["IOPS"])  # more than 100 a second, too
    histogram.update_data(END_US)
    assert histogram.sources["CPUUtilization-nodeid:algo-1"]["total"].data["top"].sum() > counted
    check_page(histogram.save(tmp_path / "histogram.html"))
    heat = Heatmap(job, plot_height=500)
    assert len(heat.rows.names) == 20  # two nodes; 3 cores, 2 GPUs with two dimensions, a total each
    heat.update_data(START_US + 40_000_000)
    check_page(heat.save(tmp_path / "heat.html"))
    with pytest.raises(SourceError, match="cannot be written"):
        heat.save(tmp_path)


def test_the_time_of_the_only_file_means_all_that_is_there(tmp_path):
    """A file of system metrics is named by the start of its minute: a job with a single file was drawn empty."""
    folder = make_job(tmp_path / "job", "--minutes", "0.6")
    reader = LocalSystemMetricsReader(folder)
    latest = reader.get_timestamp_of_latest_available_file()
    histogram = MetricsHistogram(reader)
    histogram.plot(starttime=0, endtime=latest, select_dimensions=["CPU"], select_events=["total"])
    found = histogram.sources["CPUUtilization-nodeid:algo-1"]["total"].data["top"].sum()
    assert found > 10
    histogram.update_data(latest)
    assert histogram.sources["CPUUtilization-nodeid:algo-1"]["total"].data["top"].sum() == found
    assert len(Heatmap(reader, endtime=latest).rows.values[0]) > 10
    assert TimelineCharts(reader, endtime=latest).sources
    assert reader.get_events(0, latest) == []  # as in the former library
    histogram.plot(starttime=0, endtime=10)
    first = reader.get_timestamp_of_first_available_file()
    assert histogram.layout.text.startswith(f"No data in this range. The files are of {first} to {latest + 60_000_000}")


@pytest.mark.parametrize("error", [AccessDeniedError("access denied"), SourceError("the bucket does not exist")])
def test_a_place_that_cannot_be_read_is_one_error(monkeypatch, caplog, error):
    """It was reported to have no profile yet, before two tracebacks of both libraries."""

    def refuse(*_, **__):
        try:
            raise ValueError("botocore")
        except ValueError as cause:
            raise error from cause

    monkeypatch.setattr("sm_profiler.analysis.readers.open_source", refuse)
    with pytest.raises(type(error), match=str(error)) as raised:
        PandasFrame("s3://bucket/job")
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count("Traceback") == 1
    assert "refuse" not in shown
    assert caplog.messages == []


def test_dataloader_analysis_of_a_time_range(job, tmp_path, capsys):
    analysis = PT_dataloader_analysis(job)
    window = "2023-11-14T22:13:20:000000", "2023-11-14T22:14:50:000000"
    check_page(analysis.plot_the_window(*window, select_dimensions=["CPU"]).save(tmp_path / "page.html"))
    slow = analysis.analyze_batchtime(*window, select_events=["Step", "GetNext"], select_dimensions=["GPUU"])
    printed = capsys.readouterr().out
    assert "Median time spent on each batch of data" in printed
    assert slow is not None
    assert "Step:ModeKeys.TRAIN" in printed
    assert "GPUUtilization" in printed
    assert "CPUUtilization" not in printed
    assert analysis.analyze_batchtime(END_US, END_US + 1) is None
    printed = capsys.readouterr().out
    assert "There are no two GetNext calls of a process in this range; those of the job are from 2023-11-14" in printed
    assert "nan" not in printed


def test_patterns_that_match_nothing_are_logged(job, caplog):
    """A typing error gave an empty chart, and nothing else."""
    histogram = MetricsHistogram(job)
    histogram.plot()
    Heatmap(job)
    StepHistogram(job).plot()
    histogram.plot(select_dimensions=["CPUUtilization-nodeid:algo-1"])
    assert caplog.messages == []
    histogram.plot(select_dimensions=["CPUU", "CPUUtilizaton"], select_events=["totl"])
    Heatmap(job, select_events=["gpu9"])
    TimelineCharts(job, select_dimensions=["Nonsense"])
    StepHistogram(job).plot(select_metrics=["Step:ModeKeys.TRIAN"])
    dimension, device, heat, timeline, phase = caplog.messages
    assert (
        dimension
        == "no dimension of the profile matches 'CPUUtilizaton'; did you mean CPUUtilization, GPUUtilization, GPUMemoryUtilization?"
    )
    assert device == "no device of the profile matches 'totl'; did you mean total?"
    assert heat.startswith("no device of the profile matches 'gpu9'; did you mean gpu")
    assert timeline.startswith("no dimension of the profile matches 'Nonsense'; it has Algorithm, CPUUtilization, GPU")
    assert phase.startswith("no phase of the profile matches 'Step:ModeKeys.TRIAN'; did you mean Step:ModeKeys.TRAIN, ")


def test_a_place_without_a_profile_is_logged(tmp_path, caplog):
    assert PandasFrame(tmp_path).get_all_system_metrics().empty
    assert caplog.messages[0] == f"{tmp_path} has no profile yet: what is read from it is empty until there is one"


def test_fetches_are_no_workers(monkeypatch, capsys):
    durations = {"DataLoaderWorker": [900, 1000, 2100], "DataLoaderWorkerFetch": [1] * 20}
    rows = [(name, us, "0") for name, values in durations.items() for us in values]
    pd = pytest.importorskip("pandas")
    events = pd.DataFrame(rows, columns=["framework_metric", "duration_us", "worker_id"])
    events[["start_time", "end_time"]] = "2026-01-01"
    frame = object.__new__(PandasFrame)
    monkeypatch.setattr(
        PandasFrame,
        "get_all_dataloader_metrics",
        lambda _, patterns: events[events["framework_metric"].str.contains("|".join(patterns))],
    )
    slow = PT_dataloader_analysis(frame).analyze_dataloaderWorkers()
    printed = capsys.readouterr().out
    assert "Total number of workers spun off during the training 3\n" in printed
    assert "Median Duration 1000.0 and Maximum duration for worker processes 2100\n" in printed
    assert "for worker processes that are outliers" in printed
    assert slow["duration_us"].tolist() == [2100]


def test_dataloader_analysis_without_events(tmp_path, capsys):
    analysis = PT_dataloader_analysis(make_job(tmp_path / "job", "--minutes", "1", "--scenario", "no-framework"))
    analysis.analyze_dataloaderIter_initialization()
    assert (
        analysis.analyze_dataloaderWorkers()
        is analysis.analyze_dataloader_getnext()
        is analysis.analyze_batchtime()
        is None
    )
    assert capsys.readouterr().out.count("are not present") == 4


@pytest.fixture
def recorded(tmp_path):
    """The folder of a training whose hook also recorded threads, samples and what it costs itself."""
    step = [
        TraceEvent("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", START_US, 900_000, '{"step_num": "0"}'),
        TraceEvent("Forward", "Net", START_US + 1000, 400_000, '{"step_num": "0"}'),
        TraceEvent("sm_profiler/save", "torch.save", START_US + 500_000, 100_000, '{"step_num": "0"}'),
    ]
    own = [
        TraceEvent(f"sm_profiler/{name}", name, START_US + 2000, 600_000, '{"step_num": "0"}')
        for name in ("threads", "samples", "overhead", "profiling", "loop", "operators")
    ]
    writer = TraceWriter(tmp_path, "0-algo-1", start_us=START_US)
    writer.write([*step, *own])
    writer.finish()
    system = SystemWriter(tmp_path, "algo-1")
    for second in range(-1, 4):
        system.write(START_US / 1e6 + second, [Measurement("cpu", "cpu0", "CPUUtilization", 50.0)])
    system.finish()
    return tmp_path


USERS = {"Step:ModeKeys.TRAIN", "Net", "torch.save"}


def test_records_of_the_profiler_are_no_time_of_the_training(recorded):
    """They were listed among the most expensive events, and added to sums."""
    frame = PandasFrame(recorded)
    framework = frame.get_all_framework_metrics()
    assert set(framework["framework_metric"]) == USERS
    assert set(frame.get_latest_data()[1]["framework_metric"]) == USERS
    assert set(frame.get_profiler_data_by_step(0, 0)[1]["framework_metric"]) == USERS
    assert not set(frame.get_framework_metrics_by_timesteps([START_US + 5000, START_US + 10**6])[1]) - USERS
    analysis = PandasFrameAnalysis(frame.get_all_system_metrics(), framework)
    statistics = analysis.get_step_statistics(by=StatsBy.PROCESS)
    assert set(statistics["process"]) == {"Step:ModeKeys.TRAIN", "Forward", "sm_profiler/save"}
    charts = TimelineCharts(recorded)
    assert {name.removesuffix("_0") for name in charts.find_time_annotations([0, 4])} == USERS
    histogram = StepHistogram(recorded)
    histogram.plot(select_metrics=[".*"], show_workers=False)
    assert set(histogram.step_metrics) == {"Step:ModeKeys.TRAIN", "Forward", "sm_profiler/save"}
    names = {event.event_name for event in frame.framework_metrics_reader.get_events(0, 2**62)}
    assert "threads" in names  # the readers have all that is in the files
