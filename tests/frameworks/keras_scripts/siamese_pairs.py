"""Learn which images show the same shape: a Siamese network with contrastive loss, on pairs of a PyDataset."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(41)
epochs, batch_size, pairs = 3, 32, 640
rng = np.random.default_rng(3)
labels = rng.integers(0, 5, 1000)
images = rng.normal(0, 0.2, (1000, 28, 28, 1)).astype("float32")
for image, label in zip(images, labels, strict=True):
    image[2 + 5 * label : 5 + 5 * label, 4:24] += 1


class Pairs(keras.utils.PyDataset):
    """Pairs of images, half of them of the same class."""

    def __init__(self, count, seed, **options):
        super().__init__(**options)
        draws = np.random.default_rng(seed)
        self.first = draws.integers(0, 1000, count)
        self.second = draws.integers(0, 1000, count)
        same = draws.random(count) < 0.5
        for number in np.flatnonzero(same):
            self.second[number] = draws.choice(np.flatnonzero(labels == labels[self.first[number]]))

    def __len__(self):
        return len(self.first) // batch_size

    def __getitem__(self, index):
        chosen = slice(index * batch_size, (index + 1) * batch_size)
        first, second = self.first[chosen], self.second[chosen]
        return (images[first], images[second]), (labels[first] != labels[second]).astype("float32")


def euclidean_distance(vectors):
    """Return the distance of two embeddings."""
    x, y = vectors
    return ops.sqrt(ops.maximum(ops.sum(ops.square(x - y), axis=1, keepdims=True), keras.config.epsilon()))


def contrastive(margin=1.0):
    """Return a loss that pulls pairs of a class together, and pushes others apart."""

    def contrastive_loss(y_true, y_pred):
        y_true = ops.reshape(y_true, (-1, 1))
        return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * ops.square(ops.maximum(margin - y_pred, 0)))

    return contrastive_loss


embedding = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.BatchNormalization(),
        layers.Conv2D(8, 5, activation="tanh"),
        layers.AveragePooling2D(2),
        layers.Conv2D(16, 5, activation="tanh"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.BatchNormalization(),
        layers.Dense(10, activation="tanh"),
    ]
)
left, right = keras.Input((28, 28, 1)), keras.Input((28, 28, 1))
merged = layers.Lambda(euclidean_distance, output_shape=(1,))([embedding(left), embedding(right)])
outputs = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(merged))
siamese = keras.Model([left, right], outputs)
siamese.compile(loss=contrastive(), optimizer="rmsprop", metrics=["accuracy"])

train, validation = Pairs(pairs, 1), Pairs(pairs // 4, 2)
history = siamese.fit(train, validation_data=validation, epochs=epochs, verbose=2, shuffle=False)
results = siamese.evaluate(validation, verbose=0)
predictions = siamese.predict(validation, verbose=0)
steps = {"TRAIN": int(siamese.optimizer.iterations), "EVAL": (epochs + 1) * len(validation), "PREDICT": len(validation)}
losses = [*history.history["loss"], *history.history["val_loss"], *results, float(predictions.sum())]
print(json.dumps({"steps": steps, "losses": losses}))
