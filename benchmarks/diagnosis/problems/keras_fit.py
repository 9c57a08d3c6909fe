"""Keras's fit with one planted problem: a slow callback, much evaluation, checkpoints, or a slow dataset."""

import tempfile
import time
from pathlib import Path

from bench import Run
from tf_parts import batches_of, jit, keras, network, ready, rows

NOTHING, CALLBACK, SAVING, EVALUATION, DATASET = range(5)  # problems
run = Run(steps=150, width=512, batch=128, share=0.5, problem=0, every=20, runs=1, jit=0, backend=0)
pause = run.pause() if run.problem else 0.0
folder = Path(tempfile.mkdtemp())


class Metrics(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with run.spends("callback"):
            time.sleep(pause * run.runs)  # GUILTY: callback


class Snapshots(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch % run.every == run.every - 1:
            with run.spends("saving"):
                began = time.perf_counter()
                while time.perf_counter() - began < pause * run.every:
                    self.model.save_weights(folder / "model.weights.h5")  # GUILTY: saving


class Rows(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.x, self.y = rows(run.batch)

    def __len__(self):
        return run.steps

    def __getitem__(self, index):
        if pause:
            time.sleep(pause + run.usual())  # GUILTY: dataset
        return self.x, self.y


model, _ = network(run.width)
model.compile(
    keras.optimizers.SGD(0.001), "mse", jit_compile=jit(run.jit), steps_per_execution=run.runs, run_eagerly=False
)
callbacks = ready(run, model)
if pause:
    callbacks += {CALLBACK: [Metrics()], SAVING: [Snapshots()]}.get(run.problem, [])
more = {}
if pause and run.problem == EVALUATION:
    more = {"validation_data": batches_of(run, int(run.steps * 2 * run.share / (1 - run.share)))}
data = Rows() if run.problem == DATASET else batches_of(run).prefetch(2)
with run.training():
    model.fit(data, epochs=1, verbose=0, callbacks=callbacks, **more)  # LOOP
run.close()
