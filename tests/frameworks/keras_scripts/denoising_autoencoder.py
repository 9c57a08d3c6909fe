"""Remove noise from images with a convolutional autoencoder."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)


def preprocess(count):
    """Return stripes and the same with noise."""
    rows = np.sin(np.arange(28)[None, :] / rng.uniform(1, 4, (count, 1)))
    clean = np.clip(np.repeat(rows[:, :, None], 28, axis=2), 0, 1).astype("float32")[..., None]
    return clean, np.clip(clean + 0.4 * rng.normal(size=clean.shape), 0, 1).astype("float32")


train_data, noisy_train_data = preprocess(1280)
test_data, noisy_test_data = preprocess(320)

inputs = layers.Input(shape=(28, 28, 1))
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(x)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
outputs = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, outputs)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

first = autoencoder.fit(
    x=train_data, y=train_data, epochs=2, batch_size=64, validation_data=(test_data, test_data), verbose=2
)
second = autoencoder.fit(
    x=noisy_train_data, y=train_data, epochs=2, batch_size=64, validation_data=(noisy_test_data, test_data), verbose=2
)
predictions = autoencoder.predict(noisy_test_data, verbose=0)
print(predictions.shape)

steps = {"TRAIN": int(autoencoder.optimizer.iterations), "EVAL": 4 * 5, "PREDICT": 10}
print(json.dumps({"steps": steps, "losses": [*first.history["loss"], *second.history["val_loss"]]}))
