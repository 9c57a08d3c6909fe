"""Help, version, usage errors and sources of the command line."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

from sm_profiler import __version__
from sm_profiler.cli import main
from sm_profiler.cli.main import COMMANDS, newest_run
from sm_profiler.cli.serve import name_unreadable
from sm_profiler.config import load_profile
from sm_profiler.errors import SourceError
from sm_profiler.monitor.run_state import write_state
from sm_profiler.run_folder import default_config


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"sm-profiler {__version__}\n"


def test_help_lists_every_command_and_first_steps(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(name in shown for name in COMMANDS)
    assert "start here" in shown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


@pytest.mark.parametrize("words", [[], ["nonsense"], ["report"], ["report", "--nonsense", "x"]])
def test_wrong_usage_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "--bogus"], "sm-profiler run: unrecognized arguments: --bogus (see sm-profiler run --help)"),
        (
            ["report", "x", "--bogus"],
            "sm-profiler report: unrecognized arguments: --bogus (see sm-profiler report --help)",
        ),
        (
            ["report"],
            "sm-profiler report: the following arguments are required: SOURCE (see sm-profiler report --help)",
        ),
        (["reprot", "x"], "sm-profiler: no command reprot; did you mean report?"),
        (["qqqq"], f"sm-profiler: no command qqqq; commands: {', '.join(COMMANDS)}"),
        (
            ["--bogus", "report", "x"],
            "sm-profiler report: unrecognized arguments: --bogus (see sm-profiler report --help)",
        ),
    ],
)
def test_wrong_usage_is_reported_in_one_line(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{line}\n"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, kind, written in [
        ("z-old", "system", 1000),
        ("a-new", "framework/pevents", 3000),
        ("middle", "profiler-output/system", 2000),
    ]:
        file = tmp_path / "runs" / name / kind / "x.json"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (written, written))
    (tmp_path / "runs/notes").mkdir()
    return tmp_path / "runs"


def test_reads_the_newest_of_several_runs_and_names_it(runs, capsys):
    assert newest_run("runs") == "runs/a-new"
    assert capsys.readouterr().err == "sm-profiler: runs contains 3 runs; reading the newest: runs/a-new\n"


def test_reports_that_the_newest_run_is_running_or_has_nothing_yet(runs, capsys):
    write_state(runs / "a-new")
    newest_run("runs")
    assert capsys.readouterr().err.endswith("reading the newest: runs/a-new (still running)\n")
    write_state(runs / "a-new", 0)
    write_state(runs / "begun")
    (runs / "begun/system").mkdir(parents=True)
    (runs / "begun/system/1.json.tmp").touch()  # that it was the newest ended in an error
    assert newest_run("runs") == "runs/a-new"
    err = capsys.readouterr().err
    assert "runs/a-new\nsm-profiler: runs/begun is running and has no complete file yet: 'sm-profiler watch'" in err


@pytest.mark.parametrize("where", ["runs/a-new", "runs/middle", "runs/notes", "runs/nothing", "s3://runs/x", "runs"])
def test_other_sources_are_returned_unchanged(runs, where, capsys):
    if where == "runs":
        (runs / "system").mkdir()
        (runs / "system/x.json").touch()
    assert newest_run(where) == where
    assert capsys.readouterr().err == ""


def test_default_configuration_of_run_has_no_problems(tmp_path):
    profile = load_profile(default_config(tmp_path).read_text())
    assert set(profile.collectors) == {"detailed", "dataloader"}  # cProfile slows what it measures
    assert profile.problems == []


def test_runs_as_a_module():
    shown = subprocess.run(
        [sys.executable, "-m", "sm_profiler", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("sm-profiler ")


@pytest.mark.parametrize("words", [["report"], ["compare", "runs/z-old"], ["merge-timeline", "--out", "t.json"]])
def test_commands_accept_a_folder_of_runs(words, runs, monkeypatch, capsys):
    opened = []
    import_module("sm_profiler.serve.reading")  # imported during the test, it would keep the function below

    def open_source(where, **_):
        opened.append(where)
        if where != "runs/z-old":
            raise SourceError("opened")

    monkeypatch.setattr("sm_profiler.source.open_source", open_source)
    assert main([*words, "runs"]) == 2
    assert opened[-1] == "runs/a-new"
    assert capsys.readouterr().err.splitlines()[-1] == "sm-profiler: opened"


def test_serve_names_a_bucket_that_cannot_be_listed(monkeypatch, capsys):
    def missing(_where):
        raise SourceError("s3://gone/: the bucket does not exist")

    monkeypatch.setattr("sm_profiler.storage.open_storage", missing)
    name_unreadable("s3://gone")
    assert capsys.readouterr().err == "sm-profiler: s3://gone/: the bucket does not exist; trying again until Ctrl-C\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "python3", "train.py"], "sm-profiler run -- python3 train.py"),
        (["run", "--", "train.py", "--epochs", "3"], "sm-profiler run train.py"),
    ],
)
def test_a_command_and_a_script_that_are_mixed_up_get_a_hint(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert main(words) == 2
    assert hint in capsys.readouterr().err
