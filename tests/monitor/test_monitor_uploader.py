"""The uploader on a fake clock and destination: what it takes, in which order, and how it sits out an outage."""

import logging
import os

import pytest

from sm_profiler.monitor.uploader import LONGEST_PAUSE_S, QUEUE_FILES, Uploader

MINUTE = "system/incremental/2026112111/1795261080.algo-1.json"
TRACE = "framework/pevents/2026112111/1795261085000000_0-algo-1_pythontimeline.json"


class Clock:
    """A clock whose waiting takes no time; `events` happen while somebody waits."""

    def __init__(self, end=10**9):
        self.now, self.end, self.events, self.waits = 0.0, end, [], []

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds
        for at, event in [item for item in self.events if item[0] <= self.now]:
            self.events.remove((at, event))
            event()
        return self.now >= self.end

    def is_set(self):
        return self.now >= self.end


class Bucket:
    """Takes everything, but what `refuse` says no to."""

    uri = "s3://bucket/job/profiler-output"

    def __init__(self):
        self.files, self.puts, self.refuse, self.attempts = {}, [], lambda _key: None, 0

    def put(self, key, what):
        self.attempts += 1
        if error := self.refuse(key):
            raise error
        self.files[key] = what if isinstance(what, bytes) else what.read_bytes()
        self.puts.append(key)

    def get(self, key):
        if error := self.refuse(key):
            raise error
        return self.files.get(key)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def bucket():
    return Bucket()


def write(root, key, data=b"{}\n", mtime=None):
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    return path


def uploader(tmp_path, bucket, clock):
    return Uploader(tmp_path, bucket, clock, clock.wait)


def down(_key):
    return ConnectionError("no route to host")


def test_closed_files_go_up_once_and_open_ones_stay(tmp_path, bucket, clock):
    write(tmp_path, MINUTE)
    write(tmp_path, TRACE)
    write(tmp_path, MINUTE + ".tmp")
    write(tmp_path, ".sagemaker-ignore/monitor-algo-1.lock")
    write(tmp_path, "framework/.sagemaker-ignore/x")
    write(tmp_path, "system/training_job_end.ts", b"")
    up = uploader(tmp_path, bucket, clock)
    assert up.drain(10)
    assert up.drain(10)
    assert sorted(bucket.puts) == sorted([MINUTE, TRACE])


def test_a_file_that_grew_goes_up_again(tmp_path, bucket, clock):
    write(tmp_path, MINUTE, b"1\n", mtime=1)
    up = uploader(tmp_path, bucket, clock)
    up.drain(10)
    write(tmp_path, MINUTE, b"1\n2\n", mtime=2)
    up.drain(10)
    assert bucket.files[MINUTE] == b"1\n2\n"


def test_oldest_first(tmp_path, bucket, clock, monkeypatch):
    monkeypatch.setattr("sm_profiler.monitor.uploader.PARALLEL", 1)
    for number in (3, 1, 2):
        write(tmp_path, f"a/{number}", mtime=number)
    uploader(tmp_path, bucket, clock).drain(10)
    assert bucket.puts == ["a/1", "a/2", "a/3"]


def test_an_outage_of_hours_loses_nothing_and_asks_seldom(tmp_path, bucket, clock, caplog):
    bucket.refuse = down
    clock.end = 3 * 3600.0
    for minute in range(120):
        clock.events.append((60.0 * minute, lambda minute=minute: write(tmp_path, f"a/{minute}", mtime=minute)))
    clock.events.append((2 * 3600.0, lambda: setattr(bucket, "refuse", lambda _key: None)))
    up = uploader(tmp_path, bucket, clock)
    with caplog.at_level(logging.WARNING):
        up.run(clock)
    assert len(bucket.files) == 120
    assert bucket.attempts < 120 + 4 * 2 * 3600 / 20
    assert len(caplog.records) == 1


def test_pauses_double_up_to_a_minute_and_begin_again_after_success(tmp_path, bucket, clock):
    write(tmp_path, "a/1")
    bucket.refuse = down
    up = uploader(tmp_path, bucket, clock)
    longest = []
    for _ in range(12):
        up.round(up.pending())
        longest.append(max(up.pause(LONGEST_PAUSE_S) for _ in range(200)))
    assert longest[:4] == [pytest.approx(0.5 * 2**n, rel=0.1) for n in range(4)]
    assert longest[-1] == pytest.approx(LONGEST_PAUSE_S, rel=0.1)
    bucket.refuse = lambda _key: None
    assert up.round(up.pending())
    bucket.refuse = down
    write(tmp_path, "a/2")
    up.round(up.pending())
    assert up.pause(LONGEST_PAUSE_S) <= 0.5


def test_a_file_that_nobody_takes_does_not_hold_up_the_others(tmp_path, bucket, clock):
    bucket.refuse = lambda key: PermissionError("not this one") if key == "a/poison" else None
    write(tmp_path, "a/poison", mtime=1)
    clock.end = 1000.0
    seen = {}
    for minute in range(1, 10):
        clock.events.append((60.0 * minute, lambda minute=minute: write(tmp_path, f"a/{minute}", mtime=60 * minute)))
    put = bucket.put

    def noting(key, what):
        put(key, what)
        seen[key] = clock.now

    bucket.put = noting
    up = uploader(tmp_path, bucket, clock)
    up.run(clock)
    assert {key: at - 60 * int(key[2:]) for key, at in seen.items()} == {
        f"a/{minute}": pytest.approx(0, abs=6) for minute in range(1, 10)
    }
    assert [info.key for info in up.pending()] == ["a/poison"]


def test_a_file_that_vanished_is_no_failure(tmp_path, bucket, clock):
    write(tmp_path, "a/1")
    up = uploader(tmp_path, bucket, clock)
    pending = up.pending()
    (tmp_path / "a/1").unlink()
    assert up.round(pending)
    assert (up.failures, up.uploaded) == (0, 0)


def test_the_queue_is_bounded_and_the_rest_waits_on_disk(tmp_path, bucket, clock):
    for number in range(QUEUE_FILES + 44):
        write(tmp_path, f"a/{number}", mtime=number)
    up = uploader(tmp_path, bucket, clock)
    up.round(up.pending())
    assert up.uploaded == QUEUE_FILES
    assert len(up.pending()) == 44
    assert up.drain(10)


def test_draining_ends_at_its_deadline(tmp_path, bucket, clock):
    write(tmp_path, "a/1")
    bucket.refuse = down
    assert not uploader(tmp_path, bucket, clock).drain(25.0)
    assert 20 <= clock.now <= 25.1
    assert max(clock.waits) <= 2


def test_draining_tries_until_it_works(tmp_path, bucket, clock):
    write(tmp_path, "a/1")
    bucket.refuse = down
    clock.events.append((10.0, lambda: setattr(bucket, "refuse", lambda _key: None)))
    assert uploader(tmp_path, bucket, clock).drain(25.0)
    assert bucket.puts == ["a/1"]


def test_a_minute_that_an_interrupted_attempt_began_is_kept(tmp_path, bucket, clock):
    bucket.files[MINUTE] = b"before\n"
    write(tmp_path, MINUTE, b"after\n", mtime=1)
    up = uploader(tmp_path, bucket, clock)
    up.drain(10)
    assert bucket.files[MINUTE] == b"before\nafter\n"


def test_and_not_written_twice_where_the_disk_still_has_it(tmp_path, bucket, clock):
    bucket.files[MINUTE] = b"before\n"
    write(tmp_path, MINUTE, b"before\nafter\n")
    uploader(tmp_path, bucket, clock).drain(10)
    assert bucket.files[MINUTE] == b"before\nafter\n"


def test_looking_for_files_takes_a_two_hundredth_of_the_time(tmp_path, bucket, clock, monkeypatch):
    up = uploader(tmp_path, bucket, clock)

    def slow(_self):
        clock.now += 0.5
        return []

    monkeypatch.setattr(Uploader, "pending", slow)
    clock.end = 1000.0
    up.run(clock)
    assert len(clock.waits) == pytest.approx(1000 / 100.5, abs=1)


def test_markers(tmp_path, bucket, clock):
    up = uploader(tmp_path, bucket, clock)
    bucket.refuse = down
    assert not up.put_markers()
    bucket.refuse = lambda _key: None
    assert up.put_markers()
    assert bucket.files == {"system/training_job_end.ts": b"", "framework/training_job_end.ts": b""}
