"""TensorFlow's custom loops: the hook's steps and waits agree with the scripts' own counts, and results are the same."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sm_profiler.formats.recorded import Callback
from sm_profiler.report import Class, build_report
from sm_profiler.source import open_source
from tests.support.frameworks import PYTHON

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("tensorflow_loops.py")
LOOPS = [
    "eager", "function", "without_loader", "epoch_of_dataset", "epoch_of_iterator", "mirrored", "retraced",
    "compiled_by_xla", "compiled_in_graphs",
]  # fmt: skip

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs the environment `frameworks` (make frameworks)")


def start(folder: Path, *names: str, on: bool = True) -> subprocess.Popen:
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    if on:
        config = {"ProfilingParameters": {"LocalPath": str(folder)}}
        variables |= {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(config)}
    folder.mkdir()
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [PYTHON, SCRIPT, *names], env=os.environ | variables, stdout=subprocess.PIPE, stderr=log, text=True
        )


def ended(process: subprocess.Popen, folder: Path) -> dict[str, dict]:
    """Return what each loop printed."""
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, (folder / "log").read_text()[-3000:]
    return {line["loop"]: line for line in map(json.loads, text.splitlines())}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The loops with the hook off and on."""
    root = tmp_path_factory.mktemp("tensorflow")
    started = {
        "off": start(root / "off", *LOOPS, on=False),
        "on": start(root / "on", *LOOPS),
    }
    results = {name: ended(process, root / name) for name, process in started.items()}
    return results, open_source(str(root / "on")).events(), root


def inside(events, line, phase):
    """Return the events of a phase while a loop ran."""
    found = events[events.phase.mask(lambda text: text.startswith(phase))]
    return found[(found.start_us >= line["began"] * 1e6) & (found.start_us <= line["ended"] * 1e6)]


@pytest.mark.parametrize("loop", LOOPS)
def test_counts_the_steps_that_the_script_counts(runs, loop):
    results, events, _ = runs
    line = results["on"][loop]
    steps = Counter(name.rpartition(".")[2] for name in inside(events, line, "Step:").name.decode())
    assert steps == line["steps"]


@pytest.mark.parametrize("loop", ["epoch_of_iterator", "eager", "function"])
def test_waits_agree_with_the_diary(runs, loop):
    results, events, _ = runs
    line = results["on"][loop]
    waits = inside(events, line, "DataLoaderWait")
    assert len(waits) == sum(line["steps"].values())
    assert waits.duration_us.sum() / 1e6 >= 0.95 * line["held_up"]


def test_results_are_identical_with_the_hook(runs):
    results, _, _ = runs
    for loop in LOOPS:
        assert results["on"][loop]["losses"] == results["off"][loop]["losses"], loop


def test_eager_steps_have_phases(runs):
    results, events, _ = runs
    for phase in ("Forward", "Backward", "Optimizer"):
        found = inside(events, results["on"]["eager"], phase)
        assert len(found) >= 40, phase


def test_traces_are_recorded_with_their_cause(runs):
    results, events, _ = runs
    found = inside(events, results["on"]["retraced"], "sm_profiler/compile")
    found = found[found.phase.mask("sm_profiler/compile") & found.name.mask("scaled")]
    about = [json.loads(text) for text in found.args.decode()]
    reasons = [one["reason"] for one in about if one["again"]]
    assert sum("Python value: factor" in reason for reason in reasons) >= 5
    assert sum("shape of x" in reason for reason in reasons) >= 3
    assert all(one["file"].endswith("tensorflow_loops.py") for one in about)


def test_xla_compiles_for_each_shape(runs):
    results, events, _ = runs
    found = inside(events, results["on"]["compiled_by_xla"], "sm_profiler/compile")
    found = found[found.phase.mask("sm_profiler/compile") & found.name.mask("compiled")]
    about = [json.loads(text) for text in found.args.decode()]
    reasons = [one["reason"] for one in about if one["compiler"] == "XLA"]
    assert reasons == [f"shape is ({rows}, 20), was ({rows - 1}, 20)" for rows in (3, 4, 5)]
    assert sum(one["compiler"] == "tf.function" for one in about) == 2
    assert all(one["file"].endswith("tensorflow_loops.py") for one in about)


def test_xla_compiles_for_each_shape_that_a_graph_fetches(runs):
    results, events, _ = runs
    found = inside(events, results["on"]["compiled_in_graphs"], "sm_profiler/compile")
    about = [json.loads(text) for text in found[found.name.mask("one_step_on_data")].args.decode()]
    assert [one["reason"] for one in about] == [f"shape is ({rows}, 20), was ({rows - 1}, 20)" for rows in (2, 3, 4, 5)]
    assert all(one["compiler"] == "XLA" and one["file"].endswith("tensorflow_loops.py") for one in about)


@pytest.mark.long
def test_a_broken_hook_changes_no_result_and_logs_one_warning(runs, tmp_path):
    results, _, _ = runs
    folder = tmp_path / "broken"
    broken = ended(start(folder, "broken", *LOOPS), folder)
    for loop in LOOPS:
        assert broken[loop]["losses"] == results["off"][loop]["losses"], loop
    assert (folder / "log").read_text().count("switched off, training continues") == 1


ON_THE_HOST = """
import numpy as np, time, tensorflow as tf
v = tf.Variable(tf.ones([8, 8]))
optimizer = tf.keras.optimizers.SGD(0.01)

def on_host(x):
    time.sleep(0.003)
    return x * 2

def parsed(x):
    time.sleep(0.001)
    return np.float32(x)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        y = tf.ensure_shape(tf.numpy_function(on_host, [x], tf.float32), [8])
        z = tf.py_function(func=lambda a: a + 1, inp=[x], Tout=tf.float32)
        loss = tf.reduce_sum(tf.square(tf.linalg.matvec(v, x) - y)) + tf.reduce_sum(z)
    optimizer.apply_gradients(zip(tape.gradient(loss, [v]), [v]))
    return loss

data = tf.data.Dataset.range(480).map(lambda i: tf.numpy_function(parsed, [i], tf.float32))
for x in data.batch(8, drop_remainder=True).map(lambda x: tf.ensure_shape(x, [8])):
    loss = step(x / 1e6)
print(float(loss))
"""


def test_functions_on_the_host_within_steps_are_timed_and_those_of_pipelines_are_not(tmp_path):
    """A distance computed in Python for each step was a healthy training."""
    script = tmp_path / "train.py"
    script.write_text(ON_THE_HOST)
    results = {}
    for name in ("off", "on"):
        variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
        if name == "on":
            config = {"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}}
            variables |= {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(config)}
        command = [PYTHON, str(script)]
        found = subprocess.run(
            command, env=os.environ | variables, check=False, capture_output=True, text=True, timeout=240
        )
        assert found.returncode == 0, found.stderr[-3000:]
        results[name] = found.stdout
    assert results["on"] == results["off"]
    report = build_report(open_source(str(tmp_path / "profile")))
    calls = {one.name for one in report.metrics.recorded(Callback).longest}
    assert "on_host.numpy_function" in calls
    assert not {name for name in calls if name.startswith("parsed")}
    assert (report.verdict.kind, report.verdict.main.where[0].function) == (Class.HOST_BOUND, "on_host")
