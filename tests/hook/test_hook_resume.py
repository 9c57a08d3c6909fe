"""A training that is interrupted and resumed: the files of both attempts stay, and readers keep them apart."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.metrics.attempts import evaluation_seconds, find_attempts
from sm_profiler.metrics.step_fold import StepRows, columns
from sm_profiler.report import build_report, terminal_summary
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from tests.support.hook import SCRIPT, environment
from tests.support.profiles import events

STEP = "Step:ModeKeys.TRAIN"


def begin(tmp_path, what: str, rank: str | None) -> subprocess.Popen:
    config = tmp_path / "profilerconfig.json"
    config.write_text(json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}}))
    command = [sys.executable, "-m", "sm_profiler", "run", "--no-monitor", "--config", config, SCRIPT, what]
    more = {} if rank is None else {"RANK": rank}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more))


def interrupt(process: subprocess.Popen, profile) -> None:
    """SIGTERM, once something has reached the disk."""
    deadline = time.monotonic() + 60
    while not any(STEP in path.read_text() for path in profile.rglob("*.tmp")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()


@pytest.mark.long
@pytest.mark.parametrize(("what", "rank"), [("wait", "0"), ("kill", None)], ids=["sigterm", "kill -9"])
def test_attempts_stay_apart_and_are_counted_together(tmp_path, what, rank):
    profile = tmp_path / "profile"
    first = begin(tmp_path, what, rank)
    if what == "wait":
        interrupt(first, profile)
    first.communicate(timeout=60)
    assert first.returncode == 128 + (signal.SIGTERM if what == "wait" else signal.SIGKILL)
    before = {path: path.read_bytes() for path in profile.rglob("*.json")}
    steps_before = sum(row["phase"] == STEP for row in events(profile))
    assert steps_before >= 10
    assert not any((profile / key).exists() for key in END_MARKERS)
    assert not open_source(profile, cache=False).finished

    second = begin(tmp_path, "", rank)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    assert {path: path.read_bytes() for path in before} == before
    assert all((profile / key).exists() for key in END_MARKERS)  # this one came to its end

    source = open_source(profile, cache=False)
    report = build_report(source)
    told = [one["args"] for one in source.metadata()]
    assert len({(one["pid"], one["start_us"]) for one in told}) == 2
    (rank_told,) = json.loads(to_json(report))["job"]["ranks"]
    assert (rank_told["attempts"], rank_told["train_steps"]) == (2, steps_before + 10)
    rows = report.metrics.ranks[0].steps
    down = (rows.start[steps_before] - rows.end[steps_before - 1]) / 1e6
    assert 0 < rank_told["interrupted_s"] <= down
    assert rank_told["loop_s"] == pytest.approx(
        (rows.end[-1] - rows.start[0]) / 1e6 - rank_told["interrupted_s"], abs=0.05
    )
    assert "interrupted once" in terminal_summary(report)
    assert report.metrics.ranks[0].iterations.length.max() < rank_told["interrupted_s"]  # the pause is no long step


def rows_of(starts, numbers, modes=None) -> StepRows:
    count = len(starts)
    modes = np.zeros(count, np.int8) if modes is None else np.asarray(modes, np.int8)
    starts = np.asarray(starts, float) * 1e6
    return StepRows(
        starts, np.full(count, 0.5e6), np.asarray(numbers), modes, np.zeros((count, len(columns()))), np.zeros(count)
    )


def record(start_s: float, pid: int = 28) -> dict:
    return {"node": "algo-1", "rank": 0, "pid": pid, "start_us": start_s * 1e6}


def test_a_container_that_is_started_again_may_give_the_same_pid():
    rows = rows_of([0, 1, 2, 100, 101], [0, 1, 2, 0, 1])
    found = find_attempts("algo-1-0", rows, [record(0), record(0), record(100)], pids=1)  # a record a file
    assert (found.count, found.breaks, found.down_s) == (2, (3,), 97.5)


def test_a_process_that_only_paused_was_not_interrupted():
    rows = rows_of([0, 1, 2, 100, 101], [0, 1, 2, 3, 4])
    assert find_attempts("algo-1-0", rows, [record(0), record(0)], pids=1).count == 1


def test_a_process_whose_profiler_was_off_for_a_while_was_not_interrupted():
    rows = rows_of([10, 11, 12, 100, 101, 200, 201], [0, 1, 2, 0, 1, 0, 1])
    metadata = [record(at) | {"process_us": began * 1e6} for at, began in ((10, 5), (100, 5.001), (200, 190))]
    found = find_attempts("algo-1-0", rows, metadata, pids=1)
    assert (found.count, found.breaks, found.restarts) == (2, (3, 5), (200e6,))
    assert (found.down_s, found.off_s) == (98.5, 87.5)


def test_profiles_without_metadata_count_processes():
    found = find_attempts("algo-1-0", rows_of([0, 1], [0, 1]), [], pids=3)
    assert (found.count, found.down_s) == (3, 0.0)


def test_an_interrupted_evaluation_does_not_last_through_the_pause():
    rows = rows_of([0, 1, 100, 101], [0, 1, 0, 1], modes=[1, 1, 1, 1])
    assert evaluation_seconds(rows) == 101.5
    assert evaluation_seconds(rows, (2,)) == 3.0
