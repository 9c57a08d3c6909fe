"""The fixed cost of small steps on TensorFlow: counted, calibrated, and named with its repair."""

import json
import os
import subprocess

import pytest

from sm_profiler.source import open_source
from tests.support.frameworks import PYTHON, QUIET, ROOT

SCRIPT = """
import json, sys
import keras, numpy as np, tensorflow as tf

keras.utils.set_random_seed(1)
layers = [keras.layers.Input((8,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
model, optimizer = keras.Sequential(layers), keras.optimizers.Adam(0.01)
rows = np.random.default_rng(0).random((600, 8), np.float32)

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss

class Saving(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if sys.argv[2:]:
            keras.ops.sum(keras.ops.ones(3))
            self.model.predict_on_batch(rows[:10])
            self.model.save_weights(f"{sys.argv[2]}/a.weights.h5")

if sys.argv[1] == "fit":
    model.compile(optimizer, "mse", jit_compile=False)
    losses = model.fit(rows, rows[:, :1], batch_size=10, verbose=0, callbacks=[Saving()]).history["loss"]
else:
    run = tf.function(step) if sys.argv[1] == "function" else step
    losses = [float(run(x)) for x in tf.data.Dataset.from_tensor_slices(rows).batch(10)]
print(json.dumps(losses))
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing")


def train(kind, folder=None, *arguments):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")} | QUIET
    variables |= {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)}
    if folder is not None:
        parameters = {"ProfilingParameters": {"LocalPath": str(folder)}}
        variables |= {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(parameters)}
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, kind, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["eager", "function", "fit"])
def test_operators_are_counted_and_results_stay(kind, tmp_path):
    assert train(kind, tmp_path) == train(kind)
    events = open_source(str(tmp_path)).events()
    found = events[events.phase.mask("sm_profiler/operators")]
    (args,) = (json.loads(found.args.values[code]) for code in found.args.codes)
    assert 50 < args["operators"] < 1000
    assert args["fixed_us"] > 0
    assert args["step_us"] > 0
    assert args.get("eager", False) is (kind == "eager")


@pytest.mark.long
def test_operators_of_callbacks_and_saves_are_not_the_steps(tmp_path):
    counts = []
    for name, arguments in (("plain", ()), ("saving", (str(tmp_path),))):
        train("fit", tmp_path / name, *arguments)
        events = open_source(str(tmp_path / name)).events()
        found = events[events.phase.mask("sm_profiler/operators")]
        counts += [json.loads(found.args.values[code])["operators"] for code in found.args.codes]
    assert len(counts) == 2
    assert counts[0] == counts[1]
