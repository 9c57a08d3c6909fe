"""Train a small convolutional network with Keras; this script does not use the profiler.

It has one problem for the demo's report to find: images are decoded and augmented in the training process, so the training
waits for every batch.
"""

import argparse
import json
import os

import keras
import numpy as np
from keras import layers
from photos import CLASSES, FILES, INPUT, jpeg_file, load


class Photos(keras.utils.PyDataset):
    """Batches of photos with their classes, decoded and augmented whenever they are read."""

    def __init__(self, size: int, batch_size: int, **options):
        super().__init__(**options)
        self.size, self.batch = size, batch_size
        self.files = [jpeg_file(number) for number in range(FILES)]

    def __len__(self) -> int:
        return self.size // self.batch

    def __getitem__(self, index: int):
        numbers = [number * 7 % FILES for number in range(index * self.batch, (index + 1) * self.batch)]
        images = np.stack([load(self.files[number]) for number in numbers])
        return images.astype(np.float32) / 255 - 0.5, np.array(numbers) % CLASSES


def network() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((*INPUT, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
            layers.Flatten(), layers.Dense(CLASSES),
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=1600)
    options, _ = parser.parse_known_args()  # SDK v2's TensorFlow estimator adds --model_dir

    keras.utils.set_random_seed(0)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    data = Photos(options.images, options.batch_size)
    history = model.fit(data, epochs=options.epochs, verbose=2)

    model.save(os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.keras"))
    with open(os.path.join(os.environ.get("SM_OUTPUT_DATA_DIR", "."), "result.json"), "w") as file:
        json.dump({"final_loss": history.history["loss"][-1]}, file)


if __name__ == "__main__":
    main()
