"""Romanesque, Gothic, Baroque ...? Photos of cathedrals in one HDF5 file, squeeze and excitation, Keras."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import time

import h5py
import keras
import numpy as np
from keras import layers

STYLES, SIDE, COUNT = 7, 48, 1600


def towers(rng, style):
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    photo = np.empty((SIDE, SIDE, 3))
    photo[:] = [0.5, 0.6, 0.8]
    for k in range(2 + style % 3):
        left, width, height = rng.uniform(0, 0.8), rng.uniform(0.1, 0.3), rng.uniform(0.3, 0.8)
        inside = (x > left) & (x < left + width)
        top = 1 - height + (style / STYLES) * np.abs(x - left - width / 2)
        photo[inside & (y > top)] = [0.6, 0.5 - 0.04 * k, 0.4]
        window = inside & (np.sin((6 + 3 * style) * np.pi * y) > 0.6) & (y > top + 0.1)
        photo[window] = 0.15
    return np.clip(255 * (photo + 0.06 * rng.normal(size=photo.shape)), 0, 255).astype(np.uint8)


def write(path, rng):
    """The archive; it is read by others too, so it is compressed."""
    rows = 1 if os.environ.get("REPAIRED") == "1" else 128
    with h5py.File(path, "w") as file:
        photos = file.create_dataset(
            "photos", (COUNT, SIDE, SIDE, 3), "u1", chunks=(rows, SIDE, SIDE, 3), compression="gzip"
        )
        styles = rng.integers(0, STYLES, COUNT)
        for i in range(0, COUNT, 128):
            photos[i : i + 128] = np.stack([towers(rng, style) for style in styles[i : i + 128]])
        file["styles"] = styles


class Archive(keras.utils.PyDataset):
    def __init__(self, path, batch):
        super().__init__()
        self.file, self.batch = h5py.File(path), batch
        self.styles = self.file["styles"][:]
        self.rng = np.random.default_rng(1)
        self.order = self.rng.permutation(COUNT)

    def __len__(self):
        return COUNT // self.batch

    def __getitem__(self, number):
        rows = self.order[number * self.batch : (number + 1) * self.batch]
        photos = np.empty((len(rows), SIDE, SIDE, 3), np.float32)
        for place, row in enumerate(rows):
            photos[place] = self.file["photos"][row]
        flip = self.rng.random(len(rows)) < 0.5
        photos[flip] = photos[flip, :, ::-1]
        return photos / 255, self.styles[rows]

    def on_epoch_end(self):
        self.order = self.rng.permutation(COUNT)


def block(x, width):
    skip = layers.Conv2D(width, 1, strides=2)(x)
    x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.Activation("silu")(layers.BatchNormalization()(x))
    x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(width // 4, 1, activation="relu")(gate)
    gate = layers.Conv2D(width, 1, activation="sigmoid")(gate)
    return layers.Activation("silu")(layers.Add()([layers.Multiply()([x, gate]), skip]))


def main():
    keras.utils.set_random_seed(5)
    write("cathedrals.h5", np.random.default_rng(0))
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(24, 5, strides=2, padding="same", activation="silu")(inputs)
    for width in (32, 64, 96):
        x = block(x, width)
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(STYLES)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(2e-3), loss, metrics=["accuracy"])
    begin = time.time()
    history = model.fit(Archive("cathedrals.h5", 32), epochs=2, verbose=0)
    print("accuracy:", ", ".join(f"{value:.3f}" for value in history.history["accuracy"]))
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
