"""Keras's fit with steps that are too small to pay for what each costs."""

from bench import Run
from tf_parts import batches_of, jit, keras, network, ready

run = Run(steps=400, width=8, batch=4, jit=0, backend=0)
model, _ = network(run.width)
model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=jit(run.jit))
callbacks = ready(run, model)
with run.training():
    model.fit(batches_of(run).prefetch(2), verbose=0, callbacks=callbacks)  # LOOP
run.close()
