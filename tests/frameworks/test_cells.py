"""Cells of the table in docs/frameworks.md that need a job whose windows change: one training for each column."""

import json
import os
import subprocess

import pytest

from tests.support.frameworks import BACKENDS, HERE, PYTHON, QUIET
from tests.support.profiles import events

COLUMNS = [pytest.param((one, "keras"), id=f"keras-{one}") for one in BACKENDS if isinstance(one, str)]
COLUMNS += [
    pytest.param(("torch", "keras"), id="keras-torch", marks=BACKENDS[-1].marks),
    pytest.param(("tensorflow", "own"), id="tensorflow"),
    pytest.param(("jax", "own"), id="jax"),
]
WINDOWS = {
    "DataloaderProfilingConfig": {"StartStep": 0, "NumSteps": 10_000, "MetricsRegex": ".*GetNext"},
    "PythonProfilingConfig": {"StartStep": 4, "NumSteps": 2, "ProfilerName": "cprofile"},
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing: make {PYTHON.parents[1]}.done"),
]


@pytest.fixture(scope="module", params=COLUMNS)
def column(request, tmp_path_factory):
    """Return the backend, whether Keras's loop ran, the profile's folder, its events, and what the script noted."""
    backend, kind = request.param
    folder = tmp_path_factory.mktemp("cells")
    parameters = {name: json.dumps(window) for name, window in WINDOWS.items()} | {"LocalPath": str(folder / "profile")}
    (folder / "config.json").write_text(json.dumps({"ProfilingParameters": parameters}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}
    environment |= QUIET | {"KERAS_BACKEND": backend, "SM_PROFILER_AUTO": "1", "SM_CONTAINER_ROOT": "/"}
    environment["SM_PROFILER_CONFIG"] = str(folder / "config.json")
    done = subprocess.run(
        [PYTHON, HERE / "cells_loops.py", folder, kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "sm-profiler" not in done.stderr
    parts = json.loads(done.stdout.splitlines()[-1])
    return backend, kind == "keras", folder / "profile", events(folder / "profile"), parts


def of_framework(column):
    backend, is_keras, folder, *_ = column
    return folder / "framework" / ("keras" if is_keras else backend)


def during(rows, part, phase):
    return [one for one in rows if one["phase"] == phase and part["began"] <= one["start"] <= part["ended"]]


def test_each_part_has_its_steps(column):
    *_, rows, parts = column
    assert [len(during(rows, part, "Step:ModeKeys.TRAIN")) for part in parts] == [10, 10, 10]


def test_waits_are_those_of_a_loader_and_of_a_generator(column):
    *_, rows, parts = column
    for part in parts:
        steps, waits = (spans(during(rows, part, phase)) for phase in ("Step:ModeKeys.TRAIN", "DataLoaderWait"))
        first, last = min(steps)[0], max(steps)[0]
        loading = [
            (max(start, first), min(end, last)) for start, end in part["loading"] if start < last and end > first
        ]
        # What is loaded while the loop computes need not be waited for: on a busy machine, that may be all.
        idle = length(loading) - overlap(loading, steps)
        assert overlap(loading, waits) >= 0.7 * idle - 0.02
        assert length(waits) <= part["ended"] - part["began"]


def spans(rows):
    return [(one["start"], one["start"] + one["dur"] / 1e6) for one in rows]


def length(found):
    return sum(end - start for start, end in found)


def overlap(some, others):
    """Return the seconds in which both have a span; those of one kind do not overlap each other."""
    return sum(max(min(end, to) - max(start, since), 0.0) for start, end in some for since, to in others)


def test_a_python_window_lies_between_the_marks_of_steps(column):
    folder = of_framework(column)
    found = sorted(path.name.split("-stepstart-")[0] for path in folder.glob("cprofile/*/train-*-stepstart-*"))
    assert {"train-4", "train-5"} <= set(found)


def test_a_window_that_is_changed_while_the_job_runs_is_used(column):
    folder = of_framework(column)
    found = sorted(path.name.split("-stepstart-")[0] for path in folder.glob("pyinstrument/*/train-*-stepstart-*"))
    assert {"train-24", "train-25"} <= set(found)


def test_a_window_may_be_a_time_range(column):
    backend, _, folder, *_ = column
    name = "pytorch" if backend == "torch" else backend
    assert list(folder.glob(f"framework/{name}/detailed_profiling/*/*/*"))


def test_the_filter_of_metrics_chooses_what_is_recorded(column):
    *_, rows, _ = column
    assert [one for one in rows if one["phase"] == "DataLoaderIter"]
    assert not [one for one in rows if one["phase"] == "DataLoaderWorkerFetch"]


def test_phases_are_those_of_the_framework(column):
    backend, is_keras, _, rows, _ = column
    found = {one["phase"] for one in rows}
    if is_keras and backend == "torch":
        assert found >= {"Forward", "Backward(post-forward)", "Optimizer"}
    else:
        assert "sm_profiler/compiled_step" in found


def test_compilations_are_recorded_where_something_is_compiled(column):
    backend, _, _, rows, _ = column
    compilers = {one["args"]["compiler"] for one in rows if one["phase"] == "sm_profiler/compile"}
    assert compilers == {"tensorflow": {"tf.function"}, "jax": {"jax.jit"}, "torch": set()}[backend]


def test_epochs_and_the_input_are_those_of_keras(column):
    _, is_keras, _, rows, _ = column
    assert len([one for one in rows if one["phase"] == "sm_profiler/epoch"]) == (3 if is_keras else 0)
    kinds = {one["args"]["kind"] for one in rows if one["phase"] == "sm_profiler/input"}
    assert not is_keras or kinds == {"PyDataset", "generator"}


def test_a_checkpoint_has_its_size_and_line(column):
    backend, is_keras, _, rows, _ = column
    saves = [one for one in rows if one["phase"] == "sm_profiler/save"]
    assert bool(saves) is (is_keras or backend == "jax")  # numpy.savez
    for one in saves:
        if is_keras:  # numpy's is so short that it is only summed
            assert one["args"]["bytes"] > 1000
        assert one["args"]["file"].endswith("cells_loops.py")
