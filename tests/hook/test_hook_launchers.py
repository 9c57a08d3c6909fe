"""The hook under launchers: ranks, threads that train, and processes that are killed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook.guard import at_thread_end
from sm_profiler.hook.settings import rank_from
from tests.support.hook import environment

STEP = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "1", "PMIX_RANK": "2"}, 1),
        ({"PMIX_RANK": "2"}, 2),
        (STEP, 3),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the script of sbatch
        ({**STEP, "RANK": "x"}, 3),
        ({}, None),
    ],
)
def test_rank_of_the_launchers_variables(variables, rank):
    assert rank_from(variables) == rank


def test_ranks_of_a_group_come_before_inherited_variables(session, monkeypatch):
    """A script that starts its ranks by itself runs in one task of a launcher."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    assert session.find("pytorch").rank() == 5


def test_a_thread_that_trains_leaves_all_its_steps(tmp_path):
    """From the first step to the last, although the process is killed right after it."""
    script = Path(__file__).with_name("thread_training.py")
    variables = environment(SM_PROFILER_CONFIG=json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    command = [sys.executable, "-m", "sm_profiler.hook.launch", script]
    assert subprocess.run(command, env=variables, timeout=240, check=False).returncode == 3
    path, _ = sorted(tmp_path.rglob("*_pythontimeline.json"))  # the second has the end of the process
    events = json.loads(path.read_text())
    (row,) = [one["pid"] for one in events if one["ph"] == "M" and one["args"].get("name") == "Step:ModeKeys.TRAIN"]
    assert [one["args"]["step_num"] for one in events if one["ph"] == "X" and one["pid"] == row] == list("0123456")


def test_thread_end_calls_the_last_action_once(monkeypatch):
    import threading

    called = []

    def work():
        at_thread_end(lambda: called.append("first"))
        at_thread_end(lambda: called.append("second"))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert called == ["second", "second"]


KILLED = """
import json, os, subprocess, sys
words = json.loads(sys.argv[1])
sys.exit(subprocess.run(words).returncode == 0)  # a launcher, which imports no framework
"""
RANKS = """
import os, signal, time
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 240
for step in range(1_000_000):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if os.environ["RANK"] == "1" and step == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    if time.monotonic() > end:
        break
"""


def names(profile: Path) -> list[str]:
    return sorted(path.name for path in (profile / "framework").rglob("*") if path.is_file() and "json" in path.name)


def leave_file(profile: Path, source: str) -> None:
    """Write the open file of a process that was killed."""
    writer = TraceWriter(profile, source)
    writer.write([TraceEvent("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", 1_700_000_000_000_000, 5)])
    writer.abandon()
    (path,) = profile.rglob(f"{source}_*.tmp")
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    path.rename(path.with_name(path.name.replace(f"_{os.getpid()}_", f"_{int(gone.stdout)}_")))


def test_a_launcher_completes_the_file_of_a_killed_child(tmp_path):
    """With the managed service, which uploads complete files only, nothing else is left that could."""
    variables = environment(
        SM_PROFILER_CONFIG=json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path / "out")}})
    )
    script = Path(__file__).with_name("small_training.py")
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script), "kill"]
    arm = "from sm_profiler.hook.auto import arm; arm()"
    launcher = [sys.executable, "-c", arm + KILLED, json.dumps(command)]
    done = subprocess.run(launcher, env=variables, timeout=240, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (name,) = names(tmp_path / "out")
    assert name.endswith("_pythontimeline.json")


@pytest.mark.first(1)
@pytest.mark.parametrize("when", ["starts", "ends"])
def test_another_rank_completes_the_file_of_a_killed_one(tmp_path, session, when):
    if when == "ends":
        session.recorder.tasks.clear()  # what it does at its start
    leave_file(tmp_path, f"7-{session.node}")
    session.later(lambda: None)
    if when == "ends":
        session.close()
    end = time.monotonic() + 60
    while any(name.startswith("7-") for name in names(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    assert [name for name in names(tmp_path) if f"_7-{session.node}_" in name]


@pytest.mark.long
def test_torchrun_completes_the_files_of_a_killed_rank_and_of_those_it_stops(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    profile = {"ProfilingParameters": {"LocalPath": str(tmp_path / "out")}}
    variables = environment(SM_PROFILER_CONFIG=json.dumps(profile), SM_PROFILER_AUTO="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, env=variables, timeout=280, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = names(tmp_path / "out")
    assert {name.split("_")[1] for name in found} == {"0-algo-1", "1-algo-1"}, found
    assert not [name for name in found if name.endswith(".tmp")]
