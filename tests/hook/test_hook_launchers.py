"""The hook under launchers: ranks, threads that train, and processes that are killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_hook_training import environment

from sm_profiler.hook.settings import rank_from
from sm_profiler.hook.thread_end import at_thread_end

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
    (path,) = tmp_path.rglob("*_pythontimeline.json")
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
