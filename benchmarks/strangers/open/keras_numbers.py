"""House numbers from 32x32 pictures: Keras on TensorFlow, as in the tutorials."""

import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

tf.config.threading.set_intra_op_parallelism_threads(1)
keras.utils.set_random_seed(0)

x_train = np.random.rand(6400, 32, 32, 3).astype("float32")
y_train = np.random.randint(0, 10, 6400)
x_val = np.random.rand(640, 32, 32, 3).astype("float32")
y_val = np.random.randint(0, 10, 640)

inputs = keras.Input(shape=(32, 32, 3))
x = layers.RandomFlip("horizontal")(inputs)
x = layers.Conv2D(24, 3, padding="same", activation="relu")(x)
x = layers.MaxPooling2D()(x)
x = layers.Conv2D(48, 3, padding="same", activation="relu")(x)
x = layers.MaxPooling2D()(x)
x = layers.Conv2D(64, 3, activation="relu")(x)
x = layers.Flatten()(x)
x = layers.Dropout(0.4)(x)
outputs = layers.Dense(10, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)

started = time.time()
model.fit(
    x_train,
    y_train,
    batch_size=32,
    epochs=4,
    validation_data=(x_val, y_val),
    callbacks=[
        keras.callbacks.ModelCheckpoint("numbers.weights.h5", save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.CSVLogger("numbers.csv"),
    ],
    verbose=2,
)
print(f"training took {time.time() - started:.2f} s")
