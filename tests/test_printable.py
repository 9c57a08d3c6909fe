"""Printing and logging text from files, keys and configurations: one line, no control characters, any encoding."""

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm_profiler.errors import ConfigError
from sm_profiler.printable import ASCII, logger_for, printable, say


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é → 日本", "plain é → 日本"),
        ("red \x1b[31mtext\x07", r"red \x1b[31mtext\x07"),
        ("two\nlines\r\u2028", r"two\nlines\r\u2028"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udcff", r"\udcff"),
        (5, "5"),
    ],
)
def test_escapes_what_a_terminal_would_interpret(text, expected):
    assert printable(text) == expected


@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_any_text_can_be_printed(text):
    assert printable(text).isprintable()
    printable(text).encode()


def test_logged_messages_are_printable(caplog):
    logger = logger_for("sm_profiler.test")
    assert logger_for("sm_profiler.test") is logger
    logger.warning("cannot read %s", "a\x1b]0;owned\x07\nb")
    assert caplog.messages == [r"cannot read a\x1b]0;owned\x07\nb"]


def test_every_logger_of_the_package_escapes_its_messages():
    code = (
        "import logging, pkgutil, importlib, sm_profiler\n"
        "from sm_profiler.printable import _printable_message\n"
        "for name in ('hook.entry', 'hook.guard', 'monitor.agent', 'monitor.uploader', 'rules', 'rules.runner',"
        " 'analysis.python_profiles', 'launch.request'):\n"
        "    importlib.import_module(f'sm_profiler.{name}')\n"
        "loggers = {n: l for n, l in logging.Logger.manager.loggerDict.items()"
        " if n.startswith('sm_profiler') and isinstance(l, logging.Logger)}\n"
        "assert len(loggers) >= 4, loggers\n"
        "print([name for name, logger in loggers.items() if _printable_message not in logger.filters])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ascii_streams_show_plain_equivalents():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=ASCII)
    stream.write("12 µs … ± 3 → é \udcff █")
    stream.flush()
    assert stream.buffer.getvalue() == rb"12 us ... +- 3 -> \xe9 \udcff #"


@pytest.mark.first(2)
@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["report", "gr\xfc\xdfe"], ["validate", "\x1b[31m"]])
def test_commands_print_in_an_ascii_locale(words, tmp_path):
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    done = subprocess.run(
        [sys.executable, "-m", "sm_profiler", *words], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == (0 if "--help" in words else 2)
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stderr


def test_messages_of_errors_are_one_printable_line():
    error = ConfigError("key \x1b[2J\n\udc80 is not valid")
    assert str(error) == r"key \x1b[2J\n\udc80 is not valid"


def test_prints_a_line_on_standard_error(capsys, monkeypatch):
    say("hello")
    assert capsys.readouterr().err == "sm-profiler: hello\n"
    monkeypatch.setattr(sys, "stderr", None)
    say("hello")


@pytest.mark.parametrize("stream", ["/dev/full", "closed pipe"])
def test_a_line_that_cannot_be_written_keeps_the_exit_code(stream):
    if stream == "closed pipe":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open(stream, os.O_WRONLY)
    code = f"import sys; from {say.__module__} import {say.__name__} as show; show('hello'); sys.exit(3)"
    try:
        assert subprocess.run([sys.executable, "-c", code], stderr=write, check=False).returncode == 3
    finally:
        os.close(write)
