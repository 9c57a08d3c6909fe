"""Keras 3 on its three backends: what the hook records is what Keras itself counts, and it changes nothing."""

import json
import os
import subprocess
from collections import Counter
from itertools import pairwise

import pytest

from tests.support.frameworks import BACKENDS, ENVIRONMENT, HERE, INSTALLED, PYTHON, QUIET
from tests.support.profiles import events

OLD = ENVIRONMENT == "frameworks-old"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing: make {PYTHON.parents[1]}.done")


def run(backend, *loops, folder=None, windows=(), script="keras_loops.py"):
    """Train; return what the script printed, one object a loop."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}
    environment |= QUIET | {"KERAS_BACKEND": backend, "SM_CONTAINER_ROOT": "/"}
    if folder is not None:
        parameters = {"LocalPath": str(folder), **{name: json.dumps(window) for name, window in dict(windows).items()}}
        environment |= {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps({"ProfilingParameters": parameters})}
    done = subprocess.run(
        [PYTHON, HERE / script, *loops], capture_output=True, text=True, check=False, timeout=450, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [
        line for line in done.stderr.splitlines() if "sm-profiler" in line and "the profile stays in" not in line
    ]
    assert not printed or script == "keras_broken.py"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def counted(rows, loop):
    """Return the batches of each mode during one loop of the script."""
    found = Counter()
    for row in rows:
        if row["phase"].startswith("Step:") and loop["began"] <= row["start"] <= loop["ended"]:
            found[row["phase"].partition(".")[2]] += row["args"].get("batches", 1)
    return dict(found)


FAST = {
    "tensorflow": ("fit", "several", "on_batch", "dataset-threads", "raises"),
    "jax": ("fit", "several", "unknown", "on_batch", "dataset", "raises"),
    "torch": ("fit", "layers", "on_batch", "dataset", "torch-loader", "raises"),
}
MORE = {
    "tensorflow": ("fit-jit", "fit-plain", "eager", "own", "dataset-processes", "torch-loader", "tf-data", "unknown"),
    "jax": ("fit-plain", "own", "dataset-threads", "torch-loader", "tf-data"),
    "torch": ("own", "dataset-threads", "dataset-processes", "tf-data", "eager", "unknown"),
}
WINDOW = {"DataloaderProfilingConfig": {"StartStep": 0, "NumSteps": 10_000, "MetricsRegex": ".*"}}


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_that_is_broken_at_every_call_changes_nothing(backend, tmp_path):
    loops = FAST[backend][:2]
    plain = run(backend, *loops)
    broken = run(backend, *loops, folder=tmp_path, script="keras_broken.py")
    same = ("losses", "weights", "iterations")
    assert [[one[key] for key in same] for one in broken] == [[one[key] for key in same] for one in plain]


@pytest.mark.long
@pytest.mark.timeout(1500)  # torch.compile takes minutes on a busy machine
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_equal_with_jit_on_and_off_and_the_hook_off_on_and_broken(backend, tmp_path):
    same, loops = ("losses", "weights", "iterations"), ("fit-jit", "fit-plain")
    plain = run(backend, *loops)
    profiled = run(backend, *loops, folder=tmp_path / "on")
    broken = run(backend, *loops, folder=tmp_path / "broken", script="keras_broken.py")
    for before, on, raising in zip(plain, profiled, broken, strict=True):
        expected = {key: before[key] for key in same}
        assert {key: on[key] for key in same} == expected, before["loop"]
        assert {key: raising[key] for key in same} == expected, before["loop"]
        assert counted(events(tmp_path / "on"), on) == on["expected"]


def check(backend, loops, folder):
    plain = run(backend, *loops)
    profiled = run(backend, *loops, folder=folder, windows=WINDOW)
    rows = events(folder)
    for before, after in zip(plain, profiled, strict=True):
        same = ("losses", "weights", "iterations")
        assert {key: after[key] for key in same} == {key: before[key] for key in same}, after["loop"]
        assert counted(rows, after) == after["expected"], after["loop"]
        # TensorFlow's optimizer also counts the run that found no batch, if an epoch's length is unknown
        empty = 3 if backend == "tensorflow" and after["loop"] == "unknown" else 0
        assert after["expected"]["TRAIN"] == after["iterations"] - empty
    return rows, {one["loop"]: one for one in profiled}


@pytest.mark.first(1)
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_those_that_keras_counts_and_results_do_not_change(backend, tmp_path):
    rows, _ = check(backend, FAST[backend], tmp_path)
    epochs = [row["name"] for row in rows if row["phase"] == "sm_profiler/epoch"]
    assert epochs[:2] == ["epoch 0", "epoch 1"]
    slow = [row for row in rows if row["name"] == "Slow.on_epoch_end"]
    if any(loop.startswith("dataset") for loop in FAST[backend]):
        assert len(slow) == 2
        assert all(row["dur"] >= 50_000 and row["args"]["file"].endswith("keras_loops.py") for row in slow)
        kinds = {row["args"].get("kind"): row["args"] for row in rows if row["phase"] == "sm_profiler/input"}
        assert kinds["PyDataset"]["num_workers"] == (2 if "dataset-threads" in FAST[backend] else 0)
        assert kinds["PyDataset"]["function"] == "__getitem__"
        assert [row for row in rows if row["phase"] == "DataLoaderWorkerFetch"]
    if backend == "torch":
        optimizers = [row for row in rows if row["phase"] == "Optimizer"]
        assert {row["name"] for row in optimizers} == {"Adam"}
    else:
        assert [row for row in rows if row["phase"] == "sm_profiler/compiled_step"]


@pytest.mark.long
def test_steps_between_those_whose_phases_are_recorded(tmp_path):
    loops = ("fit", "unknown", "several", "on_batch", "eager", "tf-data", "raises", "fit-plain")
    plain = run("tensorflow", *loops)
    *rested, end = run("tensorflow", *loops, folder=tmp_path, script="keras_rests.py")
    rows = events(tmp_path)
    same = ("losses", "weights", "iterations")
    for before, loop in zip(plain, rested, strict=True):
        assert [loop[key] for key in same] == [before[key] for key in same]
        assert counted(rows, loop) == loop["expected"], loop["loop"]
    steps = sorted(
        (row["start"], row["start"] + row["dur"] / 1e6) for row in rows if row["phase"] == "Step:ModeKeys.TRAIN"
    )
    assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(steps))
    assert end["wrapped"] == ["on_train_batch_end"]  # of the list's methods that Keras calls with each batch
    assert 60 < end["rested"] < sum(loop["expected"].get("TRAIN", 0) for loop in rested)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_ways_to_train(backend, tmp_path):
    check(backend, [loop for loop in MORE[backend] if INSTALLED or loop != "torch-loader"], tmp_path)


@pytest.mark.long
def test_what_still_computes_at_the_end_of_an_epoch_is_recorded_as_waiting(tmp_path):
    rows, _ = check("jax", ["wide"], tmp_path)
    steps, waits = (
        [(one["start"], one["start"] + one["dur"] / 1e6) for one in rows if one["phase"] == phase]
        for phase in ("Step:ModeKeys.TRAIN", "sm_profiler/results")
    )
    for epoch in (row for row in rows if row["phase"] == "sm_profiler/epoch"):
        until = epoch["start"] + epoch["dur"] / 1e6
        since = max(end for _, end in steps if end <= until)
        waited = sum(max(min(end, until) - max(start, since), 0) for start, end in waits)
        assert waited >= (until - since) / 2 or until - since < 0.02


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_on_steps_of_keras(backend, tmp_path):
    windows = {
        "DetailedProfilingConfig": {"StartStep": 5, "NumSteps": 4},
        "PythonProfilingConfig": {"StartStep": 12, "NumSteps": 2, "ProfilerName": "cprofile"},
    }
    run(backend, "fit", folder=tmp_path, windows=windows)
    framework = "pytorch" if backend == "torch" else backend
    assert list(tmp_path.glob(f"framework/{framework}/detailed_profiling/*/000000005/*"))
    assert list(tmp_path.glob("framework/keras/cprofile/*/*-stepstart-*_*/python_stats"))
    if backend == "jax" and OLD:
        return  # JAX 0.7 records no operators on a CPU
    operators = [row for row in events(tmp_path) if row["phase"] == "cpu_functions"]
    numbers = {int(row["args"]["step_num"]) for row in operators if "step_num" in row["args"]}
    if backend == "jax":  # computes while the host is steps ahead, the more the busier the machine is
        assert numbers & {5, 6, 7, 8}
    else:
        assert numbers >= {5, 6, 7, 8}


@pytest.mark.long
def test_a_distribution_over_two_devices_counts_each_step_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    check("jax", ("data-parallel", "model-parallel"), tmp_path)


@pytest.mark.long
def test_two_replicas(tmp_path):
    check("tensorflow", ("mirrored",), tmp_path)
