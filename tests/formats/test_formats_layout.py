import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm_profiler.formats import layout
from sm_profiler.formats.layout import DetailedTrace, PythonStats, StatsWindow, SystemFile, TraceFile, TraceMetadata

TIMES = st.integers(0, 4_000_000_000_000_000)
SOURCES = st.from_regex(r"[0-9]{1,6}-(algo-[0-9]{1,3}|[a-z][a-z0-9.-]{0,20})", fullmatch=True)
KINDS = st.sampled_from(["pythontimeline", "model_timeline", "horovod_timeline", "smdataparallel_timeline"])
STEPS = st.one_of(st.none(), st.integers(0, 10**9))
MODES, PHASES = st.sampled_from(layout.MODES), st.sampled_from(layout.PHASES)
WINDOWS = st.builds(StatsWindow, MODES, STEPS, PHASES, TIMES, MODES, STEPS, PHASES, TIMES)


@given(TIMES, SOURCES, KINDS)
def test_parses_the_name_of_a_trace_file(end_us, source, kind):
    file = TraceFile(end_us, source, kind)
    assert layout.parse_path(file.path) == file
    assert file.path.split("/")[2] == time.strftime("%Y%m%d%H", time.gmtime(end_us // 10**6))


@given(st.integers(0, 4_000_000_000), st.integers(1, 999))
def test_parses_the_name_of_a_system_file(minute, number):
    file = SystemFile(f"algo-{number}", minute)
    assert layout.parse_path(file.path) == file
    assert file.at_us == minute * 10**6


@given(WINDOWS, SOURCES, st.sampled_from(["cprofile", "pyinstrument"]), st.sampled_from(layout.PYTHON_STATS_NAMES))
def test_parses_the_folder_of_a_window(window, node, profiler, name):
    parsed = layout.parse_path(layout.stats_path("pytorch", profiler, node, window, name))
    assert isinstance(parsed, PythonStats)
    assert (parsed.window, parsed.node, parsed.profiler, parsed.name) == (window, node, profiler, name)


@given(SOURCES, TIMES, TIMES, st.integers(0, 999_999_999))
def test_parses_the_name_of_a_metadata_file(source, start_us, end_us, step):
    parsed = layout.parse_path(layout.metadata_path("tensorflow", source, start_us, end_us, step))
    assert isinstance(parsed, TraceMetadata)
    assert (parsed.source, parsed.start_us, parsed.end_us) == (source, start_us, end_us)
    trace = layout.parse_path(
        f"{layout.detailed_folder('tensorflow', start_us, step)}/plugins/profile/x/h.trace.json.gz"
    )
    assert isinstance(trace, DetailedTrace)
    assert (trace.folder, trace.step) == (parsed.folder, step)


@given(st.text(max_size=80))
def test_accepts_any_text_as_a_name(name):
    for folder in ("", "system/", "framework/", "framework/pevents/2020010101/", "system/incremental/2020010101/"):
        layout.parse_path(folder + name)


@pytest.mark.parametrize("path", [
    "system/incremental/2020010101/.sagemaker-ignore/1577840400.algo-1.json",
    "framework/pevents/2020010101/1_0-algo-1_pythontimeline.json.tmp",
    "framework/pevents/2020010101/0-algo-1_pythontimeline.json",
    "framework/training_job_end.ts",
    "other/incremental/2020010101/1577840400.algo-1.json",
])  # fmt: skip
def test_ignores_files_that_are_not_profiler_data(path):
    assert layout.parse_path(path) is None


def test_parses_names_of_real_jobs():
    old = "framework/tensorflow/cProfile/1596585376012363.8_1596585376017246.5_151-algo-1_3/python_stats"
    parsed = layout.parse_path(old)
    assert isinstance(parsed, PythonStats)
    assert (parsed.node, parsed.window.start_step, parsed.window.start_us) == ("151-algo-1", 3, 1596585376012363)
    parsed = layout.parse_path("framework/pevents/2020051923/1589930988000000_4487_0000_pythontimeline.json")
    assert parsed == TraceFile(1589930988000000, "4487", "pythontimeline")


def test_shows_nodes_in_the_notation_of_readers():
    assert layout.shown_node("905-algo-1") == "algo-1-905"
    assert layout.shown_node("905-b88ab1bb8259") == "905-b88ab1bb8259"
    assert layout.source_name(3, "my_host") == "3-my-host"
