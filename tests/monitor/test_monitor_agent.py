"""Real processes: when the monitor starts and ends, and what is on S3 afterwards."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.monitor.agent import Agent, keep_running
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry, is_over_here
from sm_profiler.monitor.start import Registration
from sm_profiler.monitor.task import Task
from sm_profiler.processes import is_stopped, start_detached, wait_for
from sm_profiler.report import build_report
from sm_profiler.serve.reading import JobReader, goes_on
from sm_profiler.source import open_source
from sm_profiler.storage.base import UnavailableError
from tests.support.monitor import JOIN, MARKERS, Job, kinds, uploaded


def test_a_job_that_ends_has_everything_on_s3_and_the_markers(job, s3):
    process = job.start("time.sleep(1); writer.close()")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    job.until(lambda: not job.monitors(), 10)  # the script waited for the monitor
    names = uploaded(s3)
    assert kinds(names) == {"system", "framework", "marker"}
    assert len([name for name in names if name.endswith("pythontimeline.json")]) == 1
    assert not [name for name in names if name.endswith(".tmp") or ".sagemaker-ignore" in name]
    assert {row["Type"] for row in job.rows()} >= {"cpu", "memory", "i/o", "network", "monitor"}
    assert (job.root / MARKERS[0]).exists()


def test_all_ranks_share_one_monitor_until_the_last_ends(job, s3):
    first = job.start("time.sleep(60)", RANK="1")
    others = [job.start(f"time.sleep({seconds}); writer.close()", RANK=str(seconds)) for seconds in (2, 3)]
    assert len(job.monitors()) == 1
    first.kill()
    first.wait()
    [agent] = job.monitors()
    for process in others:
        assert process.wait(60) == 0
        if process is others[0]:
            assert job.monitors() == [agent]
    job.until(lambda: not job.monitors(), 10)
    times = [row["Timestamp"] for row in job.rows() if row["Type"] == "memory"]
    assert len(times) == len(set(times)) > 20
    # One rank was killed: there are no end markers, but the rank's records are uploaded.
    names = uploaded(s3)
    assert kinds(names) == {"system", "framework"}
    assert len([name for name in names if "pevents" in name]) == 3


def test_a_killed_job_is_uploaded_without_end_markers(job, s3):
    process = job.start("time.sleep(60)")
    job.until(job.rows)
    process.kill()
    process.wait()
    job.until(lambda: not job.monitors())
    assert kinds(uploaded(s3)) == {"system", "framework"}
    assert not list(job.root.rglob("*.tmp"))


def test_a_script_that_waits_for_any_child_does_not_meet_the_monitor(job, s3):
    """It waited for the monitor, which waits for the end of the script."""
    job.script = JOIN
    process = job.start("""
pid, found = os.fork(), []
if not pid:
    os._exit(3)
print("on", flush=True)
try:
    while True:
        found.append(os.wait())
except ChildProcessError:
    assert found == [(pid, 3 << 8)], found
""")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert not job.monitors()


def test_a_detached_process_is_waited_for_and_killed(tmp_path):
    (tmp_path / "echo.py").write_text("import sys\nopen('copy', 'w').write(sys.stdin.readline())\nsys.stdin.read()\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    started = [start_detached("echo", environment=environment, cwd=tmp_path, stdin=subprocess.PIPE) for _ in range(2)]
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0].pid, os.WNOHANG)
    for process in started:
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    started[0].stdin.close()
    assert wait_for(started[0], 60)
    assert started[0].poll() == 0
    assert (tmp_path / "copy").read_text() == "hello\n"
    started[1].kill()
    assert started[1].wait(60) == 0
    started[1].stdin.close()
    started[1].send_signal(signal.SIGTERM)  # does nothing


@pytest.fixture
def local_job(tmp_path):
    made = Job(tmp_path, script=f"{JOIN}print('on', flush=True)\n", S3OutputPath=None)
    yield made
    made.close()


def test_a_crash_before_anything_is_recorded_is_recorded_by_the_monitor(local_job):
    """Its report was that only system metrics were recorded."""
    process = local_job.start("time.sleep(60)")
    local_job.until(local_job.rows)
    process.send_signal(signal.SIGSEGV)
    process.wait()
    local_job.until(lambda: not local_job.monitors())
    [trace] = (local_job.root / "framework").rglob("*_pythontimeline.json")
    record = json.loads(trace.read_text())[0]["args"]
    assert (record["pid"], record["end"], record["end_step"]) == (process.pid, "killed", 0)


def test_sigterm_for_the_script_and_its_monitor_while_it_starts_is_recorded_as_stopped(local_job):
    """As `timeout` and SLURM send it; the job counted as running for ever."""
    process = local_job.start("time.sleep(60)")
    local_job.until(local_job.rows)
    [agent] = local_job.monitors()
    for pid in (agent, process.pid):
        os.kill(pid, signal.SIGTERM)
    process.wait()
    local_job.until(lambda: not local_job.monitors())
    ending = build_report(open_source(local_job.root)).metrics.ending
    assert (ending.state, ending.sentence) == ("stopped", "The job was stopped before its first training step.")
    assert not is_over_here(local_job.root, "")  # torchrun may start it again
    for path in local_job.root.rglob("*"):
        os.utime(path, (0, time.time() - 100))
    assert is_over_here(local_job.root, "")


def test_sigkill_for_the_script_and_its_monitor_while_it_starts_is_known_on_this_machine(local_job):
    process = local_job.start("time.sleep(60)")
    local_job.until(local_job.rows)
    [agent] = local_job.monitors()
    for pid in (process.pid, agent):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    local_job.until(lambda: not NodeLock(local_job.root, "algo-1").is_held())  # the kernel has ended all threads
    ending = build_report(open_source(local_job.root)).metrics.ending
    assert ending.state == "killed"
    assert ending.sentence.startswith(
        "The job was ended by a signal before its first training step; its last sign of life was "
    )
    for path in local_job.root.rglob("*"):
        os.utime(path, (0, time.time() - 100))
    assert not is_over_here(local_job.root, "another machine")
    assert not goes_on(local_job.root)
    reader = JobReader(str(local_job.root))
    reader.read()
    assert reader.over


def test_a_process_that_leaves_by_os_exit_is_not_recorded_as_killed(local_job):
    process = local_job.start("time.sleep(1); settings.leaves_at_once(); os._exit(0)")
    process.wait()
    local_job.until(lambda: not local_job.monitors())
    assert not (local_job.root / "framework").exists()


def test_sigterm_uploads_without_end_markers_even_if_the_script_succeeds(job, s3):
    process = job.start("""
def stop(*_):
    while not Path(os.environ["PROFILE"] + "-go").exists():
        time.sleep(0.05)
    writer.close()
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
while True:
    time.sleep(0.1)
""")
    [agent] = job.monitors()
    job.until(job.rows)
    for pid in (agent, process.pid):  # as a spot interruption that reaches all of the container
        os.kill(pid, signal.SIGTERM)
    job.until(lambda: kinds(uploaded(s3)) == {"system"}, 60)  # at once, not when the script ends
    Path(f"{job.root}-go").touch()
    assert process.wait(60) == 0
    job.until(lambda: not job.monitors(), 10)
    assert kinds(uploaded(s3)) == {"system", "framework"}
    assert not (job.root / MARKERS[0]).exists()


def test_a_resumed_run_removes_the_end_markers_of_the_run_before(job, s3):
    assert job.start("writer.close()").wait(60) == 0
    assert (job.root / MARKERS[0]).exists()
    process = job.start("time.sleep(60)")
    job.until(lambda: not (job.root / MARKERS[0]).exists())
    process.kill()


def test_a_failed_script_gets_end_markers(job, s3):
    process = job.start("writer.close(); raise SystemExit(3)")
    assert process.wait(60) == 3
    assert "marker" in kinds(uploaded(s3))


def test_a_forked_child_does_not_end_the_job(job, s3):
    process = job.start(
        "pid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\ntime.sleep(1.5)\nwriter.close()"
    )
    time.sleep(1)
    assert len(job.monitors()) == 1
    assert process.wait(60) == 0


def test_a_rank_restarted_by_its_launcher_does_not_prevent_end_markers(job, s3):
    launcher = job.start(
        "while not Path(os.environ['PROFILE'] + '-go').exists(): time.sleep(0.05)\nwriter.close()", RANK="9"
    )
    killed = job.start("time.sleep(60)")
    killed.kill()
    killed.wait()
    time.sleep(2.5)  # the monitor checks once a second
    again = job.start("while not Path(os.environ['PROFILE'] + '-go').exists(): time.sleep(0.05)\nwriter.close()")
    time.sleep(2.5)
    Path(f"{job.root}-go").touch()
    assert again.wait(60) == launcher.wait(60) == 0
    job.until(lambda: "marker" in kinds(uploaded(s3)))


def test_only_the_first_node_writes_end_markers(job, s3):
    folder = job.folder / "ml/input/config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}))
    assert job.start("writer.close()").wait(60) == 0
    names = uploaded(s3)
    assert kinds(names) == {"system", "framework"}
    assert [name for name in names if name.endswith(".algo-2.json")]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("service", "runs"),
    [
        ({"S3OutputPath": "s3://profiles/out/"}, False),
        ({"S3OutputPath": "s3://profiles/elsewhere"}, True),
        ({"S3OutputPath": "s3://profiles/out", "DisableProfiler": True}, True),
        ("garbage", True),
    ],
    ids=["same place", "other place", "disabled", "garbage"],
)
def test_no_monitor_if_the_service_samples_already(job, s3, service, runs):
    folder = job.folder / "ml/input/config"
    folder.mkdir(parents=True)
    (folder / "profilerconfig.json").write_text(json.dumps(service))
    process = job.start("writer.close(); time.sleep(1.5)")
    if runs:
        job.until(job.monitors, 10)
    else:
        time.sleep(0.5)
        assert not job.monitors()
    assert process.wait(60) == 0
    assert bool(uploaded(s3)) is runs


@pytest.mark.first(1)
@pytest.mark.parametrize("why", ["not switched on", "disabled"])
def test_no_monitor_without_the_agent_backend(job, s3, why):
    config = json.loads(job.environment["SM_PROFILER_CONFIG"])
    if why == "disabled":
        config["DisableProfiler"] = True
    job.environment["SM_PROFILER_CONFIG"] = json.dumps(config)
    if why == "not switched on":
        del job.environment["SM_PROFILER_AUTO"]
    process = job.start("time.sleep(0.3)")
    assert job.monitors() == []
    assert process.wait(60) == 0


@pytest.mark.first(1)
@pytest.mark.parametrize("where", ["in a closed network", "on a machine without a bucket"])
def test_a_job_without_s3_path_is_sampled_without_uploads(job, s3, where):
    config = json.loads(job.environment["SM_PROFILER_CONFIG"])
    del config["S3OutputPath"]
    job.environment["SM_PROFILER_CONFIG"] = json.dumps(config)
    said = ""  # the configuration names the folder
    if where == "in a closed network":
        resources = job.folder / "ml/input/config/resourceconfig.json"
        resources.parent.mkdir(parents=True)
        resources.write_text('{"current_host": "algo-1"}')
    else:
        del job.environment["TRAINING_JOB_NAME"]
    process = job.start("time.sleep(0.5); writer.close()")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, said)
    assert job.rows()
    assert (job.root / MARKERS[0]).exists()
    assert uploaded(s3) == []


def test_an_unreachable_s3_does_not_keep_the_script_from_ending(job, aws, monkeypatch):
    job.environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    process = job.start(
        "from sm_profiler.monitor import start\nstart.Registration.leave.__kwdefaults__['seconds'] = 1.0\nwriter.close()"
    )
    assert process.wait(30) == 0
    for pid in job.monitors():  # they would retry for some seconds
        os.kill(pid, signal.SIGKILL)
    errors = process.stderr.read()
    assert "not uploaded yet" in errors
    assert str(job.root) in errors


def test_an_unwritable_folder_is_one_line(job, s3):
    job.root.write_text("a file in its place")
    process = job.start("")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.count("\n") == 1
    assert "no system metrics and no uploads" in errors


def test_internal_errors_are_reported_once_and_work_is_restarted(monkeypatch, caplog):
    monkeypatch.setattr("sm_profiler.monitor.agent.RESTART_SECONDS", 0.0)
    stop, calls = threading.Event(), []

    def work(_stop):
        calls.append(1)
        if len(calls) < 4:
            raise KeyError("ours")

    with caplog.at_level(logging.WARNING):
        keep_running(work, stop)
    assert len(calls) == 4
    assert len(caplog.records) == 1


def test_the_monitor_loads_no_heavy_modules():
    program = "import sys, sm_profiler.monitor.agent; print([n for n in ('numpy', 'boto3', 'psutil', 'torch') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_lock_is_exclusive_per_node(tmp_path):
    lock, other = NodeLock(tmp_path, "algo-1"), NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    assert other.is_held()
    assert not other.acquire()
    assert NodeLock(tmp_path, "algo-2").acquire()
    lock.release()
    assert not other.is_held()
    assert other.acquire()
    other.release()


@pytest.fixture
def stopped():
    """A process that is stopped."""
    process = subprocess.Popen(["sleep", "100"])
    os.kill(process.pid, signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()


@pytest.mark.first(1)
@pytest.mark.parametrize("is_own", [True, False], ids=["started here", "by another rank"])
def test_leaving_does_not_wait_for_a_stopped_monitor(tmp_path, monkeypatch, caplog, stopped, is_own):
    monkeypatch.setattr("sm_profiler.processes.STOPPED_SECONDS", 0.1)
    lock = NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    if not is_own:
        os.pwrite(lock.fd, str(stopped.pid).encode(), 0)
    task = Task(str(tmp_path), "algo-1", destination="s3://bucket/job")
    registration = Registration(task, os.getpid(), stopped if is_own else None)
    with caplog.at_level(logging.WARNING):
        registration.leave(seconds=600)
    lock.release()
    (record,) = caplog.records
    assert f"process {stopped.pid}, which is stopped" in record.getMessage()


@pytest.mark.first(1)
@pytest.mark.parametrize("signed", [True, False])
def test_leaving_wakes_a_monitor_that_is_ready_for_it(tmp_path, signed):
    lock = NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    with subprocess.Popen(["sleep", "100"]) as monitor:  # which the signal ends
        if signed:
            os.pwrite(lock.fd, str(monitor.pid).encode(), 0)
        Registration(Task(str(tmp_path), "algo-1"), os.getpid(), monitor).leave(seconds=0.2 if not signed else 600)
        assert monitor.poll() == (-signal.SIGUSR1 if signed else None)
        monitor.kill()
    lock.release()


def test_leaving_does_not_wait_long_for_a_monitor_that_uploads_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("sm_profiler.monitor.start.LOCAL_SECONDS", 0.1)
    lock = NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    with caplog.at_level(logging.WARNING):
        Registration(Task(str(tmp_path), "algo-1"), os.getpid()).leave(seconds=600)
    lock.release()
    assert "which does not end" in caplog.text


@pytest.mark.parametrize("content", ["", "x", "²", "-1", "1" * 40, "99999999"])
def test_a_lock_with_any_content_can_be_waited_for(tmp_path, content):
    lock = NodeLock(tmp_path, "algo-1")
    assert lock.acquire()
    os.pwrite(lock.fd, content.encode(), 0)
    signer = lock.signer()
    assert signer is None or not is_stopped(signer)
    lock.release()


def test_a_process_that_ends_or_is_stopped_is_not_waited_for(stopped, monkeypatch):
    monkeypatch.setattr("sm_profiler.processes.STOPPED_SECONDS", 0.1)
    assert not wait_for(stopped, 600)
    with subprocess.Popen(["true"]) as ending:
        assert wait_for(ending, 600)
    with subprocess.Popen(["sleep", "100"]) as lasting:
        assert not wait_for(lasting, 0.05)
        lasting.kill()


def test_a_reused_pid_is_another_process(tmp_path):
    def stat(pid, started, state="S"):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} (a ) b) {state} " + "0 " * 18 + f"{started} 0 0")

    registry = ProcessRegistry(tmp_path, "algo-1", tmp_path / "proc")
    stat(7, 100)
    stat(8, 200)
    registry.register(7)
    registry.register(8)
    assert sorted(registry.living()) == [7, 8]
    stat(7, 300)
    assert registry.living() == [8]
    registry.leave(8)
    assert registry.living() == []
    assert not registry.all_ended()  # 7 did not leave
    registry.forget(registry.dead())
    registry.register(8)
    stat(8, 200, "Z")
    assert registry.living() == []


@pytest.mark.first(1)
@pytest.mark.parametrize("problem", ["no credentials", "unreachable"])
def test_without_a_single_upload_the_end_waits_five_seconds_at_most(job, aws, problem):
    if problem == "no credentials":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del job.environment[name]
        job.environment |= {"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    else:
        job.environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    process = job.start("time.sleep(1); print(time.monotonic(), flush=True); writer.close()")
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - float(output) < 20  # 5 s, and loading boto3 under load
    assert process.returncode == 0
    assert errors.count("could not be uploaded") == 1  # also if an exit code comes after it
    assert str(job.root) in errors
    assert not (job.root / MARKERS[0]).exists()


def test_a_missing_bucket_is_reported_within_seconds(job, s3):
    config = json.loads(job.environment["SM_PROFILER_CONFIG"])
    config["S3OutputPath"] = "s3://no-such-bucket/out"
    job.environment["SM_PROFILER_CONFIG"] = json.dumps(config)
    process = job.start("time.sleep(60)")
    assert "the bucket does not exist" in process.stderr.readline()


@pytest.mark.first(1)
@pytest.mark.parametrize("overloaded", [True, False])
def test_an_s3_that_accepts_files_late_gets_the_whole_minute(tmp_path, overloaded):
    """It starts to answer 2 s after the job's end, and accepts files only after the wait without any answer."""

    class Late:
        uri, files = "s3://bucket/x", {}

        def read(self, _key):
            raise UnavailableError("SlowDown") if overloaded else ConnectionError("no route to host")

        def write(self, key, data):
            if clock.now < 2 and not overloaded:
                raise ConnectionError("no route to host")
            if clock.now < 8:
                raise UnavailableError("SlowDown")
            self.files[key] = data

        def upload(self, key, file, _size):
            self.write(key, file.read())

    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    clock, destination = Clock(), Late()
    trace = "framework/pevents/2026112111/1_0-algo-1_pythontimeline.json"
    (tmp_path / trace).parent.mkdir(parents=True)
    (tmp_path / trace).write_text("[]")
    registry = ProcessRegistry(tmp_path, "algo-1")
    registry.register(os.getpid())
    registry.leave(os.getpid())
    task = Task(str(tmp_path), "algo-1", destination="s3://bucket/x")
    agent = Agent(task, NodeLock(tmp_path, "algo-1"), registry, lambda: destination, lambda: None, clock)
    agent.sleep = clock.sleep
    agent.run()
    assert sorted(destination.files) == sorted([trace, *MARKERS])


@pytest.mark.first(1)
@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("released_after", [3.0, None])
def test_the_open_file_of_a_killed_script_is_completed_once_the_kernel_has_closed_it(
    tmp_path, terminated, released_after
):
    """The main thread of a killed process is gone before its other threads, which keep its files open and locked."""
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds
        if released_after is not None and now >= released_after:
            writer.abandon()

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    writer = TraceWriter(tmp_path, "0-algo-1")
    writer.write([TraceEvent("Forward", "Net", 1_795_261_080_000_000, 5)])
    [path] = tmp_path.rglob("*.json.tmp")
    path.rename(path.with_name(path.name.replace(f"_{os.getpid()}_", f"_{gone.pid}_")))
    agent = Agent(
        Task(str(tmp_path), "algo-1"), NodeLock(tmp_path, "algo-1"), ProcessRegistry(tmp_path, "algo-1"), None, None, lambda: now
    )  # fmt: skip
    agent.sleep = sleep
    if terminated:
        agent.terminate()
    agent.run()
    assert len(list(tmp_path.rglob("*_0-algo-1_pythontimeline.json"))) == (released_after is not None)
    assert now < 11
    writer.abandon()


def test_processes_are_followed_without_proc(tmp_path):
    registry = ProcessRegistry(tmp_path, "algo-1", proc=tmp_path / "proc")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    registry.register(child.pid)
    assert registry.living() == [child.pid]
    child.communicate(b"\n")
    assert registry.living() == []
    assert len(registry.dead()) == 1


def test_what_is_left_is_reported_once(tmp_path, caplog):
    """The files are sent once more after the exit codes."""
    task = Task(str(tmp_path), "algo-1", destination="s3://bucket/x")
    agent = Agent(task, NodeLock(tmp_path, "algo-1"), ProcessRegistry(tmp_path, "algo-1"), None, None)
    agent._uploader = SimpleNamespace(
        destination=SimpleNamespace(uri=task.destination), reached=False, reason="the bucket does not exist",
        drain=lambda _: False, remaining=lambda: 2, put_markers=lambda: False, wait=None,
    )  # fmt: skip
    agent.exits = SimpleNamespace(let_go=lambda: {1: 0})
    for count in (1, 2):
        agent._finish(agent.clock())
        assert caplog.text.count("2 files could not be uploaded") == count
