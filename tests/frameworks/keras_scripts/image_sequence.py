"""Segment images that a PyDataset reads from files, with several workers."""

import json
import pathlib
import tempfile

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(9)
folder = pathlib.Path(tempfile.mkdtemp())
rng = np.random.default_rng(9)
for number in range(240):
    image = rng.integers(0, 255, (48, 48, 3), dtype=np.uint8)
    np.savez_compressed(folder / f"{number:04}.npz", image=image, mask=(image[..., :1] > 127).astype(np.uint8))


class Images(keras.utils.PyDataset):
    """Batches of images and masks."""

    def __init__(self, paths, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.paths, self.batch_size = paths, batch_size

    def __len__(self):
        return len(self.paths) // self.batch_size

    def __getitem__(self, index):
        chosen = self.paths[index * self.batch_size : (index + 1) * self.batch_size]
        read = [np.load(path) for path in chosen]
        images = np.stack([one["image"] for one in read]).astype("float32") / 255
        return images, np.stack([one["mask"] for one in read])


def get_model():
    """Return a small U-Net."""
    inputs = keras.Input(shape=(48, 48, 3))
    down = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(inputs)
    lower = layers.Conv2D(24, 3, strides=2, padding="same", activation="relu")(down)
    up = layers.concatenate([layers.UpSampling2D(2)(lower), down])
    up = layers.UpSampling2D(2)(layers.Conv2D(16, 3, padding="same", activation="relu")(up))
    return keras.Model(inputs, layers.Conv2D(2, 3, activation="softmax", padding="same")(up))


paths = sorted(folder.glob("*.npz"))
train, val = Images(paths[:200], 8, workers=2, max_queue_size=4), Images(paths[200:], 8)
model = get_model()
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy")
history = model.fit(train, epochs=4, validation_data=val, verbose=2, shuffle=False)
masks = model.predict(val, verbose=0)
print(masks.shape)

steps = {"TRAIN": int(model.optimizer.iterations), "EVAL": 4 * 5, "PREDICT": 5}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *history.history["val_loss"]]}))
