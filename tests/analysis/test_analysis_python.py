"""Statistics of Python profilers, recorded by the real profilers."""

import cProfile
import marshal
import time
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from pyinstrument import Profiler
from pyinstrument.renderers import JSONRenderer

from sm_profiler.analysis import PyinstrumentAnalysis, cProfileAnalysis
from sm_profiler.analysis.python_stats import (
    Metrics,
    PythonProfileModes,
    StepPhase,
    load_cprofile,
    python_profile_mode_to_str,
    str_to_python_profile_mode,
)
from sm_profiler.errors import ConfigError, SourceError

SAMPLES = Path(__file__).parents[1] / "data/formats"
WINDOWS = {  # function that runs in the window → its start and end
    "before_the_loop": ("prestepzero", "*", "start", "train", "0", "stepstart"),
    "first_step": ("train", "1", "stepstart", "train", "1", "stepend"),
    "between_steps": ("train", "1", "stepend", "train", "2", "stepstart"),
    "second_step": ("train", "2", "stepstart", "train", "2", "stepend"),
    "into_evaluation": ("train", "3", "stepend", "eval", "0", "stepstart"),
    "after_the_loop": ("train", "4", "stepend", "posthookclose", "*", "end"),
}
START_US = 1_700_000_000_000_000


def before_the_loop():
    time.sleep(0.002)


def first_step():
    time.sleep(0.002)


def between_steps():
    time.sleep(0.002)


def second_step():
    time.sleep(0.002)


def into_evaluation():
    time.sleep(0.002)


def after_the_loop():
    time.sleep(0.002)


def folder_of(number, window):
    start, end = START_US + number * 1_000_000, START_US + number * 1_000_000 + 900_000
    return f"{'-'.join(window[:3])}-{start}_{'-'.join(window[3:])}-{end}"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    root = tmp_path_factory.mktemp("profile") / "profiler-output"
    for node in ("0-algo-1", "1-algo-1"):
        for number, (name, window) in enumerate(WINDOWS.items()):
            call = globals()[name]
            folder = root / "framework/pytorch/cprofile" / node / folder_of(number, window)
            folder.mkdir(parents=True)
            profiler = cProfile.Profile()
            profiler.runcall(call)
            profiler.dump_stats(folder / "python_stats")
            if node == "0-algo-1":
                folder = root / "framework/pytorch/pyinstrument" / node / folder_of(number, window)
                folder.mkdir(parents=True)
                sampler = Profiler(interval=0.0001)
                sampler.start()
                call()
                sampler.stop()
                (folder / "python_stats.json").write_text(sampler.output(JSONRenderer()))
                (folder / "python_stats.html").write_text("<html></html>")
    return root


def ran(stats):
    names = " ".join(each.function_name for each in stats.function_stats_list)
    return {name for name in WINDOWS if f"({name})" in names}


@pytest.mark.parametrize("where", [".", "framework/pytorch/cprofile"])
def test_fetches_by_step_time_and_mode(profile, where):
    analysis = cProfileAnalysis(str(profile / where))
    assert len(analysis.python_profile_stats) == 2 * len(WINDOWS)
    assert analysis.list_available_node_ids() == ["0-algo-1", "1-algo-1"]
    assert ran(analysis.fetch_profile_stats_by_step(1)) == {"first_step"}
    assert ran(analysis.fetch_profile_stats_by_step(1, 2)) == {"first_step", "between_steps", "second_step"}
    late = {"start_phase": StepPhase.STEP_END, "end_phase": StepPhase.STEP_START}
    assert ran(analysis.fetch_profile_stats_by_step(1, 2, **late)) == {"between_steps"}
    assert ran(analysis.fetch_profile_stats_by_step(1, 2, node_id="1-algo-1")) == {
        "first_step",
        "between_steps",
        "second_step",
    }
    assert ran(analysis.fetch_profile_stats_by_time(START_US / 1e6 + 3, START_US / 1e6 + 3.5)) == {"second_step"}
    assert ran(analysis.fetch_profile_stats_by_time(START_US / 1e6 + 3.1, START_US / 1e6 + 3.2)) == {"second_step"}
    modes = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
    assert ran(analysis.fetch_profile_stats_between_modes(*modes)) == {"into_evaluation"}
    assert ran(analysis.fetch_pre_step_zero_profile_stats()) == {"before_the_loop"}
    assert ran(analysis.fetch_post_hook_close_profile_stats()) == {"after_the_loop"}


def test_fetches_by_phase(profile):
    analysis = cProfileAnalysis(str(profile))
    train = PythonProfileModes.TRAIN
    phases = analysis.fetch_profile_stats_by_training_phase()
    assert {modes: ran(stats) for modes, stats in phases.items()} == {
        (train, train): {"first_step", "between_steps", "second_step"},
        (train, PythonProfileModes.EVAL): {"into_evaluation"},
        (train, PythonProfileModes.POST_HOOK_CLOSE): {"after_the_loop"},
        (PythonProfileModes.PRE_STEP_ZERO, train): {"before_the_loop"},
    }
    phases = {phase: ran(stats) for phase, stats in analysis.fetch_profile_stats_by_job_phase().items()}
    loop = {"first_step", "between_steps", "second_step", "into_evaluation"}
    assert phases == {"initialization": {"before_the_loop"}, "training_loop": loop, "finalization": {"after_the_loop"}}


def test_function_statistics(profile, capsys):
    stats = cProfileAnalysis(str(profile)).fetch_profile_stats_by_step(1)
    frame = stats.get_function_stats()
    assert frame.columns.tolist() == [
        "function name",
        "# of primitive calls",
        "# of total calls",
        "total time",
        "cumulative time",
    ]
    row = frame[frame["function name"].str.contains("(first_step)", regex=False)].iloc[0]
    assert row["# of total calls"] == 1
    assert row["cumulative time"] >= 0.002
    assert "{built-in method time.sleep}" in set(frame["function name"])
    assert "first_step" in next(each for each in stats.function_stats_list if "sleep" in each.function_name).callers[0]
    assert "function name" in repr(stats.function_stats_list[0])
    stats.print_top_n_functions(Metrics.CUMULATIVE_TIME, 1)
    printed = capsys.readouterr().out
    assert "first_step" in printed
    assert "restriction <1>" in printed
    with pytest.raises(ConfigError):
        stats.print_top_n_functions("cumtime")


def test_lists_statistics(profile, tmp_path, capsys):
    frame = cProfileAnalysis(str(profile)).list_profile_stats()
    assert frame["start_mode"].tolist()[:3] == ["prestepzero", "prestepzero", "train"]
    assert frame["start_step"].tolist()[:3] == [-1, -1, 1]
    assert frame["end_step"].tolist()[-1] == float("inf")
    assert Path(frame["stats_path"][0]).is_file()
    nothing = cProfileAnalysis(str(tmp_path))
    assert nothing.list_profile_stats().empty
    assert nothing.fetch_profile_stats_by_step(1) is None
    assert "No stats were found" in capsys.readouterr().out
    with pytest.raises(SourceError, match="is not a folder"):
        cProfileAnalysis(str(tmp_path / "nothing"))
    for mode in PythonProfileModes:
        assert str_to_python_profile_mode(python_profile_mode_to_str(mode)) is mode
    with pytest.raises(ConfigError, match="is not a mode"):
        str_to_python_profile_mode("testing")


def test_pyinstrument_sessions(profile):
    analysis = PyinstrumentAnalysis(str(profile / "framework/pytorch/pyinstrument"))
    assert len(analysis.python_profile_stats) == 2 * len(WINDOWS)
    (window,) = analysis.fetch_profile_stats_by_step(2)
    assert Path(window.html_file_path).is_file()
    assert "second_step" in str(window.json_stats["root_frame"])
    assert len(analysis.fetch_profile_stats_by_step(1, 2)) == 3


def test_statistics_of_python_3_6_are_read():
    analysis = cProfileAnalysis(str(SAMPLES / "tfprofiler_timeline_traces"))
    if not analysis.python_profile_stats:
        pytest.fail("the sample has no statistics any more")
    assert any(
        "profiler_v2.py" in each.function_name for each in analysis.fetch_profile_stats_by_step(2).function_stats_list
    )


def test_rejects_files_without_statistics(tmp_path):
    wrong = [
        b"",
        b"garbage",
        marshal.dumps([1]),
        marshal.dumps({"a": 1}),
        marshal.dumps({("f", 1, "g"): (1, 1, "x", 0.0, {})}),
    ]
    for number, data in enumerate(wrong):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with pytest.raises(SourceError, match="no statistics"):
            load_cprofile(str(path))
    with pytest.raises(SourceError, match="cannot be read"):
        load_cprofile(str(tmp_path / "nothing"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(SourceError, match="larger"):
        load_cprofile(str(tmp_path / "large"))


@mock_aws
def test_statistics_on_s3_are_downloaded(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="bucket")
    for path in profile.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), "bucket", f"job/profiler-output/{path.relative_to(profile).as_posix()}")
    analysis = cProfileAnalysis(str(tmp_path), s3_path="s3://bucket/job/profiler-output")
    assert ran(analysis.fetch_profile_stats_by_step(1)) == {"first_step"}
    assert all(Path(each.stats_path).is_relative_to(tmp_path) for each in analysis.python_profile_stats)
    assert ran(cProfileAnalysis("s3://bucket/job/profiler-output").fetch_profile_stats_by_step(2)) == {"second_step"}
