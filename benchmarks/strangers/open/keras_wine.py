"""Quality of a wine, from eleven numbers: Keras with TensorFlow."""

import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
from keras import layers

BATCH = 256 if os.environ.get("REPAIRED") == "1" else 4
rng = np.random.default_rng(11)
x = rng.normal(size=(12_000, 11)).astype("float32")
y = (x[:, 0] * x[:, 1] - x[:, 2] + 0.3 * rng.normal(size=len(x)) > 0).astype("float32")

keras.utils.set_random_seed(2)
model = keras.Sequential([
    keras.Input((11,)),
    layers.Dense(48, activation="relu"),
    layers.Dense(48, activation="relu"),
    layers.Dense(1, activation="sigmoid"),
])
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy", metrics=["accuracy"])
start = time.time()
history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=2)
print(f"training took {time.time() - start:.2f} s, accuracy {history.history['accuracy'][-1]:.3f}")
