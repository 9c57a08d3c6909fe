"""Forecast a temperature from the hours before it: an LSTM of Keras on windows of a time series, on any backend.

    KERAS_BACKEND=tensorflow sm-profiler run examples/keras_weather.py
    sm-profiler report sm-profiler/keras_weather-*

Nothing in here is about the profiler. The last line is what Keras itself counted, to compare with the report.
"""

import json

import keras
import numpy as np

keras.utils.set_random_seed(7)

past, step, batch_size, epochs = 72, 3, 64, 3

hours = np.arange(6000)
rng = np.random.default_rng(0)
temperature = 12 + 9 * np.sin(hours * 2 * np.pi / 24) + 5 * np.sin(hours / 700) + rng.normal(0, 0.6, hours.size)
pressure = 1000 + 8 * np.cos(hours / 97) + rng.normal(0, 0.4, hours.size)
wind = np.abs(rng.normal(4, 2, hours.size))
features = np.stack([temperature, pressure, wind], axis=1)

split = int(0.75 * len(features))
mean, spread = features[:split].mean(axis=0), features[:split].std(axis=0)
features = ((features - mean) / spread).astype("float32")


def windows(values):
    """Return the inputs and the temperature that follows each."""
    starts = range(0, len(values) - past, 2)
    x = np.stack([values[start : start + past : step] for start in starts])
    return x, np.array([values[start + past, 0] for start in starts])


x_train, y_train = windows(features[:split])
x_val, y_val = windows(features[split:])

inputs = keras.layers.Input(shape=x_train.shape[1:])
lstm_out = keras.layers.LSTM(32)(inputs)
outputs = keras.layers.Dense(1)(lstm_out)

model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
model.summary()

history = model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_data=(x_val, y_val), verbose=2)
for index in range(3):
    shown = model.predict(x_val[index : index + 1], verbose=0)
    print(f"hour {index}: {y_val[index]:.2f}, forecast {shown[0, 0]:.2f}")

evaluated = epochs * int(np.ceil(len(x_val) / batch_size))
steps = {"TRAIN": int(model.optimizer.iterations), "EVAL": evaluated, "PREDICT": 3}
print(json.dumps({"steps": steps, "losses": [*history.history["loss"], *history.history["val_loss"]]}))
