"""Which tradition is a quilt from? Patches of cloth, noise on the fly, a small residual network; Keras on JAX."""

import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

SIDE, TRADITIONS = 40, 12


def quilts(n, seed):
    """A tradition is a block of 5x5 patches with three cloths, repeated and printed on."""
    rng = np.random.default_rng(seed)
    design = np.random.default_rng(0)
    blocks = design.integers(0, 3, (TRADITIONS, 5, 5))
    cloths = design.uniform(0, 1, (TRADITIONS, 3, 3))
    y = rng.integers(0, TRADITIONS, n)
    x = np.stack([np.kron(np.tile(cloths[k][blocks[k]], (2, 2, 1)), np.ones((SIDE // 10, SIDE // 10, 1))) for k in y])
    return (x + rng.normal(0, 0.35, x.shape)).astype("float32"), y.astype("int32")


def residual(x, width):
    y = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(y))
    if x.shape[-1] != width:
        x = layers.Conv2D(width, 1)(x)
    return layers.Activation("relu")(layers.Add()([x, y]))


def build():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.GaussianNoise(0.2)(inputs)
    for width in (16, 32, 48):
        x = layers.MaxPooling2D(2)(residual(x, width))
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(TRADITIONS)(x))


keras.utils.set_random_seed(117)
x, y = quilts(1280, 1)
held_out = quilts(200, 2)
model = build()
epochs, batch = 3, 32
schedule = keras.optimizers.schedules.CosineDecay(0.0, epochs * len(x) // batch, warmup_target=2e-3, warmup_steps=20)
model.compile(
    optimizer=keras.optimizers.AdamW(schedule, weight_decay=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=True,
)
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)
start = time.time()
history = model.fit(x, y, batch_size=batch, epochs=epochs, validation_data=held_out, callbacks=[stop], verbose=2)
print(f"training took {time.time() - start:.2f} s, accuracy {max(history.history['val_accuracy']):.3f}")
