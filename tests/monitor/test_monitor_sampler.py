"""The sampler on fake clocks: when it ticks, what it writes, and how it handles failures."""

import errno
import json
import logging

import pytest

from sm_profiler.formats.system_writer import Measurement, SystemWriter
from sm_profiler.monitor.sampler import Sampler, Ticker

START = 1_795_261_080.0  # the start of a minute


class Time:
    """One fake clock, which is also a stop event whose waits advance it."""

    def __init__(self, seconds, *, late=0.0):
        self.now, self.end, self.late = 0.0, seconds, late

    def __call__(self):
        return self.now

    def wall(self):
        return START + self.now

    def is_set(self):
        return self.now >= self.end

    def wait(self, seconds):
        self.now = min(self.now + seconds + self.late, max(self.end, self.now))
        return self.now >= self.end


class Steady:
    name = "steady"

    def measure(self, _now):
        return [
            Measurement("cpu", "cpu0", "CPUUtilization", 100 / 3),
            Measurement("memory", "MemoryUsedPercent", "", 1),
        ]


class Broken:
    name = "broken"

    def __init__(self, error, times=10**9):
        self.error, self.times, self.calls = error, times, 0

    def measure(self, _now):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return [Measurement("gpu", "gpu0", "GPUUtilization", 1.0)]


def sample(tmp_path, interval, seconds, *sources, late=0.0, **more):
    time = Time(seconds, late=late)
    sampler = Sampler(tmp_path, "algo-1", interval, sources or [Steady()], time.wall, time, **more)
    sampler.run(time)
    return sampler, rows_of(tmp_path)


def rows_of(tmp_path):
    files = sorted((tmp_path / "system/incremental").rglob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("interval", [0.1, 0.2, 0.5, 1.0, 5.0, 60.0])
def test_each_minute_has_a_file_with_its_ticks(tmp_path, interval):
    sampler, rows = sample(tmp_path, interval, 300.05)
    assert sampler.ticks == int(300 / interval) + 1
    ticks = [row["Timestamp"] for row in rows if row["Type"] == "cpu"]
    assert ticks == [pytest.approx(START + number * interval, abs=1e-5) for number in range(sampler.ticks)]
    names = sorted(path.name for path in (tmp_path / "system/incremental").rglob("*.json"))
    assert names == [f"{int(START) + 60 * minute}.algo-1.json" for minute in range(6)]
    assert not list(tmp_path.rglob("*.tmp"))


def test_values_have_two_decimals_in_the_layout_of_the_service(tmp_path):
    _, rows = sample(tmp_path, 1.0, 1.5)
    assert rows[0] == {
        "Type": "cpu", "Name": "cpu0", "Dimension": "CPUUtilization", "Value": 33.33, "NodeId": "algo-1", "Timestamp": START,
    }  # fmt: skip
    assert rows[0]["Timestamp"] == rows[1]["Timestamp"]  # rows of one source share a time


def test_records_late_ticks_and_its_own_cost(tmp_path):
    spent = iter(number * 0.1 for number in range(10**6))
    _, rows = sample(tmp_path, 1.0, 90.0, late=0.7, cpu_seconds=lambda: next(spent))
    own = [(row["Name"], row["Value"]) for row in rows if row["Type"] == "monitor"]
    assert sum(value for name, value in own if name == "MonitorLateTicks") == 89
    assert sum(value for name, value in own if name == "MonitorMissedTicks") == 0
    assert 0 < max(value for name, value in own if name == "MonitorCPUPercent") < 1
    ticks = [row["Timestamp"] - START for row in rows if row["Type"] == "cpu"]
    assert ticks[-1] - int(ticks[-1]) == pytest.approx(0.7)  # late, but not increasingly so


def test_a_source_that_keeps_failing_is_reported_once_and_left_out(tmp_path, caplog):
    broken = Broken(OSError("gone"))
    with caplog.at_level(logging.WARNING):
        _, rows = sample(tmp_path, 1.0, 60.5, broken, Steady())
    assert broken.calls == 5
    assert [record.getMessage() for record in caplog.records] == ["sm-profiler: no broken metrics: OSError: gone"]
    assert len([row for row in rows if row["Type"] == "cpu"]) == 61


def test_a_source_may_fail_for_a_moment(tmp_path):
    _, rows = sample(tmp_path, 1.0, 10.5, Broken(OSError("busy"), times=3))
    assert len([row for row in rows if row["Type"] == "gpu"]) == 11 - 3


def test_an_unwritable_folder_is_one_warning(tmp_path, caplog):
    (tmp_path / "system").write_text("a file in place of the folder")
    time = Time(10)
    with caplog.at_level(logging.WARNING):
        sampler = Sampler(tmp_path, "algo-1", 1.0, [Steady()], time.wall, time)
        sampler._ticker = None
        for _ in range(10):
            sampler.tick()
            time.now += 1
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.records[0].getMessage()


def test_lost_rows_are_counted_at_the_end(tmp_path, caplog):
    (tmp_path / "system").write_text("a file in place of the folder")
    with caplog.at_level(logging.WARNING):
        sampler, rows = sample(tmp_path, 1.0, 10)
    written = len(Steady().measure(0))
    assert rows == []
    last = caplog.records[-1].getMessage()
    assert last.startswith(f"sm-profiler: {written * sampler.ticks + 3} rows of system metrics are lost: ")
    assert len(caplog.records) == 2


def test_a_disk_that_fills_and_is_cleared_loses_and_counts_only_what_it_refused(tmp_path, caplog, monkeypatch):
    put, full = SystemWriter._put, [False]

    def put_or_fail(writer, data):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(writer, data)

    monkeypatch.setattr(SystemWriter, "_put", put_or_fail)

    class Filling(Steady):
        def measure(self, now):
            full[0] = 20 <= now < 40
            return super().measure(now)

    with caplog.at_level(logging.WARNING):
        sampler, rows = sample(tmp_path, 1.0, 200, Filling())
    [first, last] = [record.getMessage() for record in caplog.records]
    assert "cannot be written" in first
    lost = int(last.split()[1])
    assert lost > 0
    own = sum(row["Type"] == "monitor" for row in rows)
    assert len(rows) - own == 2 * sampler.ticks - lost


def test_a_clock_set_back_loses_nothing(tmp_path):
    time = Time(1000)
    sampler = Sampler(tmp_path, "algo-1", 1.0, [Steady()], time.wall, time)
    for now in (10, 70, 20, 130):
        time.now = float(now)
        sampler.tick()
    sampler._writer.finish()
    assert len([row for row in rows_of(tmp_path) if row["Type"] == "cpu"]) == 4


def test_the_next_monitor_publishes_the_open_minute_of_a_killed_one(tmp_path):
    time = Time(1000)
    killed = Sampler(tmp_path, "algo-1", 1.0, [Steady()], time.wall, time)
    killed.tick()
    assert rows_of(tmp_path) == []
    time.now, time.end = 120.0, 120.5
    Sampler(tmp_path, "algo-1", 1.0, [Steady()], time.wall, time).run(time)
    assert [row["Timestamp"] for row in rows_of(tmp_path) if row["Type"] == "cpu"] == [START, START + 120]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("interval", [0.1, 0.2, 0.5, 1, 5, 60])
def test_ticks_do_not_drift(interval):
    clock = Clock()
    ticker = Ticker(interval, clock)
    for number in range(1, 10_001):
        clock.now += ticker.wait_seconds()
        assert clock.now == pytest.approx(100 + number * interval, abs=1e-6)
        clock.now += 0.003  # duration of a tick, and scheduling delay
        ticker.advance()
    assert (ticker.late, ticker.missed) == (0, 0)


def test_late_ticks_are_counted_and_delay_nothing():
    clock = Clock()
    ticker = Ticker(0.5, clock)
    clock.now += 0.8
    assert ticker.wait_seconds() == 0
    ticker.advance()
    assert (ticker.late, ticker.missed) == (1, 0)
    assert clock.now + ticker.wait_seconds() == pytest.approx(101.0)


def test_missed_ticks_are_skipped_and_counted():
    clock = Clock()
    ticker = Ticker(0.5, clock)
    clock.now += 2.7  # due at 100.5, 101, 101.5, 102, 102.5
    ticker.advance()
    assert (ticker.late, ticker.missed) == (1, 4)
    assert clock.now + ticker.wait_seconds() == pytest.approx(103.0)
