"""Write the training loop from scratch, with tf.function and tf.data (TensorFlow)."""

import json
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(2)
rng = np.random.default_rng(2)
x, y = rng.random((3200, 784), np.float32), rng.integers(0, 10, 3200)
batch_size, epochs = 64, 3
train_dataset = tf.data.Dataset.from_tensor_slices((x[:2560], y[:2560])).shuffle(1024, seed=1).batch(batch_size)
val_dataset = tf.data.Dataset.from_tensor_slices((x[2560:], y[2560:])).batch(batch_size)

inputs = keras.Input(shape=(784,), name="digits")
hidden = keras.layers.Dense(256, activation="relu")(inputs)
hidden = keras.layers.Dense(256, activation="relu")(hidden)
model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(10)(hidden))
optimizer = keras.optimizers.Adam(learning_rate=1e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()
val_acc_metric = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss_value = loss_fn(y, logits)
    grads = tape.gradient(loss_value, model.trainable_weights)
    optimizer.apply(grads, model.trainable_weights)
    train_acc_metric.update_state(y, logits)
    return loss_value


@tf.function
def test_step(x, y):
    val_acc_metric.update_state(y, model(x, training=False))


losses = []
for epoch in range(epochs):
    for step, (x_batch, y_batch) in enumerate(train_dataset):
        loss_value = train_step(x_batch, y_batch)
        if step % 10 == 0:
            print(f"Training loss at step {step}: {float(loss_value):.4f}")
    losses.append(float(loss_value))
    print(f"Training acc over epoch: {float(train_acc_metric.result()):.4f}")
    train_acc_metric.reset_state()
    for x_batch, y_batch in val_dataset:
        test_step(x_batch, y_batch)
    print(f"Validation acc: {float(val_acc_metric.result()):.4f}")
    val_acc_metric.reset_state()

print(json.dumps({"steps": {"TRAIN": int(optimizer.iterations), "EVAL": epochs * 10}, "losses": losses}))
