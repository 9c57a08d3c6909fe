"""The slow stage of a pipeline of tf.data is named: ten kinds of pipelines."""

import json
import os
import subprocess

import pytest

from sm_profiler.diagnosis.profile.inputs import known, slowest
from sm_profiler.formats.recorded import DataStages
from sm_profiler.metrics.record_fold import read_args
from tests.support.frameworks import HERE, PYTHON, QUIET
from tests.support.profiles import events

NAMES = [
    "slow_map", "slow_filter", "slow_generator", "slow_batch", "slow_readers", "python_function", "shuffled", "cached",
    "parsed", "not_ahead",
]  # fmt: skip

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing: make {PYTHON.parents[1]}.done"),
]


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Return pipeline → the stage that is slow, and the stage that the report would name."""
    folder = tmp_path_factory.mktemp("pipelines")
    environment = os.environ | QUIET | {"SM_PROFILER_AUTO": "1"}
    environment["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": str(folder)}})
    done = subprocess.run(
        [PYTHON, HERE / "slow_pipelines.py", *NAMES],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [row for row in events(folder) if row["phase"] == "sm_profiler/data_stages"]
    found = {}
    for line in lines:
        rows_of_run = [row for row in rows if line["began"] <= row["start"] <= line["ended"] + 0.01]
        own = [read_args(DataStages, json.dumps(row["args"])) for row in rows_of_run]
        most = max(own, key=known, default=DataStages())
        stage = slowest(most)
        found[line["name"]] = line["stage"], stage.name if stage else most
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_slow_stage_is_named(named, name):
    planted, found = named[name]
    assert found == planted
