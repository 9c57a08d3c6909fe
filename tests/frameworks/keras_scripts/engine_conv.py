"""Classify time series of engine noise with a convnet, as callbacks stop and save it."""

import json
import pathlib
import tempfile
import time

import keras
import numpy as np

keras.utils.set_random_seed(3)

rng = np.random.default_rng(4)
length, batch_size = 200, 32
labels = rng.integers(0, 2, 1600)
phase = rng.uniform(0, 6, (1600, 1))
series = np.sin(np.arange(length) / np.where(labels, 5, 7)[:, None] + phase) + rng.normal(0, 0.8, (1600, length))
x_train, y_train = series.astype("float32")[..., None], labels


def make_model():
    """Return three blocks of convolutions."""
    inputs = keras.layers.Input(x_train.shape[1:])
    hidden = inputs
    for _ in range(3):
        hidden = keras.layers.Conv1D(filters=24, kernel_size=3, padding="same")(hidden)
        hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.ReLU()(hidden)
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.models.Model(inputs, keras.layers.Dense(2, activation="softmax")(pooled))


class ScalarLog(keras.callbacks.Callback):
    """Appends each epoch's metrics to a file, as a dashboard reads them."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        with self.path.open("a") as file:
            file.write(json.dumps({"epoch": epoch, "seconds": time.perf_counter() - self.began, **logs}) + "\n")


folder = pathlib.Path(tempfile.mkdtemp())
callbacks = [
    keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True, monitor="val_loss"),
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_lr=0.0001),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, verbose=1),
    ScalarLog(folder / "scalars.jsonl"),
]
model = make_model()
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
history = model.fit(
    x_train, y_train, batch_size=batch_size, epochs=8, callbacks=callbacks, validation_split=0.2, verbose=2
)

best = keras.models.load_model(folder / "best.keras")
test_loss, test_acc = best.evaluate(x_train[:320], y_train[:320], verbose=0)
print("Test accuracy", test_acc)

epochs = len(history.epoch)
steps = {"TRAIN": epochs * 40, "EVAL": epochs * 10 + 10}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *history.history["val_loss"], test_loss]}))
