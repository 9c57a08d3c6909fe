"""Profiles whose processes and monitor were killed together: what they left open is read, and nothing is changed."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from sm_profiler.formats.layout import LOADING_FOLDER, STOP_FOLDER
from sm_profiler.formats.system_writer import Measurement, SystemWriter
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.identity import host_id
from sm_profiler.monitor.node_state import NodeLock
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from sm_profiler.source.open_files import LeftStorage
from sm_profiler.source.opening import NoProfilerDataError

STEP = "Step:ModeKeys.TRAIN"


def leave(root, *, at, host, rank=0, steps=40):
    """Write the files of a job until `at`, and leave them open; return the writer."""
    start = int(at * 1e6) - steps * 100_000
    process = {"version": "1", "node": "algo-1", "rank": rank, "pid": 1, "host": host, "start_us": start}
    writer = TraceWriter(root, f"{rank}-algo-1", metadata=lambda: process)
    events = (
        TraceEvent(STEP, STEP, start + 100_000 * step, 90_000, json.dumps({"pid": 1, "step_num": str(step)}))
        for step in range(steps)
    )
    writer.write(events)
    system = SystemWriter(root, "algo-1")
    system.write(at, [Measurement("cpu", "cpu0", "CPUUtilization", 50.0)])
    lock = NodeLock(root, "algo-1")
    if lock.acquire():
        lock.release()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = next((root / "framework/pevents").glob(f"{rank}-*.tmp"))
    path.rename(path.with_name(path.name.replace(f"_{os.getpid()}_", f"_{gone.pid}_")))
    return writer


def tree(root):
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def here():
    return host_id(in_container=False)


def test_what_was_left_open_is_read_and_judged(tmp_path, here):
    leave(tmp_path, at=time.time() - 300, host=here).abandon()
    before = tree(tmp_path)
    source = open_source(tmp_path)
    assert isinstance(source.storage, LeftStorage)
    report = build_report(source)
    assert tree(tmp_path) == before
    assert report.metrics.ending.state == "killed"
    assert report.metrics.ending.sentence.startswith(
        "The job was ended by a signal after at least 40 training steps; its last sign of life was 5"
    )
    assert len(report.metrics.ranks[0].iterations) == 39
    assert report.metrics.system.rows == 1
    assert not report.metrics.running


@pytest.mark.parametrize(
    ("ago", "sentence"),
    [
        (300, "The job ended without a word after at least 40 training steps: its last sign of life was 5"),
        (
            5 * 86400,
            "The job ended without a word after at least 40 training steps: its last sign of life was 5 days be",
        ),
        (5, "The job is still running"),
    ],
)
def test_a_process_of_another_machine_may_live(tmp_path, ago, sentence):
    leave(tmp_path, at=time.time() - ago, host="another").abandon()
    assert build_report(open_source(tmp_path)).metrics.ending.sentence.startswith(sentence)


HANG = {
    "state": "hanging", "waited": 60.0, "longest": 0.0, "cpu": 0.001, "same": True, "steps": 0,
    "threads": [{"name": "MainThread", "training": True, "frames": [["/job/train.py", 12, "load"]]}],
}  # fmt: skip


@pytest.mark.parametrize("folder", [STOP_FOLDER, LOADING_FOLDER])
@pytest.mark.parametrize("taken", [True, False])  # the number of a process of another machine, by one of this
def test_a_training_that_a_signal_ends_before_its_first_step_is_over_at_once(tmp_path, folder, taken):
    """It counted as running for a quarter of an hour: the file with its hang was finished long before the signal."""
    start, pid = int((time.time() - 100) * 1e6), os.getpid() if taken else 999999999
    process = {"version": "1", "node": "algo-1", "rank": 0, "pid": pid, "host": "another", "start_us": start}
    if folder == STOP_FOLDER:
        writer = TraceWriter(tmp_path, "0-algo-1", metadata=lambda: process)
        args = {"pid": pid, "step_num": "-1"} | HANG
        writer.write([TraceEvent("sm_profiler/hang", "hang", start, 60_000_000, json.dumps(args))])
        writer.close()
    (tmp_path / folder).mkdir(parents=True)
    stack = 'Stack (most recent call first):\n  File "/job/train.py", line 12 in load\n'
    (tmp_path / folder / f"0-algo-1_{pid}_15").write_text(f"{json.dumps(process)}\n{stack}")
    (tmp_path / folder / f"0-algo-1_{pid}_1").write_text(f"{json.dumps(process)}\n")
    before = tree(tmp_path)
    report = build_report(open_source(tmp_path))
    assert tree(tmp_path) == before
    assert not report.metrics.running
    assert (
        report.metrics.ending.sentence
        == "The job was stopped by SIGTERM before its first training step, at train.py:12."
    )
    if folder == STOP_FOLDER:
        assert report.verdict.main.kind == "HANG"
        assert "has been at train.py:12 in load" in report.verdict.main.headline


def test_a_file_that_is_still_written_is_left_alone(tmp_path, here):
    writer = leave(tmp_path, at=time.time(), host=here)
    lock = NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    with pytest.raises(NoProfilerDataError):
        open_source(tmp_path)
    writer.abandon()
    assert {item.is_system for item in open_source(tmp_path).files} == {False}
    lock.release()
    assert {item.is_system for item in open_source(tmp_path).files} == {False, True}
    with pytest.raises(NoProfilerDataError):
        open_source(tmp_path, left_open=False)


def test_without_locks_the_age_of_a_file_decides(tmp_path, here, monkeypatch):
    def refuse(*_):
        raise OSError

    leave(tmp_path, at=time.time(), host=here).abandon()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(NoProfilerDataError):
        open_source(tmp_path)
    for path in tmp_path.rglob("*.tmp"):
        os.utime(path, (1, 1))
    assert len(open_source(tmp_path).files) == 2


def test_what_was_left_joins_what_is_complete_in_the_order_of_keys(tmp_path, here):
    writer = TraceWriter(tmp_path / "profiler-output", "0-algo-1")
    writer.write([TraceEvent(STEP, STEP, int((time.time() - 900) * 1e6), 5)])
    writer.close()
    leave(tmp_path / "profiler-output", at=time.time() - 300, host=here, rank=1).abandon()
    storage = open_source(tmp_path).storage
    keys = [info.key for info in storage.list("framework/")]
    assert len(keys) == 3, keys
    assert keys == sorted(keys)
    assert all(storage.exists(key) and storage.read(key) for key in keys[:2])
    assert storage.uri == str(tmp_path / "profiler-output")
    storage.write("x", b"1")
    assert (tmp_path / "profiler-output" / "x").read_bytes() == b"1"
    shutil.rmtree(tmp_path)


def open_trace(root):
    return next((root / "framework/pevents").glob("*.tmp"))


def test_links_are_followed_within_a_profile_only(tmp_path, here):
    root = tmp_path / "profile"
    leave(root, at=time.time() - 300, host=here).abandon()
    exits = root / ".sagemaker-ignore/exits"
    exits.mkdir(parents=True)
    (exits / "0-algo-1_999998_5").symlink_to("/dev/zero")
    (tmp_path / "secret").write_text('{"token": "secret"}\n\1')
    (exits / "0-algo-1_999998_6").symlink_to(tmp_path / "secret")
    copies = open_source(root).storage._left.root
    assert not list(copies.rglob("*_99999*"))
    assert not any(b"secret" in path.read_bytes() for path in copies.rglob("*") if path.is_file())


def test_what_is_too_long_for_an_open_file_is_not_copied(tmp_path, here):
    leave(tmp_path, at=time.time() - 300, host=here).abandon()
    trace = open_trace(tmp_path)
    os.truncate(trace, 30 << 30)  # sparse
    source = open_source(tmp_path)
    assert not list(source.storage._left.root.rglob("*pevents/*/*"))
    assert trace.exists()


@pytest.mark.parametrize(
    "line",
    [
        '"abc"', "[1]", '{"ph":"M","args":5}', "[" * 200_000, '{"ph":"X","ts":' + "9" * 400 + ',"dur":1}',
        '{"ph":"X"}', '{"ph":"X","ts":"x","dur":null}', '{"ph":"M","name":"process","args":{"start_us":[]}}',
    ],
)  # fmt: skip
def test_a_damaged_line_costs_no_other(tmp_path, here, line):
    leave(tmp_path, at=time.time() - 300, host=here).abandon()
    trace = open_trace(tmp_path)
    trace.write_bytes(trace.read_bytes().rstrip().removesuffix(b",") + b",\n" + line.encode())
    report = build_report(open_source(tmp_path))
    assert len(report.metrics.ranks[0].iterations) == 39
