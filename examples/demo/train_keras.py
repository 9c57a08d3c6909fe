"""Train a small convolutional network with Keras; this script does not use the profiler.

It has one problem for the demo's report to find: the dataset prepares each batch in the training process, so the training
waits for every batch.
"""

import argparse
import json
import os
import time

import keras
import numpy as np
from keras import layers


class SlowImages(keras.utils.PyDataset):
    """Random images, as slow to load as files from a cold disk."""

    def __init__(self, size: int, batch_size: int, seconds_an_image: float, **options):
        super().__init__(**options)
        self.size, self.batch, self.seconds_an_image = size, batch_size, seconds_an_image

    def __len__(self) -> int:
        return self.size // self.batch

    def __getitem__(self, index: int):
        time.sleep(self.seconds_an_image * self.batch)
        generator = np.random.default_rng(index)
        labels = generator.integers(0, 10, self.batch)
        images = generator.random((self.batch, 28, 28, 1), np.float32) + labels[:, None, None, None] / 5
        return images.astype(np.float32), labels


def network() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
            layers.Flatten(), layers.Dense(10),
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--seconds-an-image", type=float, default=0.003)
    options, _ = parser.parse_known_args()  # SDK v2's TensorFlow estimator adds --model_dir

    keras.utils.set_random_seed(0)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    data = SlowImages(options.images, options.batch_size, options.seconds_an_image)
    history = model.fit(data, epochs=options.epochs, verbose=2)

    model.save(os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.keras"))
    with open(os.path.join(os.environ.get("SM_OUTPUT_DATA_DIR", "."), "result.json"), "w") as file:
        json.dump({"final_loss": history.history["loss"][-1]}, file)


if __name__ == "__main__":
    main()
