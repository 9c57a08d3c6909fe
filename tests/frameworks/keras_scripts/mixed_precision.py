"""Train with mixed precision, which multiplies the loss where the backend needs it."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(6)
keras.mixed_precision.set_global_policy("mixed_bfloat16")
rng = np.random.default_rng(6)
x, y = rng.random((4000, 100), np.float32), rng.integers(0, 10, 4000)

inputs = keras.Input(shape=(100,))
hidden = layers.Dense(512, activation="relu")(inputs)
hidden = layers.Dense(512, activation="relu")(hidden)
outputs = layers.Activation("softmax", dtype="float32")(layers.Dense(10)(hidden))
model = keras.Model(inputs, outputs)
model.compile(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.RMSprop(), metrics=["accuracy"])
history = model.fit(x, y, batch_size=100, epochs=4, validation_split=0.2, verbose=2)
scores = model.evaluate(x[:800], y[:800], batch_size=100, verbose=2)

steps = {"TRAIN": int(model.optimizer.iterations), "EVAL": 4 * 8 + 8}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *scores]}))
