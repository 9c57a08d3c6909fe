"""The command line's frame: help, version, usage errors."""

import subprocess
import sys

import pytest

from sm_profiler import __version__
from sm_profiler.cli import main
from sm_profiler.cli.main import COMMANDS, available


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"sm-profiler {__version__}\n"


def test_help_names_every_command_and_where_to_start(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(name in shown for name in COMMANDS)
    assert "start here" in shown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_exists_and_explains_itself(name, capsys):
    assert name in available()
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


@pytest.mark.parametrize("words", [[], ["nonsense"], ["report"], ["report", "--nonsense", "x"]])
def test_wrong_usage_ends_with_two(words, capsys):
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
        (["qqqq"], f"sm-profiler: no command qqqq; there are {', '.join(available())}"),
        (
            ["--bogus", "report", "x"],
            "sm-profiler report: unrecognized arguments: --bogus (see sm-profiler report --help)",
        ),
    ],
)
def test_wrong_usage_is_said_in_one_line(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{line}\n"


def test_module_entry():
    shown = subprocess.run(
        [sys.executable, "-m", "sm_profiler", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("sm-profiler ")
