"""Small trainings in many kinds of loops: the records agree with the scripts' own counts, and results are identical to
the bit with the hook off, on, and failing at every call."""

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.hook import PHASES, environment
from tests.support.profiles import events

MATRIX = Path(__file__).with_name("training_matrix.py")
SCENARIOS = [
    "plain",
    "workers",
    "persistent_workers",
    "spawned_workers",
    "accumulation",
    "without_loader",
    "gan",
    "rnn",
    "evaluation",
    "scaler_skips",
    "checkpointed",
    "lbfgs",
    "iterable_and_early_break",
    "exceptions",
    "fetched_ahead",
    "copied",
    "model_in_the_dataset",
    "compiled",
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    runs, logs = {}, {}
    for mode in ("off", "on", "raising"):
        done = subprocess.run(
            [sys.executable, MATRIX, mode, folder],
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        runs[mode] = {row["scenario"]: row for row in map(json.loads, done.stdout.splitlines())}
        logs[mode] = done.stderr
    return folder, runs, logs


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_losses_parameters_gradients_and_random_states_are_identical(matrix, name):
    _, runs, _ = matrix
    assert runs["on"][name]["digest"] == runs["off"][name]["digest"]
    assert runs["raising"][name]["digest"] == runs["off"][name]["digest"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_records_agree_with_the_scripts_counts(matrix, name):
    folder, runs, _ = matrix
    assert runs["on"][name]["failures"] == {}
    seen = Counter(event["phase"] for event in events(folder / name))
    assert {key: seen[phase] for key, phase in PHASES.items()} == {key: runs["off"][name][key] for key in PHASES}


@pytest.mark.parametrize("name", SCENARIOS)
def test_phases_lie_within_their_steps(matrix, name):
    folder, _, _ = matrix
    rows = events(folder / name)
    steps = sorted((row["ts"], row["ts"] + row["dur"]) for row in rows if row["phase"].startswith("Step:"))
    assert all(before[1] <= after[0] + 1 for before, after in itertools.pairwise(steps))  # they do not overlap
    inside = [row for row in rows if row["phase"] in {"Forward", "Backward(post-forward)", "Optimizer"}]
    for row in inside:
        assert any(start - 1 <= row["ts"] and row["ts"] + row["dur"] <= end + 1 for start, end in steps), row


def test_the_dataloader_window_holds_exactly_its_steps(matrix):
    folder, _, _ = matrix
    for name, workers in (("plain", 0), ("workers", 2), ("spawned_workers", 1)):
        rows = [row for row in events(folder / name) if row["phase"] == "DataLoaderIter"]
        assert len(rows) == 3  # steps 2, 3 and 4
        assert all(row["name"].endswith("DataLoaderIter::GetNext") for row in rows)
        assert {row["args"]["num_workers"] for row in rows} == {workers}
        lives = [row for row in events(folder / name) if row["phase"] == "DataLoaderWorker"]
        assert sorted(row["args"]["worker_id"] for row in lives) == list(range(workers))


def test_a_broken_hook_logs_one_line(matrix):
    _, runs, logs = matrix
    lines = [line for line in logs["raising"].splitlines() if "sm-profiler" in line]
    assert len(lines) == len(runs["raising"])  # each scenario has a hook of its own


def test_a_working_hook_logs_nothing(matrix):
    _, _, logs = matrix
    assert "sm-profiler" not in logs["on"]
