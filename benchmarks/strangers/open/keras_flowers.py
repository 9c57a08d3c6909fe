"""Flowers in five classes: Keras with JAX."""

import io
import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers
from PIL import Image, ImageEnhance

IMAGES, SIDE = 120, 64
rng = np.random.default_rng(0)


def make_png(k):
    picture = Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)).resize((256, 256), Image.BICUBIC)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


class FlowerSequence(keras.utils.PyDataset):
    def __init__(self, files, batch_size=16, cache=False, batches=100):
        super().__init__()
        self.files, self.batch_size, self.batches = files, batch_size, batches
        self.cache = {} if cache else None

    def __len__(self):
        return self.batches

    def load(self, i):
        if self.cache is not None and i in self.cache:
            return self.cache[i]
        image = Image.open(io.BytesIO(self.files[i]))
        image = ImageEnhance.Color(image).enhance(1.2)
        array = np.asarray(image.resize((SIDE, SIDE), Image.BILINEAR), "float32") / 255
        if self.cache is not None:
            self.cache[i] = array
        return array

    def __getitem__(self, index):
        chosen = rng.integers(0, len(self.files), self.batch_size)
        x = np.stack([self.load(int(i)) for i in chosen])
        flip = rng.random(self.batch_size) < 0.5
        x[flip] = x[flip, :, ::-1]
        return x, chosen % 5


model = keras.Sequential([
    keras.Input((SIDE, SIDE, 3)),
    layers.Conv2D(16, 3, strides=2, activation="relu"),
    layers.Conv2D(32, 3, strides=2, activation="relu"),
    layers.Conv2D(64, 3, strides=2, activation="relu"),
    layers.GlobalAveragePooling2D(),
    layers.Dropout(0.2),
    layers.Dense(5),
])
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
train = FlowerSequence([make_png(k) for k in range(IMAGES)], cache=os.environ.get("REPAIRED") == "1")
start = time.time()
model.fit(train, epochs=3, verbose=2)
print(f"training took {time.time() - start:.2f} s")
