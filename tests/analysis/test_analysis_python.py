"""Statistics of Python profilers, recorded by the real profilers."""

import cProfile
import marshal
import os
import shutil
import tempfile
import time
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from pyinstrument import Profiler
from pyinstrument.renderers import JSONRenderer

from sm_profiler.analysis import PyinstrumentAnalysis, cProfileAnalysis, python_profiles
from sm_profiler.analysis.python_stats import (
    Metrics,
    PythonProfileModes,
    StepPhase,
    cProfileStats,
    load_cprofile,
    python_profile_mode_to_str,
    str_to_python_profile_mode,
)
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats.cprofile_reader import DamagedStatisticsError, read_statistics

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


def dumped(function):
    profiler = cProfile.Profile()
    profiler.runcall(function)
    profiler.create_stats()
    return marshal.dumps(profiler.stats)


def nested_calls(depth=200):
    return sorted(range(depth), key=lambda value: -value) if depth == 0 else nested_calls(depth - 1)


@pytest.mark.parametrize("version", range(2, marshal.version + 1))
def test_reader_agrees_with_marshal(version):
    stats = marshal.loads(dumped(nested_calls))
    stats["/tmp/größe.py", 70_000, "naïve"] = (1 << 40, (1 << 62) + 1, 0.5, -1.0, {})
    stats["x" * 300, -1, ""] = (3, 3, float("inf"), 1, {("~", 0, "<built-in>"): (1, 1 << 33, 0.0, 0.25)})
    assert read_statistics(marshal.dumps(stats, version)) == stats


def test_reader_agrees_with_marshal_on_files_of_jobs():
    paths = [path for path in SAMPLES.rglob("python_stats") if path.is_file()]
    assert paths
    for path in paths:
        assert read_statistics(path.read_bytes()) == marshal.loads(path.read_bytes())


KEY = b"\xa9\x03\xda\x01f\xe9\x01\x00\x00\x00\xda\x01g"  # ("f", 1, "g"), which references 1, 2, 3 and 4 can point to
NUMBERS = b"i\0\0\0\0" * 2 + b"g" + b"\0" * 8 + b"g" + b"\0" * 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"{",
        b"{0{0",
        marshal.dumps([1]),
        marshal.dumps({"a": 1}),
        marshal.dumps({("f", 1): (1, 1, 0.0, 0.0, {})}),
        marshal.dumps({("f", 1, "g"): (1, 1, "x", 0.0, {})}),
        marshal.dumps({("f", 1, "g"): (1, 1, 0.0, 0.0, {("f", 1, "g"): 1})}),
        marshal.dumps({("f", 1, "g"): (1, 1, 0.0, 0.0, {("f", 1, "g"): (1, 1, 0.0, "x")})}),
        marshal.dumps({("f", 1, "g"): (1 << 64, 1, 0.0, 0.0, {})}),
        marshal.dumps({("f", 1, "g"): (1 << 60_000, 1, 0.0, 0.0, {})}),
        b"{\xa9\x03r\0\0\0\0NN0",  # a tuple that contains itself as the key of a dictionary: hashing it never ends
        b"\xa8\x01\0\0\0r\0\0\0\0...",  # a tuple that contains itself
        b"\xfb" + KEY + b")\x05" + NUMBERS + b"r\0\0\0\0" + b"0",  # callers that are the statistics
        b"{" + KEY + b")\x05" + NUMBERS + b"{r\0\0\0\0r\0\0\0\0" + b"00",  # a caller's figures that are its name
        b"{\xa9\x03" + KEY + KEY + KEY + b"0",  # a tuple of tuples
        b"{" + KEY + b")\x05" + NUMBERS + b"{r\xff\xff\xff\xff",
        b"{)\x03u\xff\xff\xff\x7fx",  # two gigabytes of text
        b"{(\xff\xff\xff\x7f",  # a tuple of two billion objects
        b"{)\x03z\x01\xff",
        b"{" + b"(\x01\0\0\0" * 100_000,
        b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:24]),
)
def test_rejects_files_without_statistics(data, tmp_path):
    path = tmp_path / "python_stats"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="contains no statistics"):
        load_cprofile(str(path))


def test_reader_accepts_references():
    figures = b")\x05" + NUMBERS + b"{r\0\0\0\0)\x04" + NUMBERS + b"0"
    stats = read_statistics(b"{" + KEY + figures + b"0")
    assert stats == {("f", 1, "g"): (0, 0, 0.0, 0.0, {("f", 1, "g"): (0, 0, 0.0, 0.0)})}


def test_every_truncation_is_rejected():
    data = dumped(before_the_loop)
    for length in range(len(data)):
        with pytest.raises(DamagedStatisticsError):
            read_statistics(data[:length])


def test_names_that_terminals_interpret_are_escaped(tmp_path, capsys):
    path = tmp_path / "python_stats"
    path.write_bytes(marshal.dumps({("\x1b[2Jf\udc80.py", 1, "g\n"): (1, 1, 0.0, 0.0, {})}))
    stats = cProfileStats(load_cprofile(str(path)))
    stats.print_top_n_functions(Metrics.TOTAL_TIME)
    assert "\x1b" not in capsys.readouterr().out
    assert stats.get_function_stats()["function name"][0].encode() == rb"\x1b[2Jf\udc80.py:1(g\n)"


def test_empty_statistics(tmp_path):
    path = tmp_path / "python_stats"
    path.write_bytes(marshal.dumps({}))
    assert cProfileStats(load_cprofile(str(path))).get_function_stats().empty


def test_rejects_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SourceError, match="cannot be read"):
        load_cprofile(str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match=r"cannot be read|not a regular file"):
        load_cprofile(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="not a regular file"):
        load_cprofile(str(tmp_path / "pipe"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(SourceError, match="larger"):
        load_cprofile(str(tmp_path / "large"))


def test_damaged_files_are_left_out(profile, tmp_path, caplog):
    copy = tmp_path / "profile"
    shutil.copytree(profile, copy)
    (damaged,) = copy.glob("framework/pytorch/cprofile/0-algo-1/train-1-stepend*/python_stats")
    damaged.write_bytes(b"{)\x01")
    analysis = cProfileAnalysis(str(copy))
    assert ran(analysis.fetch_profile_stats_by_step(1, 2)) == {"first_step", "second_step"}
    assert "left out" in caplog.text
    late = {"start_phase": StepPhase.STEP_END, "end_phase": StepPhase.STEP_START}
    with pytest.raises(SourceError, match="contains no statistics"):
        analysis.fetch_profile_stats_by_step(1, 2, **late)


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
    windows = PyinstrumentAnalysis("s3://bucket/job/profiler-output").fetch_profile_stats_by_step(1, 2)
    assert [Path(window.html_file_path).is_file() and bool(window.json_stats) for window in windows] == [True] * 3


@mock_aws
def test_files_in_the_download_folder_are_not_trusted(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(python_profiles, "DEFAULT_FOLDER", str(tmp_path / "shared"))
    (source,) = profile.glob("framework/pytorch/cprofile/0-algo-1/train-1-stepstart*/python_stats")
    key = source.relative_to(profile).as_posix()
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="bucket")
    s3.upload_file(str(source), "bucket", f"job/{key}")
    (planted,) = profile.glob("framework/pytorch/cprofile/0-algo-1/train-2-stepstart*/python_stats")
    for folder in ("shared", "chosen"):
        reader = python_profiles.PythonStatsReader(str(tmp_path / folder), "s3://bucket/job")
        (found,) = reader.load_python_profile_stats()
        target = tmp_path / folder / Path(found.stats_path).relative_to(Path(reader.profile_dir).parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(planted, target)
        old = tmp_path / folder / "python_stats/cprofile/0-algo-1" / source.parent.name / "python_stats"
        old.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(planted, old)
        analysis = cProfileAnalysis(str(tmp_path / folder), s3_path="s3://bucket/job")
        assert ran(analysis.fetch_profile_stats_by_step(1)) == {"first_step"}
    assert Path(
        python_profiles.PythonStatsReader(str(tmp_path / "shared"), "s3://bucket/job").profile_dir
    ).is_relative_to(tempfile.gettempdir())


@mock_aws
def test_download_folder_of_another_user_is_rejected(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="bucket")
    (source,) = profile.glob("framework/pytorch/cprofile/0-algo-1/train-1-stepstart*/python_stats")
    s3.upload_file(str(source), "bucket", source.relative_to(profile).as_posix())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "python_stats").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="is a link or belongs to another user"):
        cProfileAnalysis(str(tmp_path), s3_path="s3://bucket/")
    monkeypatch.setattr(python_profiles, "DEFAULT_FOLDER", str(profile))
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(SourceError, match="is a link or belongs to another user"):
        cProfileAnalysis(str(profile))


@mock_aws
def test_hostile_names_on_s3(profile, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (source,) = profile.glob("framework/pytorch/cprofile/0-algo-1/train-1-stepstart*/python_stats")
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="bucket")
    names = ["..", ".", "a" * 600, "\x1b[2J", "a\\b", "x y", "0-algo-1", "²", "~root"]
    for name in names:
        key = f"framework/pytorch/cprofile/{name}/{source.parent.name}/python_stats"
        s3.put_object(Bucket="bucket", Key=key, Body=source.read_bytes())
    digits = "9" * 310
    for window in (
        f"train-{digits}-stepstart-{digits}_train-1-stepend-{digits}.{digits}",
        f"{digits}_{digits}.5_0-algo-1_1",
    ):
        s3.put_object(Bucket="bucket", Key=f"framework/pytorch/cprofile/{window}/python_stats", Body=b"")
        s3.put_object(Bucket="bucket", Key=f"framework/pytorch/cprofile/0-algo-1/{window}/python_stats", Body=b"")
    analysis = cProfileAnalysis(str(tmp_path), s3_path="s3://bucket/")
    paths = [Path(each.stats_path) for each in analysis.python_profile_stats]
    assert len(paths) == len(set(paths)) >= len(names) - 2  # S3 cannot hold . and ..
    assert all(path.resolve().is_relative_to(tmp_path) and path.is_file() for path in paths)
    for node in analysis.list_available_node_ids():
        assert ran(analysis.fetch_profile_stats_by_step(1, node_id=node)) == {"first_step"}


def test_statistics_behind_a_link_out_of_the_profile_are_left_out(profile, tmp_path, caplog):
    stats = next(profile.glob("framework/pytorch/cprofile/0-algo-1/train-1-stepstart*/python_stats"))
    copy = tmp_path / "job" / stats.relative_to(profile)
    copy.parent.mkdir(parents=True)
    copy.symlink_to(stats)
    assert python_profiles.PythonStatsReader(str(tmp_path / "job")).load_python_profile_stats() == []
    assert "is a link that leads out of the profile" in caplog.text
