"""Fine-tune a pretrained convnet: first the new top, then all of it with a low learning rate."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(44)
rng = np.random.default_rng(44)

labels = rng.integers(0, 2, 960)
images = rng.uniform(0, 255, (960, 32, 32, 3)).astype("float32")
images[labels == 1, 8:24, 8:24, 0] += 60


def pretrained():
    """Return a network whose weights would be downloaded."""
    inputs = keras.Input((32, 32, 3))
    hidden = inputs
    for filters in (16, 32):
        hidden = layers.Conv2D(filters, 3, padding="same", use_bias=False)(hidden)
        hidden = layers.BatchNormalization()(hidden)
        hidden = layers.Activation("relu")(hidden)
        hidden = layers.MaxPooling2D(2)(hidden)
    return keras.Model(inputs, hidden, name="base")


base_model = pretrained()
base_model.trainable = False

inputs = keras.Input(shape=(32, 32, 3))
x = layers.RandomFlip("horizontal", seed=1)(inputs)
x = layers.Rescaling(1 / 127.5, offset=-1)(x)
x = base_model(x, training=False)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(1)(layers.Dropout(0.2)(x))
model = keras.Model(inputs, outputs)
model.summary(show_trainable=True)

loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(), loss=loss, metrics=[keras.metrics.BinaryAccuracy()])
data = {"validation_data": (images[768:], labels[768:]), "batch_size": 32, "verbose": 2}
top = model.fit(images[:768], labels[:768], epochs=2, **data)
first = int(model.optimizer.iterations)

base_model.trainable = True
model.compile(optimizer=keras.optimizers.Adam(1e-5), loss=loss, metrics=[keras.metrics.BinaryAccuracy()])
whole = model.fit(images[:768], labels[:768], epochs=3, **data)
score = model.evaluate(images[768:], labels[768:], verbose=0)

steps = {"TRAIN": first + int(model.optimizer.iterations), "EVAL": 5 * 6 + 6}
print(json.dumps({"steps": steps, "losses": [*top.history["loss"], *whole.history["val_loss"], *score]}))
