"""Scripts as strangers write them: `sm-profiler run` counts their steps as Keras does, and changes no result."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.frameworks import INSTALLED, PYTHON, QUIET, ROOT
from tests.support.profiles import events

PLACES = (*(Path(__file__).parent / "keras_scripts").glob("*.py"), *(ROOT / "examples").glob("keras_*.py"))
SCRIPTS = {path.stem: path for path in sorted(PLACES, key=lambda path: path.stem)}
BACKENDS = ("tensorflow", "jax", "torch")
SOME = {
    "actor_critic": ("tensorflow",),  # its loop is TensorFlow's
    "custom_loop": ("tensorflow",),
    "image_sequence": ("tensorflow", "jax"),  # PyTorch 2.13 cannot compute a gradient of this net, with or without us
    "siamese_pairs": ("tensorflow",),
    "tabular_features": ("jax",),
    "text_generation": ("tensorflow",),
}
CELLS = [(script, backend) for script in SCRIPTS for backend in SOME.get(script, BACKENDS)]
if os.environ.get("SM_PROFILER_KERAS_SCRIPTS") == "sample":  # each script on one backend, and not on the slowest
    CELLS = [(script, SOME.get(script, BACKENDS[number % 2 :])[0]) for number, script in enumerate(SCRIPTS)]
# Keras starts a PyDataset's workers anew for each epoch, and batches change places from the second epoch on.
RACING = ("image_sequence",)
FAST = [("mixed_precision", "jax")]

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing")


def train(script, backend, folder, *profiler):
    """Run a script in a folder; return what it printed last."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}
    command = [*profiler, SCRIPTS[script]]
    done = subprocess.run(
        [PYTHON, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=900,
        env=environment | QUIET | {"KERAS_BACKEND": backend},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def check(script, backend, folder):
    if backend == "torch" and not INSTALLED:
        pytest.skip("no PyTorch in this environment")
    plain = train(script, backend, folder)
    profiled = train(script, backend, folder, "-m", "sm_profiler", "run")
    if script in RACING:
        assert (profiled["steps"], profiled["losses"][0]) == (plain["steps"], plain["losses"][0])
    else:
        assert profiled == plain
    (profile,) = (folder / "sm-profiler").iterdir()
    counted = Counter()
    for row in events(profile):
        if row["phase"].startswith("Step:"):
            counted[row["phase"].partition(".")[2]] += row["args"].get("batches", 1)
    assert dict(counted) == plain["steps"]
    shown = subprocess.run(
        [sys.executable, "-m", "sm_profiler", "report", profile, "--out", folder / "report"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr[-3000:]
    assert json.loads((folder / "report" / "report.json").read_text())["verdict"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("script", "backend"), FAST)
def test_a_strangers_script_is_profiled_unchanged(script, backend, tmp_path):
    check(script, backend, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(2000)
@pytest.mark.parametrize(("script", "backend"), [cell for cell in CELLS if cell not in FAST])
def test_strangers_scripts_on_all_backends(script, backend, tmp_path):
    check(script, backend, tmp_path)
