"""After any sequence of events, kills and rotations, readers see exactly the flushed records."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats import trace_reader, trace_recovery, trace_writer
from sm_profiler.formats.system_writer import Measurement, SystemWriter, recover_minutes
from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.source import open_source

START_US = 1_700_000_000_000_000
NAMES = st.sampled_from(["Step:ModeKeys.TRAIN", "aten::conv2d", 'quo"te\\', "Zeile\n", "字", 'a, "ts": 5}', ""])
PHASES = st.sampled_from(["Forward", "Step:ModeKeys.TRAIN", 'p"hase', "Ω"])
ARGS = st.sampled_from(["", '{"pid": 27, "step_num": "3"}', '{"pid": 5, "worker_id": 2, "num_workers": 4, "pin_memory": true}',
                        '{"tid": 1, "step_num": 5, "device": "cpu"}'])  # fmt: skip
EVENTS = st.lists(
    st.tuples(PHASES, NAMES, st.integers(0, 10**7), st.integers(0, 10**6), ARGS, st.sampled_from("XXXi")), max_size=12
)
STEPS = st.lists(st.one_of(st.tuples(st.just("write"), EVENTS), st.tuples(st.just("pair"), st.integers(0, 5)),
                           st.tuples(st.just("age"), st.integers(1, 70)), st.tuples(st.just("kill"), st.integers(0, 40))), max_size=25)  # fmt: skip


class Run:
    """Carries out a sequence of steps and remembers what was flushed."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root, self.max_bytes, self.now_us, self.age_s = root, max_bytes, START_US, 0.0
        self.flushed: Counter = Counter()
        self.last: list = []
        self.writer = self.new()

    def new(self) -> TraceWriter:
        return TraceWriter(self.root, "3-algo-1", max_bytes=self.max_bytes, age_clock=lambda: self.age_s)

    def write(self, events: list) -> None:
        todo = []
        for phase, name, pause, length, args, kind in events:
            self.now_us += pause
            todo.append(TraceEvent(phase, name, self.now_us, length if kind == "X" else 0, args, kind))
        self.writer.write(todo)
        self.last = [(e.phase, e.name, e.start_us, e.duration_us, e.kind) for e in todo]
        self.flushed.update(self.last)

    def pair(self, inner: int) -> None:
        """An event as begin and end, with others and perhaps a new file between."""
        # Profilers write events when they end, so no earlier file ends later: files are named by their end.
        self.now_us = start = max([self.now_us, *(key[2] + key[3] for key in self.flushed)])
        self.writer.write([TraceEvent("Allreduce", "outer", start, 0, "", "B")])
        for number in range(inner):
            self.write([("Forward", f"inner{number}", 10_000_000, 5, "", "X")])
        self.now_us += 100
        self.writer.write([TraceEvent("Allreduce", "", self.now_us, 0, "", "E")])
        self.flushed["Allreduce", "outer", start, self.now_us - start, "X"] += 1
        self.last = []

    def age(self, seconds: int) -> None:
        self.age_s += seconds
        self.writer.tick()

    def kill(self, cut: int) -> None:
        """The process dies; the disk may miss the last bytes of the open file: then its last event is lost, no other."""
        writer = self.writer
        if writer._fd >= 0:
            if self.last and cut:
                size = writer._path.stat().st_size
                last_line = len(writer._path.read_bytes().rpartition(b"\n")[2])
                os.truncate(writer._path, size - min(cut, last_line - 1))
                self.flushed[self.last[-1]] -= 1
            os.close(writer._fd)
        self.last = []
        recover_traces(self.root)
        self.writer = self.new()


@settings(max_examples=120, deadline=None)
@given(STEPS, st.sampled_from([300, 2000, 10_000_000]))
def test_reads_traces_as_flushed(steps, max_bytes):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_recovery, "_alive", lambda _pid: False)
        run = Run(Path(folder), max_bytes)
        for what, value in steps:
            getattr(run, what)(value)
        run.writer.close()
        flushed = +run.flushed
        assert run.writer.dropped == 0
        assert not list(Path(folder).rglob("*.tmp"))
        if not flushed:
            return
        source = open_source(folder, cache=False)
        events = source.events()
        kinds = ["i" if moment else "X" for moment in events.instants]
        read = Counter(zip(events.phase.decode(), events.name.decode(), events.start_us.astype(int).tolist(),
                           events.duration_us.astype(int).tolist(), kinds, strict=True))  # fmt: skip
        assert read == flushed
        assert {quality.status for quality in source.quality()} == {"read"}
        assert set(events.node.decode()) == {"algo-1-3"}


ROWS = st.lists(st.builds(Measurement, st.sampled_from(["cpu", "gpu", "i/o"]), st.sampled_from(["cpu0", "", "IOPS"]),
                          st.sampled_from(["CPUUtilization", ""]), st.floats(width=32)), max_size=5)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "write", "tick", "kill", "finish"]), st.integers(0, 50), ROWS), max_size=25
    )
)
def test_reads_system_metrics_as_flushed(steps):
    with tempfile.TemporaryDirectory() as folder:
        writer, now, flushed = SystemWriter(Path(folder), "algo-2"), 1_700_000_000.25, []
        for what, seconds, rows in steps:
            now += seconds
            if what == "write":
                writer.write(now, rows)
                flushed += [(round(now, 6), round(row.value, 2), *row[:3]) for row in rows if math.isfinite(row.value)]
            elif what == "tick":
                writer.tick(now)
            elif what == "finish":
                writer.finish()
            else:
                if writer._fd >= 0:
                    os.close(writer._fd)
                recover_minutes(folder, "algo-2")
                writer = SystemWriter(Path(folder), "algo-2")
        writer.finish()
        assert not list(Path(folder).rglob("*.tmp"))
        if not flushed:
            return
        rows = open_source(folder, cache=False).system()
        assert set(rows.node.decode()) == {"algo-2"}
        read = zip(
            rows.timestamp.tolist(),
            rows.value.tolist(),
            rows.type.decode(),
            rows.name.decode(),
            rows.dimension.decode(),
            strict=True,
        )
        assert [*read] == flushed


@pytest.mark.smdebug
def test_smdebug_reads_our_files(tmp_path, smdebug_python):
    writer = TraceWriter(tmp_path, "0-algo-1", metadata=lambda: {"version": "1"})
    events = [
        TraceEvent("Forward", f"layer{n}", START_US + 1000 * n, 500, f'{{"pid": 27, "step_num": "{n}"}}')
        for n in range(50)
    ]
    writer.write(events)
    writer.close()
    metrics = SystemWriter(tmp_path, "algo-1")
    for tick in range(200):
        metrics.write(START_US / 1e6 + tick / 2, [Measurement("cpu", "cpu0", "CPUUtilization", tick / 3)])
    metrics.finish()
    script = (
        "import sys, json, logging; logging.disable(50)\n"
        "from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame\n"
        "frame = PandasFrame(sys.argv[1])\n"
        "fw, sy = frame.get_all_framework_metrics(), frame.get_all_system_metrics()\n"
        "print(json.dumps([fw[['framework_metric', 'step', 'process', 'nodeID', 'start_time']].values.tolist(), sy['value'].tolist()]))\n"
    )
    framework, system = json.loads(smdebug_python(script, str(tmp_path)).splitlines()[-1])
    assert [row[:4] for row in framework] == [[f"layer{n}", n, "Forward", "algo-1-0"] for n in range(50)]
    assert framework[3][4] == "2023-11-14T22:13:20:003000"
    assert system == [round(tick / 3, 2) for tick in range(200)]


def test_keeps_flushed_records_on_a_full_disk(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path, "0-algo-1")
    writer.write([TraceEvent("Forward", "a", START_US, 5)])
    real = os.write

    def full(handle, data):
        real(handle, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    writer.write([TraceEvent("Forward", "b", START_US + 10, 5)])
    monkeypatch.setattr(os, "write", real)
    writer.write([TraceEvent("Forward", "c", START_US + 20, 5)])
    writer.close()
    source = open_source(tmp_path, cache=False)
    assert source.events().name.decode().tolist() == ["a", "b", "c"]
    assert source.quality()[0].status == "read"


def test_bounds_the_memory_of_the_writers(tmp_path):
    """Names and phases may be generated, a new one for every event."""
    writer = TraceWriter(tmp_path, "0-algo-1")
    for turn in range(300):
        at = START_US + 1000 * turn
        names = [(f"phase {turn % 30} {number}", f"{'x' * 500} {turn} {number}") for number in range(100)]
        writer.write([TraceEvent(phase, name, at, 5) for phase, name in names])
        if not writer.write_spans([(phase, name, at * 1000, at * 1000 + 5, -1, None) for phase, name in names], 0, 1):
            writer.write([TraceEvent(phase, name, at, 0) for phase, name in names])
    held = sum(len(name) for name in writer._names) + sum(len(phase) + len(name) for phase, name in writer._heads)
    assert held < 2_000_000
    assert len(writer._phases) <= 3000
    writer.close()
    assert writer.files > 1
    events = open_source(tmp_path, cache=False).events()
    assert len(events) == 60_000
    assert set(events.phase.decode()) == {f"phase {turn} {number}" for turn in range(30) for number in range(100)}
    metrics = SystemWriter(tmp_path, "algo-1")
    for number in range(25_000):
        metrics.write(START_US / 1e6, [Measurement("network", f"veth{number}", "bytes", 1.0)])
    assert len(metrics._heads) <= 10_000
    metrics.finish()
    assert len(open_source(tmp_path, cache=False).system()) == 25_000


def failing(*_):
    raise OSError(28, "No space left on device")


def test_retries_the_backlog_once_the_disk_works_again(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path, "0-algo-1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        writer.write([TraceEvent("Forward", "a", START_US, 5)])
        assert not writer.write_spans([("Forward", "b", START_US * 1000, START_US * 1000, -1, None)], 0, 1)
    assert "No space left on device" in writer.error
    writer.tick()
    writer.close()
    assert writer.dropped == 0
    assert open_source(tmp_path, cache=False).events().name.decode().tolist() == ["a"]


def test_counts_events_once_it_has_given_up(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path, "0-algo-1", fail_threshold=2)
    monkeypatch.setattr(os, "write", failing)
    for _ in range(3):
        writer.write([TraceEvent("Forward", "a", START_US, 5)])
    assert writer.given_up
    writer.close()
    assert writer.dropped == 3
    assert not list(tmp_path.rglob("*.json"))


def test_counts_the_backlog_beyond_its_limit_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_writer, "BACKLOG_BYTES", 128 * 10)
    writer = TraceWriter(tmp_path, "0-algo-1")
    monkeypatch.setattr(os, "write", failing)
    writer.write([TraceEvent("Forward", "a", START_US, 5)] * 25)
    assert writer.dropped == 15
    writer.close()
    assert writer.dropped == 25


@pytest.mark.parametrize("replaced", [False, True])
def test_counts_the_events_of_a_file_that_was_removed(tmp_path, replaced):
    root = tmp_path / "profile"
    writer = TraceWriter(root, "0-algo-1")
    writer.write([TraceEvent("Forward", "a", START_US, 5)] * 3)
    assert writer.write_spans([("Forward", "b", START_US * 1000, START_US * 1000, -1, None)] * 4, 0, 1)
    writer.tick()
    assert writer.dropped == 0
    shutil.rmtree(root)
    if replaced:
        root.write_text("in the way")
    writer.tick()
    assert writer.dropped == 7
    writer.write([TraceEvent("Forward", "c", START_US, 5)])
    writer.close()
    assert writer.dropped == 7 + replaced
    if not replaced:
        assert open_source(root, cache=False).events().name.decode().tolist() == ["c"]


def test_starts_a_file_for_each_hour(tmp_path):
    writer = TraceWriter(tmp_path, "0-algo-1")
    hours = [START_US + hour * 3_600_000_000 for hour in (0, 0, 1, 2)]
    writer.write([TraceEvent("Forward", "a", at, 5) for at in hours])
    assert not writer.write_spans([("Forward", "b", hours[0] * 1000, hours[0] * 1000, -1, None)], 0, 1)
    writer.close()
    assert writer.files == 3
    assert len(list((tmp_path / "framework/pevents").iterdir())) == 3
    assert len(open_source(tmp_path, cache=False).events()) == 4


def test_a_forked_child_leaves_the_open_file_alone(tmp_path):
    writer = TraceWriter(tmp_path, "0-algo-1")
    writer.write([TraceEvent("Forward", "a", START_US, 5)])
    writer.abandon()
    writer.close()
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".tmp"]
    assert recover_traces(tmp_path) == 0  # this process lives


@pytest.mark.parametrize(("cut", "dropped"), [(0, 2), (1, 3), (40, 3)])
def test_an_event_that_is_cut_off_is_counted(tmp_path, monkeypatch, cut, dropped):
    monkeypatch.setattr(trace_recovery, "_alive", lambda _pid: False)
    writer = TraceWriter(tmp_path, "0-algo-1", metadata=lambda: {"rank": 0, "pid": 27, "dropped": 2})
    writer.write([TraceEvent("Forward", "a", START_US + at, 5, '{"pid": 27, "step_num": "3"}') for at in range(3)])
    os.truncate(writer._path, writer._path.stat().st_size - cut)
    writer.abandon()
    assert recover_traces(tmp_path, stopped=False) == 1
    source = open_source(tmp_path, cache=False)
    assert len(source.events()) == 3 - bool(cut)
    assert [one["args"]["dropped"] for one in source.metadata()] == [2, dropped]


def test_a_file_that_a_process_of_another_container_writes_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_recovery, "_alive", lambda _pid: False)  # as it looks from there
    writer = TraceWriter(tmp_path, "0-algo-1")
    writer.write([TraceEvent("Forward", "a", START_US, 5)])
    assert recover_traces(tmp_path) == 0
    writer.write([TraceEvent("Forward", "b", START_US, 5)])
    writer.close()
    assert len(open_source(tmp_path, cache=False).events()) == 2


def test_processes_that_recover_at_once_keep_each_event_once(tmp_path):
    for number in range(40):
        writer = TraceWriter(tmp_path, f"{number}-algo-1")
        writer.write([TraceEvent("Forward", "a", START_US, 5)])
        writer.abandon()
    for path in tmp_path.rglob("*.tmp"):
        path.rename(path.with_name(path.name.replace(f"_{os.getpid()}_", "_gone_")))
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: recover_traces(tmp_path), range(8)))
    assert sum(counts) == 40
    assert len(open_source(tmp_path, cache=False).events()) == 40
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_killed_process_whose_parent_has_not_noticed_is_no_living_one(tmp_path):
    writer = TraceWriter(tmp_path, "0-algo-1")
    writer.write([TraceEvent("Forward", "a", START_US, 5)])
    writer.abandon()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (path,) = tmp_path.rglob("*.tmp")
    path.rename(path.with_name(path.name.replace(f"_{os.getpid()}_", f"_{child.pid}_")))
    assert recover_traces(tmp_path) == 0
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays until its exit code is taken
    try:
        assert recover_traces(tmp_path) == 1
    finally:
        child.communicate()


def test_closes_a_file_of_a_certain_age(tmp_path):
    now = [0.0]
    writer = TraceWriter(tmp_path, "0-algo-1", close_seconds=10, age_clock=lambda: now[0])
    writer.write([TraceEvent("Forward", "a", START_US, 5)])
    writer.tick()
    assert writer.files == 0
    now[0] = 11.0
    writer.tick()
    assert writer.files == 1


def test_counts_system_metrics_on_a_full_disk(tmp_path, monkeypatch):
    metrics = SystemWriter(tmp_path, "algo-1")
    monkeypatch.setattr(os, "write", failing)
    metrics.write(START_US / 1e6, [Measurement("cpu", "cpu0", "CPUUtilization", 1.0)] * 3)
    assert metrics.dropped == 3
    assert "No space left on device" in metrics.error


@pytest.mark.parametrize("args", [
    {"rank": "x", "collectors": 5, "framework": 7, "node": None}, {"rank": True, "collectors": {"a": 1, "b": "on"}, "later": [1], "new": "x"},
])  # fmt: skip
def test_own_metadata_of_wrong_types_is_left_out(args):
    record = {"name": "sm_profiler/process", "ph": "M", "pid": 0, "args": args}
    rows, _ = trace_reader.read_trace(json.dumps([record]).encode(), "algo-1-0", "k")
    (kept,) = rows.metadata
    assert "rank" not in kept["args"]
    assert kept["args"].get("collectors", {}).keys() <= {"b"}
    assert "later" not in kept["args"]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_disk_that_stays_full_keeps_what_is_lost_in_the_file(tmp_path, monkeypatch, steps):
    """The record of the process goes where blanks were, and the array closes in the place of the last event."""
    writer = TraceWriter(
        tmp_path, "0-algo-1", metadata=lambda: {"dropped": writer.dropped, "disk_error": writer.error, "rank": 0}
    )
    if steps:
        writer.write([TraceEvent("Forward", str(step), START_US + step, 5) for step in range(steps)])
    else:
        writer._open(START_US, "2023111422")
    monkeypatch.setattr(os, "write", failing)
    writer.write([TraceEvent("Forward", "lost", START_US + 10, 5)])
    writer.close()
    source = open_source(tmp_path, cache=False)
    assert source.events().name.decode().tolist() == [str(step) for step in range(steps - 1)]
    assert source.quality()[0].status == "read"
    last = source.metadata()[-1]["args"]
    assert last["dropped"] == 1 + bool(steps)
    assert "No space left on device" in last["disk_error"]
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("away_us", [10**18, 10**12, -(10**12), -START_US])
def test_no_file_is_named_after_an_event_far_from_now(tmp_path, away_us):
    writer = TraceWriter(tmp_path, "3-algo-1", start_us=START_US, now_us=lambda: START_US + 50)
    for number in range(3):
        writer.write([TraceEvent("Forward", "Net", START_US + number, 10)])
        writer.write([TraceEvent("Mine", "mark", START_US + away_us, 10)])
    writer.close()
    (file,) = tmp_path.glob("framework/pevents/*/*.json")
    assert int(file.name.partition("_")[0]) in range(START_US, START_US + 51)
    assert sum(row["ph"] == "X" for row in json.loads(file.read_text())) == 6
