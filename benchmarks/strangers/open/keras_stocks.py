"""Direction of stocks from the last days: a small transformer in Keras on TensorFlow."""

import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
DAYS, FEATURES, WIDTH = 20, 8, 48
DEBUG = os.environ.get("REPAIRED") != "1"


def prices(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (n, DAYS, FEATURES)).astype("float32")
    up = (x[:, -5:, 0].mean(1) + 0.3 * rng.normal(0, 1, n) > 0).astype("float32")
    return x, up


@keras.saving.register_keras_serializable()
class Position(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(shape[1], shape[2]), initializer="random_normal", name="table")

    def call(self, x):
        return x + self.table


def block(x):
    h = keras.layers.LayerNormalization()(x)
    x = x + keras.layers.MultiHeadAttention(4, WIDTH // 4)(h, h)
    h = keras.layers.LayerNormalization()(x)
    return x + keras.layers.Dense(WIDTH)(keras.layers.Dense(2 * WIDTH, activation="gelu")(h))


def make_model(blocks=3):
    days = keras.Input((DAYS, FEATURES))
    x = Position()(keras.layers.Dense(WIDTH)(days))
    for _ in range(blocks):
        x = block(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(days, keras.layers.Dense(1, activation="sigmoid")(x))


model = make_model()
model.compile(
    keras.optimizers.AdamW(1e-3),
    loss="binary_crossentropy",
    metrics=["accuracy", keras.metrics.AUC(name="auc")],
    run_eagerly=DEBUG,
)
train, val = prices(2880, 0), prices(256, 1)
dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(2880).batch(16, drop_remainder=True).prefetch(2)
start = time.time()
model.fit(
    dataset,
    validation_data=val,
    epochs=1,
    callbacks=[keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)],
    verbose=2,
)
print(f"training took {time.time() - start:.2f} s")
