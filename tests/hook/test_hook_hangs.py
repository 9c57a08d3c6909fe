"""Trainings that stop: the hook writes the stacks in time to survive a kill, and the verdict names process and line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from test_hook_training import environment

from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.report.build import build_report
from sm_profiler.source import ProfileSource
from sm_profiler.storage import open_storage

SCRIPT = Path(__file__).with_name("planted_hangs.py")
SECONDS = 2  # of the shortest stop to report
PATIENCE = 120  # seconds to wait for a record, on a busy machine
WAITS_FOR = {
    "lock": "", "two_locks": "", "sleep": "", "polled": "", "file_lock": "", "pipe": "", "silent_server": "",
    "empty_queue": "a queue", "full_queue": "a queue", "join": "a lock or a thread", "child": "a child process",
    "worker_sleeps": "a loader's worker", "worker_stopped": "a loader's worker",
}  # fmt: skip
SAMPLE = ("empty_queue", "worker_stopped")  # the others take minutes together


def start(kind: str, profile: Path, ranks: int = 1) -> list[subprocess.Popen]:
    """Start the script's processes."""
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    variables = {
        "SM_PROFILER_CONFIG": config, "SM_PROFILER_HANG_SECONDS": str(SECONDS), "HANG_STORE": str(profile.parent / "store"),
    }  # fmt: skip
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(SCRIPT), kind]
    return [
        subprocess.Popen(
            command, env=environment(**variables, **({"RANK": str(rank)} if ranks > 1 else {})), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def kill(processes: list[subprocess.Popen]) -> None:
    """End processes and their children as a scheduler does."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait()


def records(profile: Path) -> list[dict]:
    """The arguments of the hang events in finished files."""
    return [
        event["args"]
        for path in sorted(profile.rglob("*_pythontimeline.json"))
        for event in json.loads(path.read_text())
        if event["name"] == "hang"
    ]


def hang(kind: str, profile: Path, ranks: int = 1, expected: int = 1) -> None:
    """Run the script until processes have recorded a hang, twice if there are ranks, then kill it."""
    processes = start(kind, profile, ranks)
    try:
        end = time.monotonic() + PATIENCE
        while (
            sum(count >= min(ranks, 2) for count in Counter(one["pid"] for one in records(profile)).values()) < expected
        ):
            assert time.monotonic() < end, f"{kind}: no record of a hang"
            time.sleep(0.2)
    finally:
        kill(processes)
    recover_traces(profile)


def verdict(profile: Path) -> dict:
    """Return the verdict of the report."""
    return build_report(ProfileSource(open_storage(str(profile)))).as_dict()["verdict"]


def line_of(kind: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(
        n for n, line in enumerate(lines, 1) if "# hangs:" in line and kind in line.partition("# hangs:")[2].split()
    )


@pytest.mark.parametrize(
    "kind", [kind if kind in SAMPLE else pytest.param(kind, marks=pytest.mark.long) for kind in WAITS_FOR]
)
def test_the_verdict_names_the_line_of_a_hang(kind, tmp_path):
    profile = tmp_path / "profile"
    hang(kind, profile)
    found = verdict(profile)
    assert found["class"] == "HANG", found["headline"]
    place = found["where"][0]
    assert (Path(place["file"]).name, place["line"]) == (SCRIPT.name, line_of(kind))
    assert (f"waiting for {WAITS_FOR[kind]}" if WAITS_FOR[kind] else "waiting for") in found[
        "headline"
    ] or not WAITS_FOR[kind]
    if kind == "worker_stopped":
        (record, *_) = records(profile)
        assert "T" in {child["state"] for child in record["children"]}  # stopped


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "expected", "rank", "text"),
    [
        ("rank_exits", 1, "0", "algo-1-1 ended"),
        ("rank_sleeps", 2, "1", "1 other waits for it"),
        ("rank_skips", 2, "", "waited for each other"),
    ],
)
def test_the_verdict_names_the_rank_that_is_elsewhere(kind, expected, rank, text, tmp_path):
    profile = tmp_path / "profile"
    hang(kind, profile, ranks=2, expected=expected)
    found = verdict(profile)
    assert found["class"] == "HANG", found["headline"]
    assert text in found["headline"]
    assert found["where"][0]["rank"].endswith(rank)
    assert line_of(kind) in {place["line"] for place in found["where"]}


@pytest.mark.parametrize(
    "kind",
    [
        "finishing",
        pytest.param("debugger", marks=pytest.mark.long),
        pytest.param("slow_evaluation", marks=pytest.mark.long),
    ],
)
def test_a_training_that_goes_on_or_ends_has_no_hang(kind, tmp_path):
    profile = tmp_path / "profile"
    (process,) = start(kind, profile)
    assert process.wait(PATIENCE) == 0
    found = records(profile)
    if kind == "debugger":
        assert not found
    else:
        assert found[-1]["state"] == {"finishing": "ended", "slow_evaluation": "resumed"}[kind]
    assert verdict(profile)["class"] != "HANG"
