"""SDK v3 in its own environment: shapes, ModelTrainer, pipelines, Batch, sessions, and an incompatible release."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("sdk3_program.py")
CASES = ("create", "update", "train", "batch", "pipeline", "agent", "tuning", "far_away", "broken_release", "session")

pytestmark = [pytest.mark.sdk3, pytest.mark.slow]


@pytest.fixture(scope="module")
def results(sdk3_python, tmp_path_factory):
    """Results of one process, since importing the SDK takes longest."""
    settings = tmp_path_factory.mktemp("settings") / "config.json"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SM_PROFILER_SETTINGS": str(settings),
        "TELEMETRY_OPT_OUT": "true",
    }
    environment.pop("SM_PROFILER_RULE_IMAGE", None)
    shown = subprocess.run(
        [str(sdk3_python), str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    found = [line for line in shown.stdout.splitlines() if line.startswith("RESULTS ")]
    assert found, shown.stderr[-3000:]
    return json.loads(found[0].removeprefix("RESULTS "))


@pytest.mark.parametrize("case", CASES)
def test_with_sdk_v3(results, case):
    assert results[case] == "fine"


def test_every_case_has_run(results):
    assert set(results) == set(CASES)
