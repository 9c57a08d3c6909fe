"""Real trainings where little is as usual: limits, locales, homes, and unusual models."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.formats.event_names import STEP_TRAIN
from sm_profiler.hook.pytorch.adapter import Recursion
from sm_profiler.source import open_source
from tests.support.hook import environment

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
{model}
optimizer = None
data = DataLoader(TensorDataset(torch.ones(40, 4), torch.ones(40, 1)), 2, num_workers={workers})
for _ in range({epochs}):
    for x, y in data:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PLAIN = "model = nn.Linear(4, 1)"
LAZY = "model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))"
DEEP = """
class Nested(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.Linear(4, 1)
    def forward(self, x):
        return self.inner(x)
model = Nested(200)
"""


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


HIDE_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")

CASES = {
    "few files": {"limit": few_files, "workers": 2},
    "locale C": {"environment": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}},
    "no home": {"environment": {"HOME": None, "XDG_CACHE_HOME": None}},
    "home that cannot be written": {"environment": {"HOME": "/proc/none"}},
    "lazy model": {"model": LAZY},
    "200 modules deep": {"model": DEEP},
    "64 loader workers": {"workers": 64, "epochs": 1},
    "no /proc": {"within": HIDE_PROC, "workers": 2},
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_training_is_profiled(tmp_path, case):
    given = {"model": PLAIN, "workers": 0, "environment": {}, "limit": None, "epochs": 2, "within": (), **CASES[case]}
    if given["within"] and subprocess.run([*given["within"], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not hide /proc")
    script = tmp_path / "train.py"
    text = TRAINING.format(model=given["model"], workers=given["workers"], epochs=given["epochs"])
    script.write_text(text, "utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **given["environment"]}
    environment = {name: value for name, value in environment.items() if value is not None}
    words = [*given["within"], str(Path(sys.executable).with_name("sm-profiler")), "run", str(script)]
    ran = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, preexec_fn=given["limit"], check=False,
        timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "switched off" not in ran.stderr
    (folder,) = (tmp_path / "sm-profiler").iterdir()
    source = open_source(folder, cache=False, progress=False)
    source.refresh()
    steps = sum(int(batch.events.phase.mask(STEP_TRAIN).sum()) for batch in source.batches())
    assert steps == 20 * given["epochs"], ran.stderr


def test_a_file_named_as_a_library_is_not_run_by_the_hook(tmp_path):
    (tmp_path / "attrs.py").write_text("import sys\nprint('usage: attrs.py FILE')\nsys.exit(2)\n", "utf-8")
    (tmp_path / "train.py").write_text("import torch\nprint('trained')\n", "utf-8")
    words = [str(Path(sys.executable).with_name("sm-profiler")), "run", "--no-monitor", "train.py"]
    ran = subprocess.run(
        words, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, "trained\n"), ran.stderr
    assert ran.stderr.count("attrs.py has the name of a library that the hook needs") == 1


def test_the_recursion_limit_is_restored():
    before, own = sys.getrecursionlimit(), Recursion()
    own.install()
    assert sys.getrecursionlimit() > before * 1.25
    own.remove()
    assert sys.getrecursionlimit() == before
    own.install()
    sys.setrecursionlimit(before + 7)  # the script's own choice
    own.remove()
    assert sys.getrecursionlimit() == before + 7
    sys.setrecursionlimit(before)


PATCHED = """
import torch._dynamo  # the optimizer would import it
def fail(*_, **__):
    raise RuntimeError("the script's own")
for place, names in {places}.items():
    module = __import__(place)
    for name in names:
        setattr(module, name, fail)
"""
TIME = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "sleep")
THREADING = ("Thread", "Lock", "Event", "Timer", "enumerate", "current_thread", "main_thread")


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "places",
    [
        {"threading": THREADING},
        {"time": TIME},
        {"json": ("dumps", "loads"), "builtins": ("open",), "os": ("open", "write")},
    ],
    ids=["threading", "time", "files"],
)
def test_functions_that_the_script_replaces(tmp_path, places):
    """They may fail in the hook, too: the training ends with its own result, and nothing is printed at its end."""
    script = tmp_path / "train.py"
    text = TRAINING.format(model=PLAIN, workers=0, epochs=1)
    imports, separator, rest = text.partition("torch.manual_seed(0)")
    script.write_text(f"{imports}{PATCHED.format(places=places)}{separator}{rest}print(loss.item())\n", "utf-8")
    profile = json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}})
    shown = []
    for config in ({}, {"SM_PROFILER_CONFIG": profile}):
        ran = subprocess.run(
            [sys.executable, "-m", "sm_profiler.hook.launch", script], env=environment(**config), capture_output=True,
            text=True, check=False, timeout=100,
        )  # fmt: skip
        assert "Traceback" not in ran.stderr
        shown.append((ran.returncode, ran.stdout))
    assert shown[0] == shown[1]
    assert shown[0][0] == 0
