"""Train a miniature GPT on generated sentences, with a callback that writes a sample after each epoch."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(5)
maxlen, width, epochs, batch_size = 24, 32, 2, 32
words = [
    "[pad]",
    "the",
    "a",
    "film",
    "actor",
    "plot",
    "is",
    "was",
    "slow",
    "great",
    "dull",
    "bright",
    "and",
    "but",
    ".",
]
rng = np.random.default_rng(8)
tokens = rng.integers(1, len(words), (960, maxlen + 1))
tokens[:, 1::3] = 6
generated = []


def causal_mask(length):
    """Return a mask that hides what comes later."""
    rows = ops.arange(length)[:, None]
    return ops.expand_dims(rows >= ops.arange(length), 0)


class TransformerBlock(layers.Layer):
    """Attention to what came before, and a feed-forward network."""

    def __init__(self, heads=2, inner=64, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.network = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(width)])
        self.first, self.second = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)
        self.drop = layers.Dropout(rate)

    def call(self, inputs):
        attended = self.attention(inputs, inputs, attention_mask=causal_mask(inputs.shape[1]))
        out = self.first(inputs + self.drop(attended))
        return self.second(out + self.network(out))


class Positions(layers.Layer):
    """Embeddings of tokens and of their places."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = layers.Embedding(len(words), width), layers.Embedding(maxlen, width)

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(maxlen))


class TextGenerator(keras.callbacks.Callback):
    """Writes a sentence at the end of each epoch, token by token."""

    def __init__(self, start, count=6, top=5):
        super().__init__()
        self.start, self.count, self.top = start, count, top
        self.draws = np.random.default_rng(0)

    def sample(self, logits):
        best = np.argsort(logits)[-self.top :]
        odds = np.exp(logits[best] - logits[best].max())
        return int(self.draws.choice(best, p=odds / odds.sum()))

    def on_epoch_end(self, epoch, logs=None):
        written = list(self.start)
        for _ in range(self.count):
            padded = np.array([written + [0] * (maxlen - len(written))])
            logits = self.model.predict(padded, verbose=0)
            written.append(self.sample(logits[0][len(written) - 1].astype("float64")))
        generated.append(written)
        print("generated:", " ".join(words[one] for one in written))


inputs = layers.Input((maxlen,), dtype="int32")
outputs = layers.Dense(len(words))(TransformerBlock()(Positions()(inputs)))
model = keras.Model(inputs, outputs)
model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
sampler = TextGenerator([1, 3, 6])
history = model.fit(tokens[:, :-1], tokens[:, 1:], epochs=epochs, batch_size=batch_size, verbose=2, callbacks=[sampler])
steps = {"TRAIN": int(model.optimizer.iterations), "PREDICT": epochs * sampler.count}
print(json.dumps({"steps": steps, "losses": history.history["loss"], "generated": generated}))
