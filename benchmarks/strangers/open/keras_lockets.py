"""Value old jewellery from the words of an auction catalogue: a transformer block in Keras on TensorFlow, tf.data."""

import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

WORDS, LENGTH, WIDTH = 5000, 64, 128


def catalogue(n, seed):
    rng = np.random.default_rng(seed)
    worth = np.random.default_rng(0).normal(0, 1, WORDS) * (np.random.default_rng(1).random(WORDS) < 0.05)
    words = 1 + rng.zipf(1.2, (n, LENGTH)) % (WORDS - 1)
    price = worth[words].sum(1) + 0.5 * (words[:, :8] % 7 == 0).sum(1) + rng.normal(0, 0.3, n)
    return words.astype("int32"), price.astype("float32")


@keras.saving.register_keras_serializable()
class Block(layers.Layer):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.feed = keras.Sequential([layers.Dense(4 * width, activation="gelu"), layers.Dense(width)])
        self.norm1, self.norm2 = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y)
        return x + self.feed(self.norm2(x))


def get_model():
    ids = keras.Input((LENGTH,), dtype="int32")
    places = keras.ops.arange(LENGTH)
    x = layers.Embedding(WORDS, WIDTH)(ids) + layers.Embedding(LENGTH, WIDTH)(places)
    for _ in range(2):
        x = Block(WIDTH, 4)(x)
    x = layers.GlobalMaxPooling1D()(layers.LayerNormalization()(x))
    return keras.Model(ids, layers.Dense(1)(x))


def pipeline(arrays, shuffled):
    data = tf.data.Dataset.from_tensor_slices(arrays)
    if shuffled:
        data = data.shuffle(4096, seed=2)
    return data.batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main():
    keras.utils.set_random_seed(77)
    model = get_model()
    model.compile(optimizer=keras.optimizers.AdamW(5e-4, clipnorm=1.0), loss="mse", metrics=["mae"])
    train, test = pipeline(catalogue(3000, 3), True), pipeline(catalogue(320, 4), False)
    start = time.time()
    model.fit(train, validation_data=test, epochs=2, verbose=2,
              callbacks=[keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True, monitor="val_mae")])
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
