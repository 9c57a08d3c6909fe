"""Classify texts with one Transformer block, written as layers of its own."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(11)


class TransformerBlock(layers.Layer):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs, training=None):
        attended = self.dropout1(self.att(inputs, inputs), training=training)
        first = self.layernorm1(inputs + attended)
        return self.layernorm2(first + self.dropout2(self.ffn(first), training=training))


class TokenAndPositionEmbedding(layers.Layer):
    """The sum of the embeddings of tokens and of their positions."""

    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, tokens):
        return self.token_emb(tokens) + self.pos_emb(ops.arange(0, ops.shape(tokens)[-1], 1))


vocab_size, maxlen, embed_dim, num_heads, ff_dim = 2000, 64, 32, 2, 32
rng = np.random.default_rng(5)
x = rng.integers(1, vocab_size, (2400, maxlen))
y = (np.isin(x, np.arange(50)).sum(axis=1) > 1).astype("int32")
x_train, y_train, x_val, y_val = x[:1920], y[:1920], x[1920:], y[1920:]

inputs = layers.Input(shape=(maxlen,))
hidden = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
hidden = TransformerBlock(embed_dim, num_heads, ff_dim)(hidden)
hidden = layers.GlobalAveragePooling1D()(hidden)
hidden = layers.Dropout(0.1)(hidden)
hidden = layers.Dense(20, activation="relu")(hidden)
outputs = layers.Dense(2, activation="softmax")(layers.Dropout(0.1)(hidden))

model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=2, validation_data=(x_val, y_val), verbose=2)

steps = {"TRAIN": int(model.optimizer.iterations), "EVAL": 2 * 15}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *history.history["val_loss"]]}))
