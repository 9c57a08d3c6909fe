"""Sources of a job's configuration: their order, and the root of paths."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm_profiler.hook import entry, settings
from tests.support.hook import environment

TEXT = '{"ProfilingParameters": {"LocalPath": "/x"}}'


def test_a_pipe_or_a_device_is_no_configuration(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
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


def test_a_named_file_that_is_missing_is_an_error():
    with pytest.raises(OSError, match="No such file"):
        settings.find_config({"SM_PROFILER_CONFIG": "/nowhere/profile.json"})


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


def test_an_error_of_s3_is_reported_as_it_is(monkeypatch, caplog):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SM_PROFILER_CONFIG", "s3:///profile.json")
    assert entry.install() is None
    (line,) = caplog.messages
    assert line.startswith("sm-profiler: the hook is off: ")
    assert "no answer" not in line
