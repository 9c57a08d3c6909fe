"""`sm-profiler watch`: lines if there is no terminal, else a screen that q leaves."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import attrs
import pytest
from msgspec.structs import replace

from sm_profiler.cli import main
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.snapshot import Snapshot
from sm_profiler.serve.terminal import ASCII_BLOCKS, BLOCKS, frame, line_of, panel, sparks
from tests.support.serving import DEADLINE_S, end, make_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = make_job(tmp_path_factory.mktemp("watch") / "a-job", "--minutes", "2", "--scenario", "dataloader-slow")
    end(folder)
    return folder


@pytest.fixture(scope="module")
def snapshot(job):
    live = LiveJob(str(job))
    live.poll()
    return live.snapshot


def test_a_frame_has_verdict_shares_step_time_and_gpus(snapshot):
    text = frame("a-job: ended", snapshot, size=(90, 40), colour=False)
    assert text.startswith("a-job: ended\n")
    assert "INPUT_BOUND" in text
    assert "Loop: " in text
    assert re.search(r"step time: latest \d+ ms, mean \d+ ms  [▁▂▃▄▅▆▇█]+", text)
    assert re.search(r"GPUs? \d+ % busy, CPU \d+ %", text)


def test_a_job_that_goes_on_has_no_verdict_yet(tmp_path):
    """`INCONCLUSIVE (low confidence)` was its first line, seconds after the start."""
    folder = make_job(tmp_path / "a-job", "--minutes", "1", "--scenario", "no-framework")
    live = LiveJob(str(folder))
    live.poll()
    begun = replace(live.snapshot, state="running")
    assert begun.report.verdict.kind.value == "INCONCLUSIVE"
    for text in (line_of(begun), "\n".join(panel(begun, width=80))):
        assert "no verdict yet" in text
        assert "INCONCLUSIVE" not in text
    assert "INCONCLUSIVE (low confidence)" in line_of(replace(begun, state="ended"))
    metrics = attrs.evolve(begun.report.metrics, running=True)
    going = replace(begun, report=attrs.evolve(begun.report, metrics=metrics))
    assert "No verdict yet\n" in frame("a-job", going, size=(80, 40), colour=False)


def test_both_step_times_are_labelled(snapshot):
    assert re.search(r"; step time: latest \d+ ms, mean \d+ ms; ", line_of(snapshot))


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60), (20, 3)])
def test_a_frame_fits(snapshot, size):
    lines = frame("a-job" * 40, snapshot, size=size, colour=False).split("\n")
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= max(size[0], 40)


def test_names_cannot_control_the_terminal():
    text = frame("\x1b[2Jevil\r\n", Snapshot(), size=(80, 24), colour=False)
    assert "\x1b" not in text
    assert "\r" not in text


def test_sparks_are_drawn_from_zero():
    assert sparks((0.0, 1.0, 2.0), BLOCKS) == "▁▅█"
    assert sparks((0.0, 0.0), ASCII_BLOCKS) == "__"


def test_prints_a_line_without_a_terminal(job, capsys):
    assert main(["watch", str(job)]) == 0
    assert "completed; INPUT_BOUND (high confidence); Training waits for data" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "note", "line"),
    [
        ("ended", "ended with exit code 0", "ended with exit code 0"),
        ("ended", "was ended by SIGINT", "ended by SIGINT"),
        ("ended", "failed: no memory", "failed: no memory"),
        (
            "ended",
            "the run ended with exit code 1 and recorded nothing",
            "ended: the run ended with exit code 1 and recorded nothing",
        ),
        ("ended", "", "ended"),
        ("waiting", "", "waiting"),
    ],
)
def test_a_state_is_named_once(state, note, line):
    assert line_of(Snapshot(state=state, note=note)) == line


def test_a_line_reports_what_is_missing(tmp_path):
    live = LiveJob(str(tmp_path))
    live.poll()
    assert line_of(live.snapshot) == "waiting for the first data"


def test_a_source_that_does_not_exist_is_one_line(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "missing")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_q_leaves_the_terminal_as_it_was(job):
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "sm_profiler", "watch", str(job)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen, deadline, pressed = b"", time.monotonic() + DEADLINE_S, False
    while time.monotonic() < deadline:
        if select.select([parent], [], [], 0.2)[0]:
            try:
                data = os.read(parent, 65536)
            except OSError:
                break
            if not data:
                break
            seen += data
        if b"INPUT_BOUND" in seen and not pressed:
            pressed = True
            os.write(parent, b"q")
    assert process.wait(DEADLINE_S) == 0
    os.close(parent)
    assert b"\x1b[?1049h" in seen
    assert seen.rstrip().endswith(b"\x1b[?1049l")
