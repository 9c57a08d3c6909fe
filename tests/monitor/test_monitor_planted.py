"""Pipes and links that another user of a shared folder puts where a job's processes write and read."""

import json
import os
import threading
from pathlib import Path

import pytest

from sm_profiler.config import Profile
from sm_profiler.formats.layout import EXIT_FOLDER, IGNORED_FOLDER, STOP_FOLDER, TRACE_FOLDER
from sm_profiler.formats.system_writer import Measurement, SystemWriter, publish_minute, recover_minutes, temporary_path
from sm_profiler.formats.trace_recovery import are_traces_held, recover_killed, recover_traces
from sm_profiler.hook.process_end import StopSignals
from sm_profiler.monitor.exit_link import ExitDesk, ExitLink
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry
from sm_profiler.monitor.place import CLAIM_FILE, settle
from sm_profiler.processes import start_time

NODE, DEAD = "algo-1", 4_194_303  # no process has this id
MINUTE = 1_700_000_040


def in_time(action):
    """Return the result of an action, which must not wait for a pipe."""
    results = []
    thread = threading.Thread(target=lambda: results.append(action()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits"
    return results[0]


def pipe(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def test_a_pipe_among_open_traces_is_left_alone(tmp_path):
    """Ranks finish such files as they start and end, and the monitor does while the job runs."""
    planted = pipe(tmp_path / TRACE_FOLDER / f"0-{NODE}_pythontimeline_{DEAD}_1_1.json.tmp")
    assert in_time(lambda: recover_traces(tmp_path, NODE, stopped=False)) == 0
    assert in_time(lambda: recover_killed(tmp_path, NODE, "host")) == 0
    assert in_time(lambda: are_traces_held(tmp_path, NODE)) is False
    assert planted.exists()


def test_a_trace_is_finished_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / TRACE_FOLDER / f"0-{NODE}_pythontimeline_{DEAD}_1_1.json.tmp"
    path.parent.mkdir(parents=True)
    path.write_text('[\n{"name": "a", "ph": "X", "ts": 1, "dur": 1}')
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read by its path"))
    assert recover_traces(tmp_path, NODE, stopped=None) == 1


def test_pipes_among_minutes_stop_no_monitor(tmp_path):
    pipe(temporary_path(tmp_path, NODE, MINUTE))
    target = tmp_path / f"system/incremental/2023111422/{MINUTE}.{NODE}.json"
    target.parent.mkdir(parents=True)
    target.write_text("{}")
    assert in_time(lambda: recover_minutes(tmp_path, NODE)) == 0
    writer = SystemWriter(tmp_path, NODE)
    rows = [Measurement("cpu", "cpu0", "CPUUtilization", 1.0)]
    in_time(lambda: writer.write(MINUTE + 0.5, rows))
    assert "not a regular file" in writer.error or "No such device" in writer.error


def test_no_file_is_written_where_links_lead(tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    path = temporary_path(tmp_path, NODE, MINUTE)
    path.parent.mkdir(parents=True)
    path.symlink_to(other)
    writer = SystemWriter(tmp_path, NODE)
    writer.write(MINUTE + 0.5, [Measurement("cpu", "cpu0", "CPUUtilization", 1.0)])
    assert writer.error
    registry = ProcessRegistry(tmp_path, NODE)
    folder = tmp_path / IGNORED_FOLDER / f"processes-{NODE}"
    folder.mkdir(parents=True)
    (folder / f"{os.getpid()}-{start_time(os.getpid())}").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        registry.register(os.getpid(), "host")
    path.unlink()
    path.write_text("{}\n")
    target = tmp_path / f"system/incremental/2023111422/{MINUTE}.{NODE}.json"
    target.parent.mkdir()
    target.write_text("{}\n")
    path.with_name(f"{path.name}.{os.getpid()}.tmp").symlink_to(other)
    publish_minute(tmp_path, NODE, MINUTE)
    assert target.read_text() == "{}\n{}\n"
    assert other.read_text() == "mine"


def test_a_pipe_in_place_of_a_claim_or_a_lock_is_no_reason_to_wait(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shared"
    pipe(folder / IGNORED_FOLDER / CLAIM_FILE)
    profile = Profile(local_path=str(folder))
    environment = {"SM_PROFILER_CONFIG": json.dumps({"ProfilingParameters": {"LocalPath": str(folder)}})}
    assert in_time(lambda: settle(profile, environment)).local_path != str(folder)
    pipe(folder / IGNORED_FOLDER / f"monitor-{NODE}.lock")
    with pytest.raises(OSError, match="not a regular file"):
        NodeLock(folder, NODE).acquire()


def test_a_pipe_in_place_of_an_exit_record_is_not_opened(tmp_path):
    record = pipe(tmp_path / EXIT_FOLDER / f"0-{NODE}_{os.getpid()}_1")
    pid = os.getpid()
    assert in_time(lambda: ExitDesk(tmp_path, NODE)._has_code(pid)) is False
    pipe(tmp_path / IGNORED_FOLDER / f"processes-{NODE}" / f"{DEAD}-1")
    assert in_time(lambda: ProcessRegistry(tmp_path, NODE).vanished_here("host")) == []

    def wait():
        with pytest.raises(OSError):
            ExitLink(record, None).wait_in_exit()
        return True

    assert in_time(wait)


def test_a_pipe_in_place_of_the_mark_of_a_signal_is_not_opened(tmp_path):
    """The recorder would wait, and the end of the training for the recorder."""
    pipe(tmp_path / STOP_FOLDER / f"0-{NODE}_{os.getpid()}_15")
    record = {"start_us": 1, "loaded_us": 1}
    stops = StopSignals(lambda: (tmp_path, f"0-{NODE}"), lambda: record, lambda action: action(), pytest.fail)
    assert in_time(lambda: stops.start() or stops._files) == {}
