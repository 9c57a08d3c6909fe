"""smdebug 1.0.34 reads our trace files, and scripts written for its hooks run as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.frameworks import PYTHON as FRAMEWORKS
from tests.support.frameworks import QUIET
from tests.support.hook import config, environment, steps, train
from tests.support.profiles import events

PYTHON = Path(__file__).parents[2] / ".envs" / "smdebug" / "bin" / "python"
READ = """
import json, sys
from collections import Counter
from smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
reader = LocalAlgorithmMetricsReader(sys.argv[1])
events = reader.get_events(0, 4102444800000000)
print(json.dumps({"phases": Counter(event.event_phase for event in events),
                  "first": min(event.start_time for event in events)}))
"""


@pytest.mark.smdebug
def test_smdebugs_reader_reads_our_files(tmp_path):
    if not PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{PYTHON} is missing")
        pytest.skip("no environment with smdebug 1.0.34")
    assert (
        train(profile=config(tmp_path, DataloaderProfilingConfig='{"StartStep": 2, "NumSteps": 3, }')).returncode == 0
    )
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", READ, tmp_path], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["phases"]["Step:ModeKeys.TRAIN"] == 10
    assert said["phases"]["Forward"] == 10
    assert said["phases"]["DataLoaderIter"] == 3
    assert 1_600_000_000_000_000 < said["first"] < 4_102_444_800_000_000


HOOKS = Path(__file__).parent.parent / "data/analysis/smdebug-1.0.34-hooks.json"
CHECK = """
import importlib, inspect, json, sys
import sm_profiler
sm_profiler.install_as_smdebug()
module = importlib.import_module(sys.argv[1])
differing = []
for label, names in json.loads(open(sys.argv[2]).read())[sys.argv[1]].items():
    found = module
    for part in label.split("."):
        found = getattr(found, part, None)
    known = [] if found is None else [name for name in inspect.signature(found).parameters if name not in {"self", "cls"}]
    if found is None or known[: len(names)] != names:
        differing.append([label, known])
print(json.dumps(differing))
"""


def run(code, *arguments, python=sys.executable, **variables):
    done = subprocess.run(
        [python, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(**QUIET, **variables),
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("module", ["smdebug.pytorch", "smdebug.tensorflow"])
def test_hooks_take_smdebugs_arguments_in_smdebugs_order(module):
    python = sys.executable if module == "smdebug.pytorch" else FRAMEWORKS
    if not Path(python).exists():
        pytest.skip("needs the environment `frameworks` (make frameworks)")
    assert json.loads(run(CHECK, module, str(HOOKS), python=python).stdout.splitlines()[-1]) == []


TORCH_SCRIPT = """
import sm_profiler
sm_profiler.install_as_smdebug()
import smdebug.pytorch as smd
import torch
from smdebug.core.collection import CollectionKeys
from smdebug.pytorch import Hook, ReductionConfig, SaveConfig, SaveConfigMode, get_hook, modes

hook = get_hook(create_if_not_exists=True)
assert hook is Hook.create_from_json_file() is get_hook("/opt/ml/input/config/debughookconfig.json", True)
model, loss = torch.nn.Linear(4, 1), torch.nn.MSELoss()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(40, 4), torch.rand(40, 1)), batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
hook.register_hook(model)
hook.register_module(model)
hook.register_loss(loss)
hook.get_collection("custom").include("relu")
hook.get_collections()[CollectionKeys.WEIGHTS].save_config = SaveConfig(
    mode_save_configs={modes.TRAIN: SaveConfigMode(save_interval=2)})
hook.add_collection(smd.Collection("mine", include_regex=["fc"], reduction_config=ReductionConfig(norms=["l1"])))
assert hook.count_parameters(model) == 5
hook.set_mode(modes.TRAIN)
for number, (x, y) in enumerate(data):
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    optimizer.step()
    hook.save_scalar("loss", value.item(), sm_metric=True)
    hook.save_tensor("prediction", x, collections_to_write="custom")
    hook.record_tensor_value("x", tensor_value=x)
import time
hook.record_trace_events(time.time() - 1, training_phase="mine", op_name="work", duration=0.5)
hook.close()
other = Hook(out_dir="/nowhere", save_config=SaveConfig(save_interval=5), include_collections=["weights"], save_all=True)
smd.set_hook(other)
assert get_hook() is other
smd.del_hook()
"""
KERAS_SCRIPT = """
import sm_profiler
sm_profiler.install_as_smdebug()
import numpy as np
import smdebug.tensorflow as smd
import tensorflow as tf

hook = smd.KerasHook(out_dir="/nowhere", save_config=smd.SaveConfig(save_interval=3), include_collections=["losses"])
smd.set_hook(hook)
assert smd.get_hook() is hook is smd.get_hook("keras", create_if_not_exists=True) is smd.KerasHook.create_from_json_file()
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
optimizer = hook.wrap_optimizer(tf.keras.optimizers.SGD())
model.compile(optimizer, "mse")
x, y = np.zeros((32, 4), "f4"), np.zeros((32, 1), "f4")
hook.set_mode(smd.modes.TRAIN)
model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=[hook])
hook.save_scalar("loss", 1.0, sm_metric=True)
if {loop}:
    for number in range(5):
        with hook.profiler():
            with hook.wrap_tape(tf.GradientTape()) as tape:
                value = tf.reduce_mean(model(x[:4]) ** 2)
            gradients = tape.gradient(value, model.trainable_variables)
        hook.profiling_start_batch(smd.modes.EVAL)
        hook.profiling_end_batch(mode=smd.modes.EVAL)
    hook.save_tensor("loss", value, collections_to_write="losses")
with tf.Graph().as_default():
    one = tf.constant(1)
    with tf.compat.v1.train.MonitoredSession(hooks=[smd.SessionHook("/nowhere")]) as running:
        running.run(one)
smd.EstimatorHook.create_from_json_file()
hook.profiling_end()
hook.close()
"""


def test_a_script_for_smdebugs_hook_of_pytorch_runs_and_is_profiled(tmp_path):
    done = run(TORCH_SCRIPT, SM_PROFILER_AUTO="1", SM_PROFILER_CONFIG=config(tmp_path))
    assert len(steps(tmp_path)) == 10
    assert [event["name"] for event in events(tmp_path) if event["phase"] == "mine"] == ["work"]
    assert done.stderr.count("accepted and do nothing") == 1


def test_a_script_for_smdebugs_hook_runs_without_a_profile():
    assert "save_scalar" in run(TORCH_SCRIPT).stderr
    run(
        "import sm_profiler; sm_profiler.install_as_smdebug()\nimport smdebug.pytorch as smd\nassert smd.get_hook() is None"
    )


@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="needs the environment `frameworks` (make frameworks)")
@pytest.mark.parametrize("loop", [False, True])
def test_a_script_for_smdebugs_hook_of_keras_runs_and_is_profiled(tmp_path, loop):
    profile = {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": config(tmp_path)}
    run(KERAS_SCRIPT.format(loop=loop), python=FRAMEWORKS, **profile)
    assert len(steps(tmp_path)) == (13 if loop else 8)
