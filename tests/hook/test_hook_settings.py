"""Sources of a job's configuration: their order, and the root of paths."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm_profiler.errors import ConfigError
from sm_profiler.hook import entry, settings
from tests.support.hook import environment

TEXT = '{"ProfilingParameters": {"LocalPath": "/x"}}'


def test_a_pipe_or_a_device_is_no_configuration(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="not a regular file"):
            settings.find_config({"SM_PROFILER_CONFIG": str(path)})


def test_there_may_be_no_configuration(tmp_path):
    assert settings.find_config({"SM_PROFILER_ROOT": str(tmp_path)}) is None


@pytest.mark.parametrize("name", ["SM_PROFILER_CONFIG", "SMPROFILER_CONFIG_PATH"])
def test_a_path_is_read_with_its_time(tmp_path, name):
    path = tmp_path / "profile.json"
    path.write_text("\ufeff" + TEXT, "utf-8")
    found = settings.find_config({name: str(path)})
    assert (found.text, found.path, found.changed) == (TEXT, path, path.stat().st_mtime_ns)


def test_json_in_the_environment_whole_or_in_parts():
    assert settings.find_config({"SM_PROFILER_CONFIG": TEXT}).text == TEXT
    parts = {f"SM_PROFILER_CONFIG_{number}": TEXT[number * 10 : number * 10 + 10] for number in range(5)}
    assert settings.find_config(parts).text == TEXT


def test_the_first_source_wins_and_opt_ml_is_below_the_root(tmp_path):
    path = tmp_path / "input" / "config" / "profilerconfig.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    environment = {"SM_PROFILER_ROOT": str(tmp_path)}
    assert settings.find_config(environment).text == "{}"
    assert settings.find_config({**environment, "SM_PROFILER_CONFIG": TEXT}).text == TEXT


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory; write it, or name another one"),
        (
            b"\xff",
            "it is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte; save it as such",
        ),
        (
            b'{"ProfilingParameters":\n}',
            "the profiler configuration is not JSON: Expecting value: line 2 column 1 (char 24); correct it, and check it with `sm-profiler validate {}`",
        ),
        (
            b"[]",
            "the profiler configuration must be a JSON object, not list; correct it, and check it with `sm-profiler validate {}`",
        ),
    ],
)
@pytest.mark.parametrize("variable", ["SM_PROFILER_CONFIG", "SMPROFILER_CONFIG_PATH", ""])
def test_a_file_that_cannot_be_used_is_named_with_where_its_name_is_from(
    tmp_path, monkeypatch, caplog, variable, content, problem
):
    """The line was `the hook is off: [Errno 2] No such file or directory`."""
    path = tmp_path / "input" / "config" / "profilerconfig.json"
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_bytes(content)
    elif not variable:
        return  # nothing is wrong
    monkeypatch.setenv(variable or "SM_PROFILER_ROOT", str(path if variable else tmp_path))
    assert entry.install() is None
    origin = f"which {variable} names" if variable else "the default path"
    assert caplog.messages == [f"sm-profiler: the hook is off: {path}, {origin}: {problem.format(path)}"]


def test_json_of_the_environment_that_is_broken_is_named(monkeypatch, caplog):
    monkeypatch.setenv("SM_PROFILER_CONFIG", "{")
    assert entry.install() is None
    (line,) = caplog.messages
    assert line.startswith(
        "sm-profiler: the hook is off: the JSON in SM_PROFILER_CONFIG: the profiler configuration is not"
    )
    assert line.endswith("line 1 column 2 (char 1); correct it")


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, None), ({"RANK": "3"}, 3), ({"RANK": "x"}, None), ({"OMPI_COMM_WORLD_RANK": "2"}, 2)],
)
def test_the_rank_comes_from_the_launcher(environment, rank):
    assert settings.rank_from(environment) == rank


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("-c", True), ("/env/bin/pip", True), ("/env/lib/python3.11/site-packages/pip/__main__.py", True), ("setup.py", True),
        ("/env/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py", True),
        ("train.py", False), ("/job/trainer/__main__.py", False), ("/env/bin/torchrun", False), ("", False),
    ],
)  # fmt: skip
def test_programs_that_never_train_are_known(program, expected):
    assert settings.may_be_a_tool([program]) == expected


def test_a_line_of_code_starts_no_monitor_before_it_trains(tmp_path):
    """Each `python -c "import torch"` of a job's script started one, and waited for its end."""
    config = {"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}}
    more = {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(config), "SM_PROFILER_ROOT": str(tmp_path)}
    imports = "from sm_profiler.hook.auto import arm; arm()\nimport torch\n"
    step = "from sm_profiler.hook import get_hook\nwith get_hook().step():\n    pass\n"
    for code, minutes in ((imports, 0), (imports + step, 1)):
        subprocess.run([sys.executable, "-c", code], env=environment(**more), check=True, capture_output=True)
        assert len(list(tmp_path.rglob("system/incremental/*/*.json"))) == minutes


def test_an_s3_endpoint_that_never_answers_switches_the_hook_off_in_time(monkeypatch, caplog):
    """It blocked `import torch` for 369 seconds."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "eu-west-1",
            "SM_PROFILER_CONFIG": "s3://bucket/profile.json",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert settings.S3_SECONDS == 15
        monkeypatch.setattr(settings, "S3_SECONDS", 3)
        began = time.monotonic()
        assert entry.install() is None
        assert time.monotonic() - began < 10
    (line,) = caplog.messages
    assert line == "sm-profiler: the hook is off: no answer from S3 for 3 seconds: s3://bucket/profile.json"


@pytest.mark.parametrize(
    "uri", ["s3://", "s3://bucket", "s3://bucket/", "s3:///profile.json", "s3://a bucket/profile.json"]
)
def test_an_address_of_s3_without_an_object_is_one_line(uri, monkeypatch, caplog):
    """`s3:/bucket does not exist` and `'' is not a file name below s3:` it was."""
    monkeypatch.setenv("SM_PROFILER_CONFIG", uri)
    assert entry.install() is None
    assert caplog.messages == [
        f"sm-profiler: the hook is off: SM_PROFILER_CONFIG: {uri} names no object: s3://BUCKET/KEY is needed"
    ]


def test_an_error_of_s3_is_reported_as_it_is(monkeypatch, caplog):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SM_PROFILER_CONFIG", "s3://bucket/profile.json")
    assert entry.install() is None
    (line,) = caplog.messages
    assert line.startswith("sm-profiler: the hook is off: ")
    assert "no answer" not in line
