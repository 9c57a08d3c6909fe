"""Seashells of the beach, photographed with a phone: a folder of JPEGs, tf.data and a small separable network in Keras."""

import os
import pathlib
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from PIL import Image

SHELLS = ["cockle", "whelk", "scallop", "razor", "limpet", "periwinkle", "mussel", "cowrie"]
SCENE, PHOTO, SIDE = 256, 800, 48


def photograph(folder, each=32):
    rng = np.random.default_rng(5)
    y, x = np.mgrid[-1 : 1 : SCENE * 1j, -1 : 1 : SCENE * 1j].astype(np.float32)
    sand = rng.normal(170, 25, (SCENE, SCENE, 3)).astype(np.float32)
    for kind, name in enumerate(SHELLS):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            cx, cy, turn = *rng.uniform(-0.2, 0.2, 2), rng.uniform(0, 6.28)
            r, a = np.hypot(x - cx, (1 + 0.2 * kind) * (y - cy)), np.arctan2(y - cy, x - cx) + turn
            shell = r < 0.5 * (1 + 0.1 * np.cos(a * (kind + 1)))
            ribs = 40 * np.sin((4 + 3 * kind) * a) if kind % 2 else 40 * np.sin((12 + 4 * kind) * r)
            picture = np.where(shell[..., None], 150 + ribs[..., None] + rng.normal(0, 20, 3), np.roll(sand, i, 1))
            photo = Image.fromarray(picture.clip(0, 255).astype(np.uint8)).resize((PHOTO, PHOTO))
            photo.save(folder / name / f"{i:03d}.jpg", quality=92)


def load(path, kind):
    photo = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    photo = tf.image.resize(tf.cast(photo, tf.float32), (SIDE, SIDE), antialias=True)
    return photo / 255.0, kind


def flip(photo, kind):
    photo = tf.image.random_flip_left_right(tf.image.random_flip_up_down(photo))
    return tf.image.random_brightness(photo, 0.1), kind


def dataset(folder, batch):
    paths = sorted(str(p) for p in folder.glob("*/*.jpg"))
    kinds = [SHELLS.index(pathlib.Path(p).parent.name) for p in paths]
    data = tf.data.Dataset.from_tensor_slices((paths, kinds)).map(load)
    if os.environ.get("REPAIRED") == "1":
        data = data.cache()
    return data.shuffle(len(paths), seed=1).map(flip).batch(batch).prefetch(1)


def build(width=16):
    x = inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
    for factor in (2, 3, 4):
        x = layers.SeparableConv2D(factor * width, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.SeparableConv2D(factor * width, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(len(SHELLS))(x))


if __name__ == "__main__":
    keras.utils.set_random_seed(5)
    folder = pathlib.Path("shells")
    photograph(folder)
    shells = dataset(folder, 16)
    model = build()
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    tick = time.perf_counter()
    history = model.fit(shells, epochs=7, verbose=2)
    print(f"training took {time.perf_counter() - tick:.2f} s")
