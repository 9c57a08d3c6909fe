"""A monitor that is killed, and the upload of what is left behind."""

import json
import os
import signal
import subprocess
import sys

import pytest

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.process_end import UNKNOWN
from sm_profiler.identity import host_id
from sm_profiler.metrics.ends import EndFacts, end_of, rank_ends
from sm_profiler.monitor import start
from sm_profiler.monitor.left_profile import keep_task, upload_left
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry
from sm_profiler.monitor.start import Registration
from sm_profiler.monitor.task import Task
from sm_profiler.source import open_source
from sm_profiler.storage import LocalStorage
from sm_profiler.storage.base import UnavailableError
from tests.support.monitor import kinds, uploaded

TRACE = "framework/pevents/2023111422/1700000000000005_0-algo-1_pythontimeline.json"
MINUTE = "system/incremental/2023111422/1700000040.algo-1.json"
MARKERS = ["framework/training_job_end.ts", "system/training_job_end.ts"]


class Bucket(LocalStorage):
    """A bucket in a folder."""

    refused = ""

    def upload(self, key, file, size):
        assert size == os.fstat(file.fileno()).st_size
        if key == self.refused:
            raise UnavailableError("SlowDown")
        self.write(key, file.read())


@pytest.fixture
def left(tmp_path):
    root = tmp_path / "profile"
    for key in (TRACE, MINUTE):
        (root / key).parent.mkdir(parents=True)
        (root / key).write_text("[]")
    keep_task(Task(str(root), "algo-1", 500, destination="s3://b/out", kms_key_id="key"))
    return root


def keys(bucket):
    return sorted(info.key for info in LocalStorage(bucket).list())


def upload(root, bucket, uri="", **more):
    asked = []

    def connect(*arguments):
        asked.append(arguments)
        made = Bucket(bucket)
        made.refused = more.get("refused", "")
        return made

    return upload_left(root, uri, connect=connect, sleep=lambda _: None), asked


def test_what_is_left_is_uploaded_once_with_end_markers(left, tmp_path):
    (left / "system/incremental/1700000100.algo-1.json.tmp").write_text('{"x": 1}\n')  # the minute of a killed monitor
    (left / "notes.txt").touch()
    bucket = tmp_path / "bucket"
    done, asked = upload(left, bucket)
    assert (done.files, done.there, done.failed, done.markers) == (3, 0, 0, "")
    assert asked == [("s3://b/out", "key")]
    assert keys(bucket) == sorted([TRACE, MINUTE, "system/incremental/2023111422/1700000100.algo-1.json", *MARKERS])
    again, _ = upload(left, bucket)
    assert (again.files, again.there, again.failed, again.markers) == (0, 3, 0, "")
    assert len(keys(bucket)) == 5  # nothing of this machine now


def test_files_that_fail_are_counted_and_keep_the_end_open(left, tmp_path):
    done, _ = upload(left, tmp_path / "bucket", refused=TRACE)
    assert (done.files, done.failed, done.error) == (1, 1, "SlowDown")
    assert done.markers == "no end markers, since files are missing"
    assert keys(tmp_path / "bucket") == [MINUTE]


def test_a_job_that_goes_on_has_no_end_markers(left, tmp_path):
    ProcessRegistry(left, "algo-1").register(os.getpid())
    done, _ = upload(left, tmp_path / "bucket", "s3://other/place")
    assert done.markers == f"no end markers, since process {os.getpid()} of the job is running"


def test_end_markers_are_those_of_the_first_node(left, tmp_path):
    keep_task(Task(str(left), "algo-1", destination="s3://b/out", first=False))
    assert upload(left, tmp_path / "bucket")[0].markers == "the end markers are those of the first node"


def test_a_running_monitor_uploads_by_itself(left, tmp_path):
    lock = NodeLock(left, "algo-1")
    assert lock.acquire()
    with pytest.raises(ProfilerError, match="the monitor of algo-1 is running"):
        upload(left, tmp_path / "bucket")
    lock.release()


def test_a_destination_is_necessary(left, tmp_path):
    (left / ".sagemaker-ignore/task-algo-1.json").unlink()
    with pytest.raises(ProfilerError, match="name it with --to"):
        upload(left, tmp_path / "bucket")
    with pytest.raises(ProfilerError, match="no profile"):
        upload(tmp_path / "nowhere", tmp_path / "bucket")


def test_a_damaged_task_is_no_destination(left, tmp_path):
    (left / ".sagemaker-ignore/task-algo-1.json").write_text('{"unknown": 1}')
    with pytest.raises(ProfilerError, match="name it with --to"):
        upload(left, tmp_path / "bucket")


class Monitor:
    """A monitor of a folder that ends, with its work done or killed."""

    pid = 77

    def __init__(self, root, *, done):
        self.root, self.done = root, done

    def wait(self):
        lock = NodeLock(self.root, "algo-1")
        if self.done and lock.acquire():
            os.write(lock.fd, b"done 77")
            lock.release()


@pytest.mark.parametrize(
    ("done", "started"),
    [([True], 0), ([False, True], 1), ([False] * 4, 3)],
    ids=["with the job", "killed", "again and again"],
)
def test_a_monitor_that_is_killed_is_started_again(tmp_path, monkeypatch, caplog, done, started):
    ends = iter(done)
    calls = []

    def begin(*_arguments):
        calls.append(1)
        return Monitor(tmp_path, done=next(ends))

    monkeypatch.setattr(start, "_start", begin)
    registration = Registration(
        Task(str(tmp_path), "algo-1", destination="s3://b/out"), os.getpid(), Monitor(tmp_path, done=next(ends))
    )
    registration.keep_monitor({})
    assert len(calls) == started
    assert sum("was started again" in line for line in caplog.messages) == started
    assert (f"upload the rest with: sm-profiler upload {tmp_path}" in caplog.text) is (started == 3)


def test_another_process_may_start_it_first(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(start, "_start", lambda *_: pytest.fail("started"))
    lock = NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    Registration(Task(str(tmp_path), "algo-1"), os.getpid(), Monitor(tmp_path, done=False)).keep_monitor({})
    assert not caplog.messages
    lock.release()


def test_a_job_whose_monitor_is_killed_is_complete(job, s3):
    process = job.start("sys.stdin.readline(); writer.close()", RANK="0")
    (first,) = job.until(job.monitors)
    job.until(job.rows)
    os.kill(first, signal.SIGKILL)
    job.until(lambda: [pid for pid in job.monitors() if pid != first])
    _, errors = process.communicate("\n", timeout=60)
    assert (process.returncode, errors) == (0, "sm-profiler: the monitor ended unexpectedly and was started again\n")
    assert kinds(uploaded(s3)) == {"system", "framework", "marker"}


def test_the_command_prints_what_it_did(job, s3):
    config = json.loads(job.environment["SM_PROFILER_CONFIG"])
    del config["S3OutputPath"]
    job.environment["SM_PROFILER_CONFIG"] = json.dumps(config)
    assert job.start("time.sleep(0.3); writer.close()").wait(60) == 0
    command = [
        sys.executable,
        "-m",
        "sm_profiler",
        "upload",
        str(job.root),
        "--to",
        "s3://profiles/out/job-1/profiler-output",
    ]
    for line in (
        "{} files uploaded to s3://profiles/out/job-1/profiler-output, 0 uploaded before",
        "0 files uploaded to",
    ):
        done = subprocess.run(command, env=job.environment, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.startswith(line.format(len(uploaded(s3)) - 2)), done
        assert done.stdout.endswith("end markers written\n")


def open_trace(root, host):
    """Write the open file of a process that is gone."""
    lines = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}},
        {"name": "sm_profiler/process", "ph": "M", "pid": 0, "args": {"rank": 1, "node": "algo-1", "host": host}},
        {"name": "Step:ModeKeys.TRAIN", "ph": "X", "pid": 1, "ts": 5, "dur": 10, "args": {}},
    ]  # fmt: skip
    path = root / "framework/pevents/1-algo-1_pythontimeline_999999999_0_1.json.tmp"
    path.write_text("[\n" + ",\n".join(json.dumps(line) for line in lines) + ',\n{"name": "cut')


@pytest.mark.parametrize(
    ("host", "states"), [(host_id(in_container=False), ["killed"]), ("another", [UNKNOWN]), ("", [UNKNOWN])]
)
def test_a_killed_job_is_not_completed_by_its_upload(left, tmp_path, host, states):
    open_trace(left, host)
    done, _ = upload(left, tmp_path / "bucket")
    assert (done.files, done.markers) == (3, "no end markers, since the job was killed")
    source = open_source(tmp_path / "bucket", cache=False)
    list(source.batches())
    metadata = [one["args"] for one in source.metadata() if one["name"] == "sm_profiler/process"]
    assert [end_of(EndFacts(finished=source.finished), rank_ends(metadata, {})).state] == states


@pytest.mark.parametrize("ending", ["", ".cut"])
def test_a_process_that_is_gone_without_a_word_was_killed(left, tmp_path, ending):
    folder = left / ".sagemaker-ignore/processes-algo-1"
    folder.mkdir()
    (folder / "1-1.ended").touch()
    (folder / f"999999999-5{ending}").touch()
    assert upload(left, tmp_path / "bucket")[0].markers == "no end markers, since the job was killed"
    assert not [key for key in keys(tmp_path / "bucket") if key in MARKERS]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [("s3://", "s3:// names no bucket: s3://BUCKET/PREFIX is needed"), ("/tmp/x", "not an s3:// URI")],
)
def test_what_a_destination_lacks_is_named(left, uri, reason):
    with pytest.raises(ProfilerError, match=reason):
        upload_left(left, uri)


def test_a_failure_without_an_error_has_a_reason(left, tmp_path, monkeypatch):
    """Requests that never end fail without one."""
    monkeypatch.setattr("sm_profiler.monitor.left_profile._upload_all", lambda _: 2)
    done, _ = upload(left, tmp_path / "bucket")
    assert (done.failed, done.error) == (2, "the destination did not answer in time")
