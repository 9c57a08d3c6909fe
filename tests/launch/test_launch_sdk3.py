"""SDK v3 in its own environment: shapes, ModelTrainer, pipelines, the Batch payload, sessions, and a release that breaks us."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".envs/sdk3/bin/python"
PROGRAM = Path(__file__).with_name("sdk3_program.py")
QUESTIONS = ("create", "update", "train", "batch", "pipeline", "agent", "far_away", "broken_release", "session")

pytestmark = [pytest.mark.sdk3, pytest.mark.slow]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """All answers of one process: importing the SDK takes longer than asking."""
    if not PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail("no environment of the SDK v3")
        pytest.skip("no environment of the SDK v3")
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
        [str(PYTHON), str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    found = [line for line in shown.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert found, shown.stderr[-3000:]
    return json.loads(found[0].removeprefix("ANSWERS "))


@pytest.mark.parametrize("question", QUESTIONS)
def test_with_sdk_v3(answers, question):
    assert answers[question] == "fine"


def test_every_question_was_asked(answers):
    assert set(answers) == set(QUESTIONS)
