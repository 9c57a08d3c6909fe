"""Real monitor processes, a failing S3 and signals at random moments: every record is on S3 or counted, no process is left."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.support.monitor import JOIN, Job

pytestmark = pytest.mark.long
MARKERS = {"framework/training_job_end.ts", "system/training_job_end.ts"}
PREFIX = "out/job-1/profiler-output/"
# It closes a trace file every 0.2 s.
SCRIPT = f"""{JOIN}
end = time.monotonic() + float(sys.argv[1])
print("on", flush=True)
number = 0
while time.monotonic() < end:
    writer = TraceWriter(Path(os.environ["PROFILE"]), f"{{rank}}-algo-1")
    writer.write([TraceEvent("Forward", "Net", 1_795_261_080_000_000 + 1000 * number + int(rank), 5)])
    writer.close()
    number += 1
    time.sleep(0.2)
print(number, flush=True)
"""


class StoredJob(Job):
    """A training job whose profile goes to an S3 that may fail."""

    def __init__(self, folder, s3):
        super().__init__(folder, script=SCRIPT)
        self.s3 = s3

    def start(self, seconds, rank=0):
        return super().start("", seconds, RANK=str(rank))

    def wait_until_gone(self, seconds=40.0):
        deadline = time.monotonic() + seconds
        while self.monitors():
            assert time.monotonic() < deadline, "a monitor is left"
            time.sleep(0.05)

    def closed(self):
        """Return the closed files on disk with their bytes."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for folder in ("system", "framework")
            for path in (self.root / folder).rglob("*.json")
        }

    def stored(self):
        return self.s3.below(PREFIX)


@pytest.fixture
def job(tmp_path, faulty_s3):
    made = StoredJob(tmp_path, faulty_s3)
    yield made
    made.close()


def check_complete(job):
    stored = job.stored()
    assert set(stored) >= MARKERS
    assert {key: data for key, data in stored.items() if key not in MARKERS} == job.closed()
    assert not list(job.root.rglob("*.tmp"))


@pytest.mark.parametrize(
    "fault",
    [
        "throttled",
        "internal_error",
        "clock_skew",
        "reset_before",
        "reset_after",
        "slow",
        "truncated_answer",
        "missing_bucket",
    ],
)
def test_a_job_is_complete_in_spite_of(job, fault):
    job.s3.fail(fault, share=0.4)
    process = job.start(3)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    job.wait_until_gone()
    check_complete(job)
    assert len([key for key in job.stored() if "pevents" in key]) == int(output)
    assert job.s3.met[fault] > 0


def test_credentials_that_expire_and_are_renewed(job):
    process = job.start(6)
    time.sleep(2)
    job.s3.fail("expired_credentials")
    time.sleep(2)
    job.s3.recover()
    _, errors = process.communicate(timeout=100)
    job.wait_until_gone()
    check_complete(job)
    assert errors.count("credentials have expired") <= 1


@pytest.mark.parametrize("fault", ["expired_credentials", "access_denied", "missing_bucket", "reset_before", "hanging"])
def test_without_any_success_the_job_ends_soon_and_files_are_counted(job, fault):
    job.s3.fail(fault)
    process = job.start(2)
    output = process.stdout.readline()
    began = time.monotonic()
    _, errors = process.communicate(timeout=100)
    assert time.monotonic() - began < 25  # 5 s, and more on a busy machine
    assert process.returncode == 0
    job.wait_until_gone()
    assert int(output) > 0
    [count] = re.findall(r"(\d+) files? could not be uploaded", errors)
    assert int(count) == len(job.closed())
    assert not set(job.stored()) & MARKERS
    assert not list(job.root.rglob("training_job_end.ts"))


@pytest.mark.parametrize("seed", range(4))
def test_a_terminated_job_is_uploaded_without_end_markers(job, seed):
    dice = random.Random(seed)  # not for cryptography
    job.s3.fail("throttled", "reset_after", share=0.3, seed=seed)
    process = job.start(60)
    time.sleep(0.5 + 2 * dice.random())
    for pid in (*job.monitors(), process.pid):
        os.kill(pid, signal.SIGTERM)
    process.wait(30)
    job.wait_until_gone()
    stored = job.stored()
    assert not set(stored) & MARKERS
    assert stored == job.closed()
    assert not list(job.root.rglob("*.tmp"))


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_monitor_is_reported_and_the_next_run_uploads_its_files(job, seed):
    dice = random.Random(seed)  # not for cryptography
    job.s3.fail("throttled", share=0.3, seed=seed)
    process = job.start(3.5)
    time.sleep(0.2 + 2 * dice.random())
    for pid in job.monitors():
        os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert "the monitor ended unexpectedly" in errors
    assert job.monitors() == []
    assert job.start(1).wait(100) == 0
    job.wait_until_gone()
    check_complete(job)


def test_a_monitor_that_is_stopped_and_continued(job):
    process = job.start(5)
    for _ in range(3):
        time.sleep(0.6)
        [monitor] = job.monitors()
        os.kill(monitor, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(monitor, signal.SIGCONT)
    assert process.wait(100) == 0
    job.wait_until_gone()
    check_complete(job)


def test_a_stopped_monitor_does_not_keep_the_training_from_ending(job):
    process = job.start(2)
    while not list(job.root.rglob("*.algo-1.json*")):
        time.sleep(0.05)
    [monitor] = job.monitors()
    os.kill(monitor, signal.SIGSTOP)
    try:
        assert process.wait(30) == 0  # not the minute that uploads may take
        os.set_blocking(process.stderr.fileno(), False)  # the monitor holds the other end, too
        assert "which is stopped" in process.stderr.read()
    finally:
        os.kill(monitor, signal.SIGCONT)
    job.wait_until_gone()
    check_complete(job)


def test_signals_at_random_moments_do_not_stop_the_monitor(job):
    dice = random.Random(0)  # not for cryptography
    process = job.start(8)
    deadline = time.monotonic() + 30
    while not list(job.root.rglob("*.algo-1.json*")):  # until its handlers are installed
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [monitor] = job.monitors()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        os.kill(monitor, dice.choice([signal.SIGUSR1, signal.SIGINT]))
        time.sleep(dice.random() / 1000)
    assert process.wait(100) == 0
    job.wait_until_gone()
    check_complete(job)


def test_ranks_that_start_at_once_share_one_monitor(job):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "3"], env={**job.environment, "RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(6)
    ]  # fmt: skip
    job.processes += processes
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, len(job.monitors()))
        time.sleep(0.05)
    assert [process.returncode for process in processes] == [0] * 6
    assert most == 1
    job.wait_until_gone()
    check_complete(job)
    assert len({key.partition("_")[2].partition("-")[0] for key in job.stored() if "pevents" in key}) == 6


def test_two_monitors_of_one_folder(job):
    command = [
        sys.executable, "-m", "sm_profiler", "monitor", "--out", str(job.root), "--interval-ms", "100",
        "--upload", "s3://profiles/" + PREFIX,
    ]  # fmt: skip
    job.s3.fail("throttled", "reset_after", share=0.3)
    monitors = [
        subprocess.Popen(command, env=job.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    job.processes += monitors
    deadline = time.monotonic() + 60
    while all(monitor.poll() is None for monitor in monitors):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [refused] = [monitor for monitor in monitors if monitor.poll() is not None]
    [running] = [monitor for monitor in monitors if monitor is not refused]
    assert "already sampling" in refused.communicate()[0]
    time.sleep(1)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    assert job.stored() == job.closed()
    times = [
        json.loads(line)["Timestamp"]
        for data in job.closed().values()
        for line in data.splitlines()
        if b"memory" in line
    ]
    assert len(times) == len(set(times)) > 5
