"""Recognise handwritten digits with a small convnet of Keras, on any backend.

    KERAS_BACKEND=jax sm-profiler run examples/keras_digits.py
    sm-profiler report sm-profiler/keras_digits-*

Nothing in here is about the profiler. The last line is what Keras itself counted, to compare with the report.
"""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)

num_classes = 10
input_shape = (28, 28, 1)
batch_size = 64
epochs = 3


def load_digits(count, seed):
    """Draw blurred strokes instead of downloading MNIST."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, count)
    images = rng.normal(0, 0.1, (count, 28, 28)).astype("float32")
    for image, label in zip(images, labels, strict=True):
        row = 4 + 2 * label
        image[row : row + 3, 6 : 22 - label] += 1
    return np.expand_dims(np.clip(images, 0, 1), -1), labels


x_train, y_train = load_digits(3200, 1)
x_test, y_test = load_digits(640, 2)
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_split=0.1, verbose=2)
score = model.evaluate(x_test, y_test, batch_size=32, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])

steps = {"TRAIN": int(model.optimizer.iterations), "EVAL": epochs * 5 + 20}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *history.history["val_loss"], *score]}))
