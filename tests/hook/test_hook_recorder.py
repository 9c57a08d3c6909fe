"""A disk that hangs: the queue stays bounded, closing ends, and every record is either written or counted as lost."""

import json
import os
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook import recorder as recorder_module
from sm_profiler.hook.clock import Timebase
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.overhead import OverheadController
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.recorder import Recorder
from sm_profiler.hook.steps import StepTracker

LIMIT = 1000


class Disk:
    """Blocks all writes to trace files while it hangs."""

    def __init__(self, monkeypatch, folder) -> None:
        self.works = threading.Event()
        self.works.set()
        self.hanging = 0
        write = os.write

        def hang(descriptor: int, data: bytes) -> int:
            if not self.works.is_set() and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
                self.hanging += 1
                self.works.wait()
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", hang)


@pytest.fixture
def disk(monkeypatch, tmp_path):
    monkeypatch.setattr(recorder_module, "QUEUE_RECORDS", LIMIT)
    monkeypatch.setattr(recorder_module, "DISK_SECONDS", 0.5)
    disk = Disk(monkeypatch, tmp_path)
    yield disk
    disk.works.set()


@pytest.fixture
def recorder(tmp_path):
    tracker = StepTracker(lambda _: None)
    controller = OverheadController(tracker, {}, lambda _: None, work=(work := OwnWork(lambda _: None)))
    recorder = Recorder(
        TraceWriter(tmp_path, "0-algo-1"), Timebase(), Guard(),
        controller=controller, work=work, events=deque(), on_beat=lambda: None, flush_seconds=0.01,
    )  # fmt: skip
    recorder._read_memory = lambda: None  # only the test's own records are counted
    recorder.start()
    return recorder


def produce(recorder, count: int) -> None:
    now = time.perf_counter_ns()
    for number in range(count):
        recorder.records.append(("Forward", "Net", now, now + 1000, number, None))
        if number % 16 == 0:
            recorder.trim()  # as the training thread does at metered steps


def until(happened) -> None:
    for _ in range(1000):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError(happened)


def written(folder) -> int:
    files = list(folder.glob("framework/pevents/*/*.json"))
    return sum(row.get("ph") == "X" for file in files for row in json.loads(file.read_text()))


def test_one_lost_event_is_no_plural(recorder):
    recorder._overflow = 1
    assert recorder._lost() == "1 event is lost"


def test_a_disk_that_hangs_neither_fills_the_memory_nor_blocks_the_end(disk, recorder, caplog):
    disk.works.clear()
    produce(recorder, 1)
    until(lambda: disk.hanging)
    produce(recorder, 20 * LIMIT)
    assert len(recorder.records) <= LIMIT + 16
    assert recorder.dropped >= 19 * LIMIT - 16
    began = time.monotonic()
    recorder.close()
    assert time.monotonic() - began < 5
    assert recorder.dropped == 20 * LIMIT + 1
    (line,) = caplog.messages
    assert line == "sm-profiler: the disk does not answer, the profile ends incomplete: 20001 events are lost"


def test_a_disk_that_answers_again_gets_what_was_kept(disk, recorder, tmp_path, caplog):
    produce(recorder, 10)
    until(lambda: recorder.writer.written and not recorder.records)
    disk.works.clear()
    produce(recorder, 1)
    until(lambda: disk.hanging)
    produce(recorder, 3 * LIMIT)
    disk.works.set()
    recorder.close()
    assert recorder.dropped >= 2 * LIMIT - 16
    assert written(tmp_path) + recorder.dropped == 3 * LIMIT + 11
    assert caplog.messages == []


def test_a_disk_that_answers_after_closing_gave_up_is_left_alone(disk, recorder, tmp_path):
    disk.works.clear()
    produce(recorder, 1)
    until(lambda: disk.hanging)
    produce(recorder, 100)
    recorder.close()
    disk.works.set()
    recorder._thread.join(timeout=10)
    assert not recorder._thread.is_alive()
    assert written(tmp_path) == 0
    assert recorder.dropped == 101


def test_a_task_that_hangs_does_not_block_the_end(disk, recorder, monkeypatch, caplog):
    monkeypatch.setattr(recorder_module, "TASK_SECONDS", 0.5)
    started = threading.Event()

    def task() -> None:
        started.set()
        disk.works.wait()

    disk.works.clear()
    recorder.tasks.append(task)
    assert started.wait(timeout=10)
    recorder.close()
    assert "the disk does not answer" in caplog.text


def test_slow_progress_is_waited_for(disk, recorder, tmp_path):
    for _ in range(4):
        recorder.tasks.append(lambda: time.sleep(0.3))  # together longer than the patience with one operation
    produce(recorder, 5)
    recorder.close()
    assert written(tmp_path) == 5
    assert recorder.dropped == 0


def test_a_file_that_cannot_be_completed_is_not_waited_for(recorder, monkeypatch):
    def finish(_):
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(TraceWriter, "finish", finish)
        recorder.complete_file(threading.TIMEOUT_MAX)
    recorder.close()


def test_without_proc_all_but_the_resident_memory_is_recorded(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "STATM", tmp_path / "nothing")
    produce(recorder, 10)
    until(lambda: not recorder.records)
    recorder.close()
    assert written(tmp_path) == 10
    assert "resident_bytes" not in recorder_module.memory()


def test_a_record_that_no_file_can_hold_is_counted_and_costs_no_others(recorder, tmp_path, caplog):
    now = time.perf_counter_ns()
    recorder.records.append((["Forward"], "Net", now, now + 1000, 1, None))
    until(lambda: recorder.dropped)
    produce(recorder, 10)
    recorder.events.append(TraceEvent("Mine", None, 1, 2))
    until(lambda: recorder.dropped == 2)
    recorder.close()
    assert written(tmp_path) == 10
    assert recorder.dropped == 2
    (line,) = caplog.messages
    assert line.startswith("sm-profiler: recording switched off, training continues: TypeError")
