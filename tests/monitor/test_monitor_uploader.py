"""The uploader on a fake clock and destination: selection, order, retries and outages."""

import logging
import os
import threading
import time

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.monitor.uploader import LONGEST_PAUSE_S, QUEUE_FILES, Uploader
from sm_profiler.storage import LocalStorage, MissingFileError
from sm_profiler.storage.base import UnavailableError

MINUTE = "system/incremental/2026112111/1795261080.algo-1.json"
TRACE = "framework/pevents/2026112111/1795261085000000_0-algo-1_pythontimeline.json"


POISON = "framework/pevents/2026112111/9_0-algo-1_pythontimeline.json"


def trace(number):
    return f"framework/pevents/2026112111/{1795261080000000 + number}_0-algo-1_pythontimeline.json"


def number_of(key):
    return int(key.split("/")[-1].partition("_")[0]) - 1795261080000000


class Clock:
    """A fake clock that waits advance; `events` happen during a wait."""

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
    """Accepts everything that `refuse` returns no error for."""

    uri = "s3://bucket/job/profiler-output"

    def __init__(self):
        self.files, self.puts, self.refuse, self.attempts = {}, [], lambda _key: None, 0

    def write(self, key, data):
        self.attempts += 1
        if error := self.refuse(key):
            raise error
        self.files[key] = data
        self.puts.append(key)

    def upload(self, key, file, size):
        data = file.read()
        assert len(data) == size
        self.write(key, data)

    def read(self, key):
        if error := self.refuse(key):
            raise error
        if key not in self.files:
            raise MissingFileError(key)
        return self.files[key]


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


def test_closed_files_are_uploaded_once_and_open_files_never(tmp_path, bucket, clock):
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


def test_a_changed_file_is_uploaded_again(tmp_path, bucket, clock):
    write(tmp_path, MINUTE, b"1\n", mtime=1)
    up = uploader(tmp_path, bucket, clock)
    up.drain(10)
    write(tmp_path, MINUTE, b"1\n2\n", mtime=2)
    up.drain(10)
    assert bucket.files[MINUTE] == b"1\n2\n"


def test_uploads_the_oldest_file_first(tmp_path, bucket, clock, monkeypatch):
    monkeypatch.setattr("sm_profiler.monitor.uploader.PARALLEL", 1)
    for number in (3, 1, 2):
        write(tmp_path, trace(number), mtime=number)
    uploader(tmp_path, bucket, clock).drain(10)
    assert bucket.puts == [trace(1), trace(2), trace(3)]


def test_an_outage_of_hours_loses_nothing_and_backs_off(tmp_path, bucket, clock, caplog):
    bucket.refuse = down
    clock.end = 3 * 3600.0
    for minute in range(120):
        clock.events.append((60.0 * minute, lambda minute=minute: write(tmp_path, trace(minute), mtime=minute)))
    clock.events.append((2 * 3600.0, lambda: setattr(bucket, "refuse", lambda _key: None)))
    up = uploader(tmp_path, bucket, clock)
    with caplog.at_level(logging.WARNING):
        up.run(clock)
    assert len(bucket.files) == 120
    assert bucket.attempts < 120 + 4 * 2 * 3600 / 20
    assert len(caplog.records) == 1


def test_pauses_double_up_to_a_minute_and_reset_after_success(tmp_path, bucket, clock):
    write(tmp_path, trace(1))
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
    write(tmp_path, trace(2))
    up.round(up.pending())
    assert up.pause(LONGEST_PAUSE_S) <= 0.5


def test_a_refused_file_does_not_delay_the_others(tmp_path, bucket, clock):
    bucket.refuse = lambda key: PermissionError("not this one") if key == POISON else None
    write(tmp_path, POISON, mtime=1)
    clock.end = 1000.0
    seen = {}
    for minute in range(1, 10):
        clock.events.append((60.0 * minute, lambda minute=minute: write(tmp_path, trace(minute), mtime=60 * minute)))
    store = bucket.write

    def noting(key, data):
        store(key, data)
        seen[key] = clock.now

    bucket.write = noting
    up = uploader(tmp_path, bucket, clock)
    up.run(clock)
    assert {key: at - 60 * number_of(key) for key, at in seen.items()} == {
        trace(minute): pytest.approx(0, abs=6) for minute in range(1, 10)
    }
    assert [info.key for info in up.pending()] == [POISON]


def test_a_vanished_file_is_not_a_failure(tmp_path, bucket, clock):
    write(tmp_path, trace(1))
    up = uploader(tmp_path, bucket, clock)
    pending = up.pending()
    (tmp_path / trace(1)).unlink()
    assert up.round(pending)
    assert (up.failures, up.uploaded) == (0, 0)


def test_a_round_is_bounded_and_other_files_wait_on_disk(tmp_path, bucket, clock):
    for number in range(QUEUE_FILES + 44):
        write(tmp_path, trace(number), mtime=number)
    up = uploader(tmp_path, bucket, clock)
    up.round(up.pending())
    assert up.uploaded == QUEUE_FILES
    assert len(up.pending()) == 44
    assert up.drain(10)


def test_draining_ends_at_its_deadline(tmp_path, bucket, clock):
    write(tmp_path, trace(1))
    bucket.refuse = down
    assert not uploader(tmp_path, bucket, clock).drain(25.0)
    assert 20 <= clock.now <= 25.1
    assert max(clock.waits) <= 2


def test_draining_retries_until_success(tmp_path, bucket, clock):
    write(tmp_path, trace(1))
    bucket.refuse = down
    clock.events.append((10.0, lambda: setattr(bucket, "refuse", lambda _key: None)))
    assert uploader(tmp_path, bucket, clock).drain(25.0)
    assert bucket.puts == [trace(1)]


def test_the_part_of_a_minute_that_an_earlier_attempt_uploaded_is_kept(tmp_path, bucket, clock):
    bucket.files[MINUTE] = b"before\n"
    write(tmp_path, MINUTE, b"after\n", mtime=1)
    up = uploader(tmp_path, bucket, clock)
    up.drain(10)
    assert bucket.files[MINUTE] == b"before\nafter\n"


def test_a_minute_that_is_complete_on_disk_is_not_duplicated(tmp_path, bucket, clock):
    bucket.files[MINUTE] = b"before\n"
    write(tmp_path, MINUTE, b"before\nafter\n")
    uploader(tmp_path, bucket, clock).drain(10)
    assert bucket.files[MINUTE] == b"before\nafter\n"


def test_listing_takes_at_most_a_two_hundredth_of_the_time(tmp_path, bucket, clock, monkeypatch):
    up = uploader(tmp_path, bucket, clock)

    def slow(_self):
        clock.now += 0.5
        return []

    monkeypatch.setattr(Uploader, "pending", slow)
    clock.end = 1000.0
    up.run(clock)
    assert len(clock.waits) == pytest.approx(1000 / 100.5, abs=1)


def test_markers_are_reported_as_uploaded_only_after_success(tmp_path, bucket, clock):
    up = uploader(tmp_path, bucket, clock)
    bucket.refuse = down
    assert not up.put_markers()
    bucket.refuse = lambda _key: None
    assert up.put_markers()
    assert bucket.files == {"system/training_job_end.ts": b"", "framework/training_job_end.ts": b""}


STATS = (
    "framework/pytorch/cprofile/0-algo-1/"
    "train-9-stepstart-1795261080000000_train-12-stepstart-1795261085000000/python_stats"
)
DETAILED = "framework/pytorch/detailed_profiling/2026112111/000000005/0-algo-1.pt.trace.json.gz"


def test_only_profiler_data_is_uploaded(tmp_path, bucket, clock):
    ours = [MINUTE, TRACE, STATS, DETAILED]
    for key in ours:
        write(tmp_path, key)
    for key in (
        ".env", ".git/config", "profilerconfig.json", "system/.env", "framework/secrets.json", "framework/pytorch/id_rsa",
        "system/incremental/2026112111/1795261080.algo-1.json.bak", f"{STATS}.pem", "backup/" + MINUTE,
        "framework/pevents/2026112111/1_0-algo-1_\x1b[2J.json", f"framework/pevents/{'9' * 200}_0-algo-1_x.json",
    ):  # fmt: skip
        write(tmp_path, key)
    assert uploader(tmp_path, bucket, clock).drain(10)
    assert sorted(bucket.puts) == sorted(ours)


def test_links_are_not_followed(tmp_path, bucket, clock, caplog):
    root, secrets = tmp_path / "root", tmp_path / "secrets"
    secret = write(secrets, "key", b"secret")
    write(secrets, f"{MINUTE.rpartition('/')[2]}", b"secret")
    write(root, TRACE)
    (root / STATS).parent.mkdir(parents=True)
    (root / STATS).symlink_to(secret)
    (root / MINUTE).parent.parent.mkdir(parents=True)
    (root / MINUTE).parent.symlink_to(secrets)
    up = uploader(root, bucket, clock)
    with caplog.at_level(logging.WARNING):
        assert up.drain(10)
        assert up.drain(10)
    assert bucket.puts == [TRACE]
    assert [record.getMessage() for record in caplog.records] == [
        f"sm-profiler: {root / STATS} is a symbolic link or under a symbolic link: not uploaded"
    ]


def test_a_folder_replaced_by_a_link_after_listing_is_not_followed(tmp_path, bucket, clock):
    root, secrets = tmp_path / "root", tmp_path / "secrets"
    write(root, MINUTE)
    write(secrets, MINUTE.rpartition("/")[2], b"secret")
    up = uploader(root, bucket, clock)
    pending = up.pending()
    folder = (root / MINUTE).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(secrets)
    up.round(pending)
    assert bucket.files == {}


def test_a_pipe_is_not_read(tmp_path, bucket, clock):
    path = tmp_path / TRACE
    path.parent.mkdir(parents=True)
    write(tmp_path, TRACE)
    up = uploader(tmp_path, bucket, clock)
    pending = up.pending()
    path.unlink()
    os.mkfifo(path)
    assert up.round(pending)
    assert (bucket.puts, up.uploaded) == ([], 0)


def test_an_upload_whose_answer_is_lost_does_not_duplicate_rows(tmp_path, bucket, clock):
    bucket.files[MINUTE] = b"before\n"
    write(tmp_path, MINUTE, b"after\n", mtime=1)
    store, answers = bucket.write, iter([ConnectionResetError("reset"), None])

    def write_and_lose_the_answer(key, data):
        store(key, data)
        if error := next(answers):
            raise error

    bucket.write = write_and_lose_the_answer
    assert uploader(tmp_path, bucket, clock).drain(10)
    assert bucket.files[MINUTE] == b"before\nafter\n"
    # ... not even if the monitor was killed in between
    assert uploader(tmp_path, bucket, clock).drain(10)
    assert bucket.files[MINUTE] == b"before\nafter\n"


def test_a_hanging_request_does_not_outlast_the_deadline(tmp_path, bucket):
    answer = threading.Event()
    bucket.refuse = lambda _key: answer.wait(30) and None
    write(tmp_path, TRACE)
    up = Uploader(tmp_path, bucket)
    began = time.monotonic()
    assert not up.drain(up.clock() + 0.5)
    assert time.monotonic() - began < 5
    assert up.remaining() == 1
    answer.set()
    assert up.drain(up.clock() + 10)
    assert bucket.puts == [TRACE]


def test_a_folder_that_cannot_be_listed_is_not_complete(tmp_path, bucket, clock, monkeypatch):
    def unreadable(_self, _prefix=""):
        raise SourceError("cannot be listed: Input/output error")

    monkeypatch.setattr(LocalStorage, "list", unreadable)
    assert not uploader(tmp_path, bucket, clock).drain(10)


@pytest.mark.parametrize(
    ("error", "reached"), [(UnavailableError("SlowDown"), True), (SourceError("no AWS credentials were found"), False)]
)
def test_an_overloaded_destination_counts_as_reached(tmp_path, bucket, clock, error, reached):
    bucket.refuse = lambda _key: error
    write(tmp_path, TRACE)
    up = uploader(tmp_path, bucket, clock)
    up.drain(1)
    assert up.reached is reached


def test_an_unusable_destination_is_reported_at_once(tmp_path, bucket, clock, caplog):
    up = uploader(tmp_path, bucket, clock)
    assert up.check()
    bucket.refuse = lambda key: SourceError(f"s3://bucket/job/{key}: the bucket does not exist")
    with caplog.at_level(logging.WARNING):
        assert not up.check()
        bucket.refuse = lambda _key: SourceError("s3://bucket: the bucket does not exist")  # as a write states it
        write(tmp_path, TRACE)
        up.upload_new()
    assert up.failures
    assert caplog.messages == ["sm-profiler: upload failed, retrying: s3://bucket/job: the bucket does not exist"]
