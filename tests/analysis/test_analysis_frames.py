"""DataFrames: their use in notebooks, and results that differ from the old library's because those were wrong."""

import json
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.analysis import PandasFrame, PandasFrameAnalysis, Resource, StatsBy
from sm_profiler.analysis.frames import dataloader_frame, first_rows, framework_frame, steps_first, system_frame
from sm_profiler.analysis.readers import sampling_interval_us, tick_times
from sm_profiler.analysis.times import (
    TimeUnits,
    convert_utc_timestamp_to_microseconds,
    microseconds,
    text_time,
    text_times,
)
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
START_US = 1_700_000_000_000_000


def events(*rows):
    """Make columns from rows of (name, start, duration) and a dictionary of other values."""
    full = [{"phase": name, "node": "algo-1-0", "kind": "pythontimeline", "step": -1, "pid": 7, "tid": -1, "args": "", **(rest[0] if rest else {}), "name": name, "start": start, "duration": duration} for name, start, duration, *rest in rows]  # fmt: skip

    def text(key):
        return Category.of(row[key] for row in full)

    def numbers(key, kind=np.int64):
        return np.array([row.get(key, -1) for row in full], kind)

    return EventColumns(
        numbers("start", np.float64), numbers("duration", np.float64), text("name"), text("phase"), text("node"), text("kind"),
        numbers("step"), numbers("pid"), numbers("tid"), numbers("worker_id", np.int32), numbers("num_workers", np.int32),
        numbers("pin_memory", np.int8), text("args"), numbers("track"),
    )  # fmt: skip


def system(*rows):
    """Make columns from rows of (seconds, value, type, name, dimension) and a node."""
    columns = list(zip(*((*row, "algo-1")[:6] for row in rows), strict=True))
    times, values = (np.array(column, np.float64) for column in columns[:2])
    kind, name, dimension, node = (Category.of(column) for column in columns[2:])
    return SystemColumns(times, values, node, kind, name, dimension)


@settings(deadline=None)
@given(st.lists(st.integers(0, 253_402_300_799_999_999), max_size=20))
def test_formats_times(times):
    expected = []
    for time in times:
        seconds, micros = divmod(time, 1_000_000)
        expected.append(
            f"{datetime.fromtimestamp(seconds, timezone.utc).strftime('%Y-%m-%dT%H:%M:%S').zfill(19)}:{micros:06d}"
        )
    assert text_times(np.array(times, np.int64)).to_pylist() == expected


def test_formatted_time_is_rounded_and_clipped_to_the_calendar():
    assert text_time(1_700_000_000_008_443.6) == "2023-11-14T22:13:20:008444"
    assert text_time(-5) == "1970-01-01T00:00:00:000000"
    assert text_time(10**18) == "9999-12-31T23:59:59:999999"


@settings(deadline=None)
@given(st.integers(0, 4_000_000_000_000_000))
def test_times_survive_a_round_trip(time):
    assert microseconds(text_time(time)) == time
    assert microseconds(time) == time


def test_accepts_times_in_other_forms():
    assert microseconds(datetime(2023, 11, 14, 22, 13, 20, 8444)) == 1_700_000_000_008_444  # noqa: DTZ001 - UTC by default
    assert microseconds(pd.Timestamp("2023-11-14T22:13:20.008444")) == 1_700_000_000_008_444
    assert convert_utc_timestamp_to_microseconds(1.5, TimeUnits.SECONDS) == 1_500_000
    for wrong in ("yesterday", None):
        with pytest.raises(SourceError):
            microseconds(wrong)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), st.sampled_from([0.0, 1.5])), max_size=30))
def test_first_rows_are_those_that_pandas_keeps(rows):
    columns = [np.array([row[0] for row in rows], np.int64), Category.of(row[1] for row in rows), np.array([row[2] for row in rows], np.float64)]  # fmt: skip
    kept = first_rows(*columns)
    expected = np.flatnonzero(~pd.DataFrame(rows, columns=["a", "b", "c"]).duplicated())
    assert (np.arange(len(rows)) if kept is None else kept).tolist() == expected.tolist()


def test_distinct_rows_with_equal_hashes_are_kept():
    # So many rows have some twenty pairs with equal hashes of 32 bits.
    times = np.unique(np.random.default_rng(3).integers(0, 1 << 62, 400_000))
    assert first_rows(times) is None
    assert first_rows(np.concatenate([times, times[:5]])).tolist() == list(range(len(times)))


def test_duplicates_are_dropped_and_rows_renumbered():
    frame = framework_frame(events(("a", START_US, 5), ("a", START_US, 5), ("b", START_US, 5)), START_US)
    assert frame["framework_metric"].tolist() == ["a", "b"]
    assert frame.index.tolist() == [0, 1]
    frame = system_frame(
        system((1.0, 2.0, "cpu", "cpu0", "CPUUtilization"), (1.0, 2.0, "cpu", "cpu0", "CPUUtilization"))
    )
    assert len(frame) == 1


def test_name_bytes_and_process_come_from_the_arguments():
    frame = framework_frame(
        events(
            ("op", START_US, 5, {"args": '{"layer_name":"conv","bytes_fetched":128}'}),
            ("op", START_US, 5, {"args": '{"name":"dense"}', "pid": -1, "track": 3}),
            ("op", START_US, 5, {"args": '{"names":1}', "phase": "cpu_functions", "tid": 9, "step": 4}),
            ("mark", START_US, 0, {"args": '{"ph":"i"}'}),
        )
    )
    assert frame["framework_metric"].tolist() == ["conv", "dense", "op"]
    assert frame["bytes"].tolist() == [128, -1, -1]
    assert frame["pid"].tolist() == [7, 3, 7]
    assert frame["tid"].tolist() == [-1, -1, 9]
    assert frame["step"].tolist() == [-1, -1, 4]
    assert frame["process"].tolist() == ["op", "op", "cpu_functions"]


def test_frames_are_writable():
    trace, measured = (
        events(("a", START_US, 5.5), ("b", START_US, 5)),
        system((1.0, 2.0, "cpu", "cpu0", "CPUUtilization")),
    )
    for columns in (trace, measured):  # as a copy on disk is mapped into memory
        for field in columns.__attrs_attrs__:
            array = getattr(columns, field.name)
            getattr(array, "codes", array).flags.writeable = False
    for frame in (framework_frame(trace), dataloader_frame(trace), system_frame(measured)):
        for column in frame.columns:
            frame.loc[0, column] = frame[column].iloc[-1]
    assert measured.value.tolist() == [2.0]


def test_empty_frames_have_the_right_types():
    frame = system_frame(SystemColumns.empty())
    assert frame["system_metric"].str.match("gpu").sum() == 0
    assert len(framework_frame(EventColumns.empty())) == 0


def test_text_columns_support_what_notebooks_use():
    frame = system_frame(
        system(
            (1.0, 2.0, "cpu", "cpu0", "CPUUtilization"),
            (1.0, 95.0, "gpu", "gpu0", "GPUUtilization"),
            (1.5, 7.0, "gpu", "gpu0", "GPUUtilization"),
        )
    )
    gpus = frame[frame["system_metric"].str.match("gpu")]
    joined = gpus.merge(frame[frame["system_metric"].str.match("cpu")], on="timestamp", how="inner")
    assert joined["system_metric_x"].tolist() == ["gpu0"]
    assert frame[frame["timestamp"] < "1970-01-01T00:00:01:2"]["value"].tolist() == [2.0, 95.0]
    assert max(frame["timestamp"]) == "1970-01-01T00:00:01:500000"
    assert frame.groupby("system_metric")["value"].mean().to_dict() == {"cpu0": 2.0, "gpu0": 51.0}
    assert frame.iloc[[2, 0], :]["type"].tolist() == ["gpu", "cpu"]
    frame.loc[0, "type"] = "other"
    assert frame["type"].unique().tolist() == ["other", "gpu"]


def test_metrics_of_one_tick_share_one_time():
    rows = []
    for node, phase in (
        ("algo-1", 0.2499),
        ("algo-2", 0.2501),
    ):  # either side of the middle between two multiples of 0.5
        for tick in range(20):
            at = 1_700_000_000 + tick * 0.5 + phase
            rows += [
                (at, 1.0, "memory", "MemoryUsedPercent", "", node),
                (at + 0.003, 2.0, "gpu", "gpu0", "GPUUtilization", node),
            ]
    columns = system(*rows)
    assert sampling_interval_us(columns) == 500_000
    ticks = tick_times(columns)
    assert len(np.unique(ticks)) in {20, 21}
    assert (ticks[0::2] == ticks[1::2]).all()
    assert (ticks % 500_000 == 0).all()
    assert np.abs(ticks - columns.timestamp * 1e6).max() <= 260_000


def test_ticks_of_unusual_intervals():
    for interval in (0.1, 0.2, 1, 5, 60, 0.75):
        columns = system(
            *((1_700_000_000 + tick * interval, 1.0, "cpu", "cpu0", "CPUUtilization") for tick in range(9))
        )
        assert sampling_interval_us(columns) == round(interval * 1e6)
    assert sampling_interval_us(SystemColumns.empty()) == 100_000
    assert tick_times(SystemColumns.empty()).tolist() == []


def test_steps_come_before_events_inside_them():
    train, forward, load = "Step:ModeKeys.TRAIN", "Forward", "DataLoaderIter"
    columns = events(
        (load, 100, 10), (load, 110, 10), (forward, 120, 5, {"step": 0}), (train, 120, 50, {"step": 0}), (load, 170, 1),
        (forward, 171, 5, {"step": 1}), (train, 171, 50, {"step": 1}), (train, 121, 50, {"step": 0, "node": "algo-1-1"}),
    )  # fmt: skip
    ordered = columns[steps_first(columns)]
    names, steps, nodes = ordered.name.decode().tolist(), ordered.step.tolist(), ordered.node.decode().tolist()
    assert names == [load, train, train, load, forward, load, train, forward]
    assert steps[1:3] == [0, 0]
    assert nodes[1:3] == ["algo-1-0", "algo-1-1"]
    assert steps_first(EventColumns.empty()).tolist() == []


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(
        tmp_path_factory.mktemp("job") / "job",
        "--scenario cpu-bottleneck --minutes 1.5 --gpus 2 --cpus 2 --steps-per-second 2",
    )


def test_latest_data_grows_with_the_job(job, tmp_path):
    live = tmp_path / "live"
    files = sorted(job.rglob("*.json"))
    later = set(files[1::2])

    def bring(some):
        for path in some:
            target = live / path.relative_to(job)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())

    live.mkdir()
    pf = PandasFrame(live)  # nothing there yet
    assert [len(frame) for frame in pf.get_latest_data()] == [0, 0]
    bring(path for path in files if path not in later)
    first = pf.get_latest_data()
    bring(later)
    (live / "system/training_job_end.ts").touch()
    last = pf.get_latest_data()
    whole = PandasFrame(job)
    assert len(first[0]) < len(last[0]) == len(whole.get_all_system_metrics())
    assert len(first[1]) < len(last[1]) == len(whole.get_all_framework_metrics())
    columns = ["start_time_us", "end_time_us", "framework_metric", "step", "nodeID", "process", "bytes", "pid"]
    one, other = (
        frame[columns].sort_values(columns).to_numpy().tolist()
        for frame in (last[1], whole.get_all_framework_metrics())
    )
    assert one == other
    assert pf.start_time == whole.start_time


def test_latest_data_can_be_joined_on_the_timestamp(job):
    system_df, framework_df = PandasFrame(job).get_latest_data()
    cpus, gpus = (set(system_df[system_df["type"] == kind]["timestamp"]) for kind in ("cpu", "gpu"))
    assert cpus <= gpus
    assert framework_df["framework_metric"][1] == "Step:ModeKeys.TRAIN"
    assert framework_df["step"][1] == 0


def test_data_by_time_accumulates_earlier_calls(job):
    pf = PandasFrame(job, use_in_memory_cache=True)
    a = pf.get_profiler_data_by_time(START_US, START_US + 10_000_000, cache_metrics=True)
    b = pf.get_profiler_data_by_time(START_US + 20_000_000, START_US + 30_000_000)
    both = pf.get_profiler_data_by_time(START_US + 20_000_000, START_US + 30_000_000, cache_metrics=True)
    assert len(both[0]) == len(a[0]) + len(b[0])
    assert len(both[1]) == len(pd.concat([a[1], b[1]]).drop_duplicates())  # an event in both ranges appears once
    assert len(pf.get_profiler_data_by_time(START_US, START_US + 50_000_000, get_framework_metrics=False)[1]) == 0


def test_arrow_and_polars_tables(job):
    pf = PandasFrame(job)
    frames = pf.get_all_system_metrics(), pf.get_all_framework_metrics()
    for frame, arrow, polars in zip(frames, pf.to_arrow(), pf.to_polars(), strict=True):
        assert arrow.column_names == list(polars.columns) == list(frame.columns)
        assert arrow.num_rows == polars.height == len(frame)
        assert polars.row(0) == tuple(frame.iloc[0])


def test_missing_folder_is_a_source_error(tmp_path):
    with pytest.raises(SourceError, match="nothing-here"):
        PandasFrame(str(tmp_path / "nothing-here"))


def test_unreadable_files_do_not_end_the_analysis(job, tmp_path):
    damaged = tmp_path / "damaged"
    for path in job.rglob("*"):
        if path.is_file():
            (damaged / path.relative_to(job)).parent.mkdir(parents=True, exist_ok=True)
            (damaged / path.relative_to(job)).write_bytes(path.read_bytes())
    traces = sorted((damaged / "framework").rglob("*.json"))
    traces[0].write_bytes(traces[0].read_bytes()[:-40])
    traces[1].write_bytes(b"\x00garbage")
    measured = next((damaged / "system").rglob("*.json"))
    measured.write_text(measured.read_text() + '{"Type":"cpu","Na')
    pf, whole = PandasFrame(damaged), PandasFrame(job)
    assert len(pf.get_all_system_metrics()) == len(whole.get_all_system_metrics())
    assert 0 < len(pf.get_all_framework_metrics()) < len(whole.get_all_framework_metrics())


def test_statistics_keep_processes_apart():
    train = "Step:ModeKeys.TRAIN"
    rows = [(train, 0, 100, {"step": 0}), (train, 100, 100, {"step": 1}), ("op", 110, 10), ("late", 500, 10)]
    rows += [(train, 1000, 300, {"step": 0, "node": "algo-1-1"}), (train, 1300, 300, {"step": 1, "node": "algo-1-1"})]
    framework = framework_frame(events(*rows))
    measured = system_frame(
        system(*((tick / 1e6, 50.0, "cpu", "cpu0", "CPUUtilization") for tick in range(0, 2000, 100)))
    )
    analysis = PandasFrameAnalysis(measured, framework)
    statistics = analysis.get_step_statistics()
    # The old library measured from the first process's start to the last one's end.
    assert statistics["duration_min_us"].tolist() == [100]
    assert statistics["duration_max_us"].tolist() == [300]
    assert statistics["duration_mean_us"].tolist() == [200]
    assert analysis.framework_metrics_df["step"].tolist() == [
        0,
        1,
        1,
        -1,
        0,
        1,
    ]  # it raised where an event ran in no step
    assert "duration_us" not in framework.columns
    by_name = analysis.get_step_statistics(StatsBy.FRAMEWORK_METRICS)
    assert by_name["framework_metric"].tolist() == [train, "op"]
    usage = analysis.get_utilization_stats(Resource.CPU, StatsBy.TRAINING_PHASE, train)
    assert usage["Resource"].tolist() == ["cpu"] * len(usage)


def test_statistics_keep_training_and_evaluation_apart():
    train, evaluate = "Step:ModeKeys.TRAIN", "Step:ModeKeys.EVAL"
    rows = [
        (train, 0, 100, {"step": 0}),
        ("Forward", 0, 40, {"step": 0}),
        (evaluate, 1000, 50, {"step": 0}),
        ("Forward", 1000, 20, {"step": 0}),
    ]
    analysis = PandasFrameAnalysis(system_frame(SystemColumns.empty()), framework_frame(events(*rows)))
    statistics = analysis.get_step_statistics(StatsBy.PROCESS).set_index("process")
    # The old library measured from the training step's pass to that of the evaluation step with the same number.
    assert statistics.loc["Forward", ["duration_min_us", "duration_max_us"]].tolist() == [20, 40]
    assert statistics.loc[evaluate, "duration_mean_us"] == 50


def test_totals_of_phases_count_the_steps_that_they_are_of():
    """Phases of short steps are recorded in some of them: a sum looked like the time of all."""
    train, evaluate = "Step:ModeKeys.TRAIN", "Step:ModeKeys.EVAL"
    rows = []
    for step in range(8):
        rows.append((train, 1000 * step, 100, {"step": step}))
        if step % 4 == 0:
            rows.append(("Forward", 1000 * step, 40, {"step": step}))
    rows += [(evaluate, 9000, 50, {"step": 0}), ("Forward", 9000, 20, {"step": 0}), ("outside", 20_000, 5)]
    analysis = PandasFrameAnalysis(system_frame(SystemColumns.empty()), framework_frame(events(*rows)))
    found = analysis.get_phase_totals().set_index(["process", "mode"])
    assert found.loc["Forward", train].tolist() == [2, 8, 80]
    assert found.loc["Forward", evaluate].tolist() == [1, 1, 20]
    assert found.loc[train, train].tolist() == [8, 8, 800]
    assert len(found) == 4
    empty = PandasFrameAnalysis(system_frame(SystemColumns.empty()), framework_frame(EventColumns.empty()))
    assert empty.get_phase_totals().columns.tolist() == ["process", "mode", "steps", "all_steps", "duration_sum_us"]


def test_statistics_reject_arguments_of_the_wrong_type(job):
    pf = PandasFrame(job)
    analysis = PandasFrameAnalysis(pf.get_all_system_metrics(), pf.get_all_framework_metrics())
    assert analysis.get_step_statistics("phase") is None
    assert analysis.get_utilization_stats("cpu") is None
    assert analysis.get_utilization_stats(by="x") is None
    assert analysis.get_device_usage_stats("gpu").empty
    assert analysis.get_device_usage_stats(utilization_ranges=[]).empty
    assert analysis.get_device_usage_stats(utilization_ranges=[(1, 2, 3)]).empty
    assert analysis.get_training_phase_intervals("Nothing") is None
    assert analysis.get_training_phase_intervals(5) is None
    statistics = analysis.get_job_statistics()
    assert statistics["job_duration"] == statistics.job_duration
    assert "initialization_%" in repr(statistics)
    assert json.loads(json.dumps(statistics, default=float))["training_loop_duration"] > 0
    empty = PandasFrameAnalysis(system_frame(SystemColumns.empty()), framework_frame(EventColumns.empty()))
    assert empty.get_utilization_stats().empty
    assert empty.get_device_usage_stats().empty
    with pytest.raises(SourceError, match="first training step"):
        empty.get_job_statistics()


def test_statistics_of_empty_frames():
    analysis = PandasFrameAnalysis(system_frame(SystemColumns.empty()), framework_frame(EventColumns.empty()))
    assert analysis.get_step_statistics().columns.tolist()[:2] == ["training_phase", "duration_mean_us"]
    assert analysis.get_utilization_stats().empty
    assert analysis.get_device_usage_stats().empty
    assert analysis.get_training_phase_intervals() is None


def test_training_phases_without_system_metrics():
    framework = framework_frame(events(("Step:ModeKeys.TRAIN", 100, 10, {"step": 0})))
    intervals = PandasFrameAnalysis(system_frame(SystemColumns.empty()), framework).get_training_phase_intervals()
    assert intervals["phase"].tolist()[1] == "Step:ModeKeys.TRAIN"


def test_unpaired_surrogates_are_escaped():
    frame = framework_frame(events(("call \udc80", 100, 10)))
    assert frame["framework_metric"].tolist() == [r"call \udc80"]


def test_names_that_no_row_has_are_logged_with_similar_ones(job, caplog):
    """A typing error gave an empty frame, and nothing else."""
    pf = PandasFrame(job)
    assert pf.get_all_system_metrics(["cpu0", "gpu99"])["system_metric"].nunique() == 1
    assert pf.get_all_framework_metrics(["Step:ModeKeys.TRIAN"]).empty
    gone, mistyped = caplog.messages
    assert gone.startswith("the profile has no device named 'gpu99'")
    assert mistyped.startswith(
        "the profile has no event or phase named 'Step:ModeKeys.TRIAN'; did you mean Step:ModeKeys.TRAIN"
    )
    caplog.clear()
    pf.get_profiler_data_by_time(0, 1, selected_system_metrics=["cpuo"])
    assert "did you mean cpu" in caplog.text
