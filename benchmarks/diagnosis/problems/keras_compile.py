"""Compiling a deep network takes longer than the few steps of the training."""

from bench import Run
from tf_parts import batches_of, keras, network

run = Run(steps=60, width=32, batch=16, layers=100, jit=1, backend=0, lasts=0.0)
model, _ = network(run.width, depth=2 if run.repaired else run.layers)
model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=bool(run.jit))
with run.training():
    model.fit(batches_of(run).prefetch(2), verbose=0)  # LOOP
run.close()
