"""Trainings with JAX as their users write them, profiled with `sm-profiler run` and a detailed window over compiling steps.

Their steps are those that the scripts count, and their results are the same to the bit.
"""

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.frameworks import PYTHON
from tests.support.profiles import events

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("jax_strangers.py")
NAMES = re.findall(r"^def (\w+)\(\):\n    \"", SCRIPT.read_text(), re.MULTILINE)
QUICK = ("pure_mlp",)
SURPLUS = {"by_hand_accumulation": 2}  # calls of `add` that may still be an evaluation's first ones


def run(command, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SM_PROFILER", "SMPROFILER"))}
    environment = {**kept, "PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu", **more}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(rows[-1]), done.stderr


def agree(name, folder):
    if not PYTHON.exists():
        message = "no environment with JAX: `make test` creates it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    window = {"LocalPath": str(folder / "profile"), "DetailedProfilingConfig": '{"StartStep": 1, "NumSteps": 3, }'}
    config = folder / "profilerconfig.json"
    config.write_text(json.dumps({"ProfilingParameters": window}))
    alone, _ = run([PYTHON, SCRIPT, name])
    profiled, log = run(
        [PYTHON, "-m", "sm_profiler", "run", "--no-monitor", "--config", config, SCRIPT, name], PYTHONPATH=str(ROOT)
    )
    assert profiled == alone
    assert "switched off" not in log
    seen = Counter(row["phase"] for row in events(folder / "profile"))
    assert seen["Step:ModeKeys.TRAIN"] == alone["train"]
    assert 0 <= seen["Step:ModeKeys.EVAL"] - alone["eval"] <= SURPLUS.get(name, 0)
    return seen


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_steps_and_results_are_those_of_the_script(name, tmp_path):
    agree(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_steps_and_results_are_those_of_further_scripts(name, tmp_path):
    seen = agree(name, tmp_path)
    if name == "host_callback":
        assert seen["sm_profiler/callback"] > 0
