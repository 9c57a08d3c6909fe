"""`sm-profiler run --watch` and `--open`: the script's output stays what it is."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import urllib.request
from argparse import Namespace

import pytest

from sm_profiler.cli.run import LiveView
from sm_profiler.cli.run import run_run as run_command
from sm_profiler.errors import ProfilerError
from sm_profiler.formatting import shorten
from sm_profiler.processes import start_module
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.run_page import has_browser
from sm_profiler.serve.snapshot import Snapshot
from sm_profiler.serve.terminal import BLOCKS, LINES, Region, panel
from tests.support.serving import end, make_job, until

SCRIPT = """
import pathlib, sys, time
import torch
sys.stdout.write("out \\x1b[31mred\\x1b[0m ünï\\n")
sys.stderr.write("err\\n")
sys.stdout.flush()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not pathlib.Path("stop").exists():
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
sys.stdout.write("last")
"""
WRITTEN = "out \x1b[31mred\x1b[0m ünï\nlast".encode()


def command(*options):
    return [sys.executable, "-m", "sm_profiler", "run", *options, "train.py"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    folder = make_job(tmp_path_factory.mktemp("run") / "job", "--minutes", "2", "--scenario", "dataloader-slow")
    end(folder)
    live = LiveJob(str(folder))
    live.poll()
    return live.snapshot


@contextlib.contextmanager
def reading(stream):
    """Collect what a stream delivers."""
    found = bytearray()

    def read():
        with contextlib.suppress(OSError):  # the other end of a terminal is closed
            while data := os.read(stream, 65536):
                found.extend(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield found
    thread.join(60)


def test_the_panel_fits_and_names_the_verdict(snapshot):
    lines = panel(snapshot, width=60)
    assert 3 <= len(lines) <= LINES + 1
    assert max(map(len, lines)) <= 60
    assert "INPUT_BOUND" in lines[1]
    assert panel(Snapshot(state="waiting", note="\x1b[2Jx"), width=60)[1] == shorten(
        "sm-profiler: waiting: \\x1b[2Jx", 60
    )


def test_the_region_is_left_as_it_was_found(snapshot):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as out:
        region = Region(out)
        region.draw(panel(snapshot, width=80, blocks=BLOCKS), os.terminal_size((80, 24)))
        drawn = os.read(ours, 65536).decode()
        assert "\x1b[1;19r" in drawn
        assert drawn.count("\x1b7") == drawn.count("\x1b8")
        region.leave()
        assert "\x1b[r" in os.read(ours, 65536).decode()
        region.leave()
        out.write("x")
    assert os.read(ours, 10) == b"x"  # nothing was drawn twice
    os.close(ours)


@pytest.mark.parametrize(
    ("environment", "platform", "there"),
    [({}, "linux", False), ({"DISPLAY": ":0"}, "linux", True), ({"BROWSER": "x"}, "linux", True), ({}, "darwin", True)],
)
def test_a_browser_is_opened_only_with_a_display(environment, platform, there):
    assert has_browser(environment, platform) is there


def test_missing_packages_are_named_before_the_script_starts(monkeypatch):
    monkeypatch.setattr("sm_profiler.cli.run.find_spec", lambda name: None if name == "uvicorn" else True)
    LiveView(watch=True).check()
    with pytest.raises(ModuleNotFoundError, match="uvicorn"):
        LiveView(open=True).check()


def test_a_run_that_fails_at_once_is_not_waited_for(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    done = subprocess.run(command("--watch", "--open"), cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert done.returncode == 3
    assert done.stdout == b""


def test_viewers_end_if_the_command_cannot_be_started(tmp_path, monkeypatch):
    calls = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LiveView, "start", lambda _self, _root: calls.append("start"))
    monkeypatch.setattr(LiveView, "finish", lambda _self, recorded: calls.append(recorded))
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o700)
    options = Namespace(
        config=None, out=None, no_monitor=True, watch=True, open=True, module=False, words=["--", str(broken)]
    )
    with pytest.raises(ProfilerError):
        run_command(options)
    assert calls == ["start", False]


def test_a_page_without_an_answer_does_not_hold_the_script_up(tmp_path, monkeypatch, capsys):
    def start(_module, _arguments, *, stdin, stdout, new_session):
        return subprocess.Popen(["sleep", "300"], stdin=stdin, stdout=stdout, start_new_session=new_session)

    monkeypatch.setattr("sm_profiler.cli.run.start_module", start)
    monkeypatch.setattr("sm_profiler.cli.run.FIRST_PAGE_S", 0.1)
    view = LiveView(open=True)
    view.start(tmp_path)
    try:
        assert view._page.poll() is None
        assert "it did not start" in capsys.readouterr().err
    finally:
        view.finish(recorded=False)
    assert view._page.poll() is not None


def test_a_second_ctrl_c_does_not_change_the_exit_code(monkeypatch):
    def interrupted(_process, _seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("sm_profiler.cli.run.wait_for", interrupted)
    with subprocess.Popen(["sleep", "300"]) as process:
        LiveView(lines=process).finish(recorded=True)
        assert process.poll() is not None


def test_the_browser_gets_none_of_the_runs_streams(tmp_path):
    folder = make_job(tmp_path / "job", "--minutes", "1")
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho noise\necho noise >&2\ntouch {tmp_path}/opened\n")
    browser.chmod(0o700)
    pipe = subprocess.PIPE
    with start_module(
        "sm_profiler.serve.run_page",
        [str(folder)],
        environment={**os.environ, "BROWSER": str(browser)},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        new_session=True,
    ) as page:
        assert page.stdout.readline().startswith(b"http://")
        until((tmp_path / "opened").exists, 100)
        page.stdin.close()
        assert page.stdout.read() + page.stderr.read() == b""


def test_ctrl_backslash_gives_the_lines_back(tmp_path):
    folder = make_job(tmp_path / "job", "--minutes", "1")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = start_module(
        "sm_profiler.serve.terminal", [str(folder)], environment={**os.environ, "TERM": "xterm"}, stderr=theirs
    )
    os.close(theirs)
    with reading(ours) as seen:
        until(lambda: b"\x1b[1;25r" in seen, 100)
        process.send_signal(signal.SIGQUIT)
        process.wait(100)
    os.close(ours)
    assert b"\x1b[r" in bytes(seen)


@pytest.mark.long
def test_pipes_get_the_scripts_own_bytes(folder):
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "BROWSER")}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            command("--watch", "--open"), cwd=folder, stdout=pipe, stderr=pipe, env=environment
        ) as process,
        reading(process.stdout.fileno()) as out,
        reading(process.stderr.fileno()) as errors,
    ):
        address = until(lambda: re.search(rb"live page: (http://\S+)\n", errors), 100)[1].decode()
        page = until(lambda: urllib.request.urlopen(address).read(), 100)  # noqa: S310 - the one that was printed
        assert b'id="live"' in page
        until(lambda: re.search(rb"sm-profiler: [\d:]+ running; \w+ \(", errors), 100)
        (folder / "stop").touch()
        assert process.wait(200) == 0
    assert bytes(out) == WRITTEN
    assert b"\x1b" not in errors
    assert b" completed; " in errors
    assert errors.splitlines()[-1].startswith(b"sm-profiler: exit code 0; next: sm-profiler report")
    with pytest.raises(OSError):
        urllib.request.urlopen(address)  # noqa: S310 - as above


@pytest.mark.long
@pytest.mark.parametrize("ending", ["itself", "ctrl-c"])
def test_on_a_terminal_the_lines_stay_below_and_go(folder, ending):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        command("--watch"), cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    with reading(ours) as seen:
        until(lambda: b"\x1b[1;25r" in seen, 100)
        until(lambda: re.search(rb"sm-profiler: running; \w+ \(", seen), 100)
        until(lambda: list(folder.glob("sm-profiler/*/framework/pevents/*/*")), 100)  # it trains
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        until(lambda: b"\x1b[1;35r" in seen, 100)
        if ending == "itself":
            (folder / "stop").touch()
        else:
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(200)
    os.close(ours)
    assert code == (0 if ending == "itself" else 130)
    after = bytes(seen).rpartition(b"\x1b[r")[2]
    assert b"[1;" not in after  # nothing was reserved again
    assert (b"ended by SIGINT" if code else b"completed") in after
