"""Learn to add numbers as text ("531+18" to "549"): a transformer in Keras on JAX."""

import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers, ops

CHARACTERS = "0123456789+ "
LENGTH, ANSWER, WIDTH = 11, 6, 128


class Examples:
    """Numbers of up to five digits; the answer is reversed, as in the paper."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        numbers = rng.integers(0, 10 ** rng.integers(1, 6, (n, 1)), (n, 2))
        self.questions = self.rows([f"{a}+{b}" for a, b in numbers], LENGTH)
        self.answers = self.rows([str(a + b)[::-1] for a, b in numbers], ANSWER)

    @staticmethod
    def rows(texts, width):
        return np.array([[CHARACTERS.index(c) for c in text.ljust(width)] for text in texts], np.int32)


class EncoderBlock(layers.Layer):
    def __init__(self, heads=4, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, WIDTH // heads)
        self.norm1, self.norm2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.wide, self.narrow = layers.Dense(4 * WIDTH, activation="gelu"), layers.Dense(WIDTH)

    def call(self, x):
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.narrow(self.wide(x)))


def adder(blocks=3):
    text = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(len(CHARACTERS), WIDTH)(text)
    x = x + layers.Embedding(LENGTH, WIDTH)(ops.arange(LENGTH))
    for _ in range(blocks):
        x = EncoderBlock()(x)
    x = layers.Dense(ANSWER * 64, activation="relu")(layers.Flatten()(x))
    x = layers.Reshape((ANSWER, 64))(x)
    return keras.Model(text, layers.Dense(len(CHARACTERS))(x))


keras.utils.set_random_seed(8)
train, held_out = Examples(9_600, 0), Examples(640, 1)
model = adder()
model.compile(
    optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, 300), clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
begin = time.time()
history = model.fit(
    train.questions,
    train.answers,
    batch_size=64,
    epochs=2,
    validation_data=(held_out.questions, held_out.answers),
    callbacks=[keras.callbacks.ModelCheckpoint("adder.weights.h5", save_weights_only=True, save_best_only=True)],
    verbose=2,
)
print(f"training took {time.time() - begin:.2f} s")
print("best", max(history.history["val_accuracy"]))
