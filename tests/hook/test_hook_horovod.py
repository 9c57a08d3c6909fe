"""Conversion of the window's part of Horovod's timeline, as written by a simulation of Horovod."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from test_hook_training import environment

from sm_profiler.hook import horovod_collector
from sm_profiler.hook.convert_horovod import NO_TENSOR, Timeline, events
from sm_profiler.hook.horovod_collector import HorovodCollector

HEAD = (
    '[\n{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":1700000000000000}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n'
)
TENSOR = (
    '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad.0"}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},\n'
)
CALLS = [
    '{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1}',
    '{"ph": "X", "name": "0", "ts": 150, "pid": 1, "dur": 0}',
    '{"ph": "E", "ts": 200, "pid": 1}',
    '{"ph": "B", "name": "ALLREDUCE", "ts": 300, "pid": 1}',
    '{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 310, "pid": 1}',
    '{"ph": "E", "ts": 390, "pid": 1}',
    '{"ph": "E", "ts": 400, "pid": 1, "args": {"dtype": "float32", "shape": "[10]"}}',
    '{"ph": "i", "name": "CYCLE_START", "ts": 500, "s": "g"}',
]
FOUND = [
    ("grad.0", "0", 150, 0),
    ("grad.0", "NEGOTIATE_ALLREDUCE", 100, 100),
    ("grad.0", "NCCL_ALLREDUCE", 310, 80),
    ("grad.0", "ALLREDUCE", 300, 100),
    (NO_TENSOR, "CYCLE_START", 500, 0),
]
JOINED = (HEAD + TENSOR + ",".join(CALLS) + "]").encode()
LINES = (HEAD + TENSOR + "".join(f"{call},\n" for call in CALLS)).encode()


PART = JOINED[: JOINED.index(b'{"ph": "E"') + 9]  # the first event is whole, and the next is not


def parts(found) -> list:
    return [(one.phase, one.name, one.start_us - 1_700_000_000_000_000, one.duration_us) for one in found]


@pytest.mark.parametrize("written", [JOINED, LINES])
@pytest.mark.parametrize("size", [1, 7, 100, 1_000_000])
def test_begins_and_ends_are_joined_across_reads(written, size):
    timeline = Timeline(0, 42)
    found = [event for at in range(0, len(written), size) for event in timeline.take(written[at : at + size])]
    assert parts(found) == FOUND
    assert timeline.broken == 0
    assert json.loads(found[3].args) == {"pid": 42, "dtype": "float32", "shape": "[10]"}
    assert [event.kind for event in found] == ["X", "X", "X", "X", "i"]


def test_a_broken_object_is_skipped():
    timeline = Timeline(0, 42)
    data = (
        HEAD.encode()
        + b'{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "a"b"}},\n'
        + LINES[len(HEAD) :]
    )
    assert parts(timeline.take(data)) == FOUND
    assert timeline.broken == 1
    assert list(timeline.take(b'{"ph": "E", "ts": "soon", "pid": 1},[1, {"ph": 5}], "x"')) == []


def test_names_may_be_of_any_language():
    timeline = Timeline(0, 42)
    found = list(timeline.take(LINES.replace(b"grad.0", "grädient".encode())))
    assert found[0].phase == "grädient"


def test_a_timeline_without_a_start_time_uses_the_monotonic_clock():
    timeline = Timeline(1_000_000.0, 42)
    (event,) = timeline.take(b'[\n{"ph": "i", "name": "CYCLE_START", "ts": 25, "s": "g"},\n')
    assert event.start_us == 1_000_025


def order(path, start: int, end: int, patience: float = 0) -> dict:
    base = 1_700_000_000_000_000
    return {
        "timeline": str(path), "start_us": base + start, "end_us": base + end, "patience_s": patience, "monotonic_us": 0, "pid": 42,
    }  # fmt: skip


def test_only_events_that_overlap_the_window_are_kept(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_bytes(JOINED)
    assert [one[1] for one in parts(events(order(path, 350, 450)))] == ["NCCL_ALLREDUCE", "ALLREDUCE"]
    assert [one[1] for one in parts(events(order(path, 395, 450)))] == ["ALLREDUCE"]


def test_buffered_events_are_awaited_for_a_limited_time(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_bytes(PART)
    slept = []

    def wait(seconds: float) -> bool:
        slept.append(seconds)
        if len(slept) == 3:
            path.write_bytes(JOINED)
        return len(slept) == 100

    assert len(list(events(order(path, 0, 450, 20), wait=wait))) == 5 - 1  # one came after the window
    assert len(slept) == 3
    path.write_bytes(PART)
    slept[:] = [0] * 10
    assert len(list(events(order(path, 0, 10_000, 2), wait=wait))) == 1
    assert len(slept) == 14
    slept[:] = [0] * 98
    assert len(list(events(order(path, 0, 10_000, 2), wait=wait))) == 1
    assert len(slept) == 100  # the training ended


class FakeSession(SimpleNamespace):
    def __init__(self, **more) -> None:
        super().__init__(rank=0, guard=self, off=[], note=lambda *_: None, **more)

    def failed(self, what: str, _error: BaseException) -> None:
        self.off.append(what)


def test_horovods_own_file_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(horovod_collector, "MAX_BYTES", 300_000)
    monkeypatch.setattr(horovod_collector, "MAX_BYTES_AFTER", 100_000)
    session, path = FakeSession(), tmp_path / "timeline.json"
    collector = HorovodCollector(session, path, ours=True)
    collector.beat()  # nothing there yet
    with path.open("wb") as file:
        file.write(b"x" * 200_000)
        file.flush()
        collector.beat()
        assert path.stat().st_size == 200_000  # before the window is over its beginning is needed
        file.write(b"x" * 200_000)
        file.flush()
        collector.beat()
        assert path.stat().st_size == 0
        assert session.off == ["horovod"]
        file.write(b"y" * 1000)  # Horovod continues at its offset
        file.flush()
    assert path.stat().st_size == 401_000
    assert path.stat().st_blocks * 512 < 100_000


HVD = """
import os, time
_file = None
def init():
    global _file, _start
    name = os.environ.get("HOROVOD_TIMELINE")
    if name:
        _start = time.time()
        _file = open(name, "w")
        _file.write("[\\n" + '{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":%d}},\\n' % (_start * 1e6))
        _file.write('{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad"}},\\n')
def allreduce(number):
    if _file:
        now = (time.time() - _start) * 1e6
        _file.write('{"ph": "B", "name": "ALLREDUCE_%d", "ts": %d, "pid": 1},{"ph": "E", "ts": %d, "pid": 1},' % (number, now, now + 5))
        _file.flush()
"""
SCRIPT = """
import json, os, time
import torch
from sm_profiler.hook import get_hook
hook = get_hook()
try:
    import horovod.torch as hvd
    hvd.init()
except ImportError:
    hvd = None
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    if hvd:
        hvd.allreduce(step)
        time.sleep(0.002)  # distinguishes steps by their microseconds
    optimizer.step()
    time.sleep(0.002)
print(json.dumps({"failures": hook.session.guard.failures, "notes": hook.session.notes, "at": os.environ.get("HOROVOD_TIMELINE")}))
"""


def train(folder, *, installed: bool = True, **more: str):
    window = '{"StartStep": 3, "NumSteps": 2, }'
    profile = {"ProfilingParameters": {"LocalPath": str(folder / "profile"), "HorovodProfilingConfig": window}}
    variables = environment(SM_PROFILER_CONFIG=json.dumps(profile), **more)
    if installed:
        (folder / "horovod").mkdir()
        (folder / "horovod" / "__init__.py").touch()
        (folder / "horovod" / "torch.py").write_text(HVD)
        variables["PYTHONPATH"] += os.pathsep + str(folder)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=100, env=variables
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = []
    for file in (folder / "profile").glob("framework/pevents/*/*_horovod_timeline.json"):
        records = json.loads(file.read_text())
        found += [record["name"] for record in records if record["ph"] != "M"]
    return json.loads(done.stdout), found


def test_the_windows_part_becomes_a_timeline_of_the_rank(tmp_path):
    shown, found = train(tmp_path)
    assert shown["failures"] == shown["notes"] == {}
    assert found == ["ALLREDUCE_3", "ALLREDUCE_4"]
    assert "/.sagemaker-ignore/" in shown["at"]
    assert not os.path.exists(shown["at"])  # noqa: PTH110 - the text that the script printed


def test_a_timeline_requested_by_the_script_is_not_modified(tmp_path):
    own = tmp_path / "own.json"
    shown, found = train(tmp_path, HOROVOD_TIMELINE=str(own))
    assert shown["at"] == str(own)
    assert found == ["ALLREDUCE_3", "ALLREDUCE_4"]
    assert own.stat().st_size > 0


def test_without_horovod_nothing_is_enabled(tmp_path):
    shown, found = train(tmp_path, installed=False)
    assert shown == {"failures": {}, "notes": {"horovod": "unavailable: Horovod is not installed"}, "at": None}
    assert found == []
