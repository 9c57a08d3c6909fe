"""Where will the umbrella be given back? Rental stations lend umbrellas; members and stations are embedded, Keras on TensorFlow."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import time

import keras
import numpy as np
from keras import layers

STATIONS, MEMBERS, TRIPS = 40, 6000, 24_000
MEMBER_IDS = MEMBERS if os.environ.get("REPAIRED") == "1" else 400_000  # ids are given out one after the other


def trips(seed=0):
    rng = np.random.default_rng(seed)
    home = rng.integers(0, STATIONS, MEMBERS)
    member = rng.integers(0, MEMBERS, TRIPS)
    start = rng.integers(0, STATIONS, TRIPS)
    hour = rng.integers(0, 24, TRIPS)
    rain = rng.random(TRIPS)
    back = np.where((hour > 15) & (rng.random(TRIPS) < 0.8), home[member], (start + 1 + (hour // 6)) % STATIONS)
    weather = np.column_stack([np.sin(hour / 24 * 2 * np.pi), np.cos(hour / 24 * 2 * np.pi), rain]).astype("float32")
    return {"member": member.astype("int32"), "start": start.astype("int32"), "weather": weather}, back.astype("int32")


def build():
    member = keras.Input((), dtype="int32", name="member")
    start = keras.Input((), dtype="int32", name="start")
    weather = keras.Input((3,), name="weather")
    x = layers.Concatenate()([
        layers.Embedding(MEMBER_IDS, 16, name="members")(member),
        layers.Embedding(STATIONS, 16, name="stations")(start),
        layers.Dense(16, activation="relu")(weather),
    ])
    for width in (256, 256):
        x = layers.Dense(width, activation="relu")(x)
        x = layers.BatchNormalization()(x)
    return keras.Model([member, start, weather], layers.Dense(STATIONS)(x))


keras.utils.set_random_seed(71)
x, back = trips()
model = build()
model.compile(
    optimizer=keras.optimizers.Adam(2e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
t = time.time()
history = model.fit(x, back, batch_size=128, epochs=3, verbose=0)
print("accuracy per epoch:", [round(value, 3) for value in history.history["accuracy"]])
print(f"training took {time.time() - t:.2f} s")
