"""Classify structured data: preprocessing layers of Keras inside a pipeline of tf.data."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(6)
epochs, batch_size, count = 3, 32, 960
rng = np.random.default_rng(4)
table = {
    "age": rng.integers(20, 80, count).astype("float32"),
    "cholesterol": rng.normal(240, 50, count).astype("float32"),
    "chest_pain": rng.integers(0, 4, count),
    "thal": rng.choice(["fixed", "normal", "reversible"], count),
}
target = ((table["age"] > 55) & (table["thal"] != "normal")).astype("float32")


def dataset(rows):
    """Return a dataset of some rows."""
    chosen = {name: values[rows] for name, values in table.items()}
    return tf.data.Dataset.from_tensor_slices((chosen, target[rows]))


train, validation = dataset(slice(0, 768)), dataset(slice(768, None))
ages, cholesterol = layers.Normalization(), layers.Normalization()
ages.adapt(table["age"][:768, None])
cholesterol.adapt(table["cholesterol"][:768, None])
pains = layers.CategoryEncoding(num_tokens=4, output_mode="one_hot")
thals = layers.StringLookup(vocabulary=["fixed", "normal", "reversible"], output_mode="one_hot")


def encode(features, label):
    """Turn the columns of a batch into one vector each."""
    parts = [
        ages(tf.expand_dims(features["age"], -1)),
        cholesterol(tf.expand_dims(features["cholesterol"], -1)),
        pains(tf.expand_dims(features["chest_pain"], -1)),
        thals(tf.expand_dims(features["thal"], -1)),
    ]
    return tf.concat([tf.cast(part, tf.float32) for part in parts], axis=-1), label


train = train.batch(batch_size).map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
validation = validation.batch(batch_size).map(encode).prefetch(tf.data.AUTOTUNE)
width = train.element_spec[0].shape[-1]

model = keras.Sequential(
    [
        keras.Input((width,)),
        layers.Dense(32, activation="relu"),
        layers.Dropout(0.5),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True)
history = model.fit(train, validation_data=validation, epochs=epochs, verbose=2, callbacks=[stop])
steps = {"TRAIN": int(model.optimizer.iterations), "EVAL": epochs * 6}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *history.history["val_loss"]]}))
