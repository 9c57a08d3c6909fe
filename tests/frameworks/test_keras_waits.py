"""Measured waits are those of the script's own diary, with one batch and several a run, with and without XLA."""

import json
import os
import subprocess

import pytest

from tests.support.frameworks import BACKENDS, HERE, PYTHON, QUIET
from tests.support.profiles import events

NEAR = 0.05
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing: make {PYTHON.parents[1]}.done"),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_waits_are_within_five_percent_of_the_diary(backend, tmp_path):
    environment = os.environ | QUIET | {"KERAS_BACKEND": backend, "SM_PROFILER_AUTO": "1"}
    environment["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}})
    done = subprocess.run(
        [PYTHON, HERE / "waits_loops.py"], capture_output=True, text=True, check=False, timeout=280, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    waits = [row for row in events(tmp_path) if row["phase"] == "DataLoaderWait"]
    wrong = {}
    for line in map(json.loads, done.stdout.splitlines()):
        own = [one["dur"] / 1e6 for one in waits if line["began"] <= one["start"] <= line["ended"]]
        waited = line["loop"] - line["computing"]  # a batch that is computed hides the loading of the next
        if abs(sum(own) / waited - 1) > NEAR:
            wrong[line["name"]] = round(sum(own), 3), round(waited, 3), line["loading"]
    assert not wrong
