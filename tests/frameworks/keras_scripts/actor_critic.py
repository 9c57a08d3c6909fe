"""Balance a pole with actor and critic: an eager loop with GradientTape, one step an episode."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(543)
gamma, episodes, most = 0.99, 24, 20
chance = np.random.default_rng(9)


class Pole:
    """A cart with a pole, as in the classical task."""

    def reset(self):
        self.state = chance.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action):
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        turning = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        moving = push - 0.05 * turning * np.cos(angle) / 1.1
        self.state = np.array([x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning])
        return self.state, 1.0, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21)


inputs = layers.Input((4,))
common = layers.Dense(32, activation="relu")(inputs)
model = keras.Model(inputs, [layers.Dense(2, activation="softmax")(common), layers.Dense(1)(common)])
optimizer = keras.optimizers.Adam(0.01)
huber = keras.losses.Huber()
pole, running, losses = Pole(), 0.0, []

for episode in range(episodes):
    state, log_odds, values, rewards = pole.reset(), [], [], []
    with tf.GradientTape() as tape:
        for _ in range(most):
            odds, value = model(ops.expand_dims(ops.convert_to_tensor(state), 0))
            values.append(value[0, 0])
            likely = np.squeeze(odds).astype("float64")
            action = chance.choice(2, p=likely / likely.sum())
            log_odds.append(ops.log(odds[0, action]))
            state, reward, done = pole.step(action)
            rewards.append(reward)
            if done:
                break
        running = 0.05 * sum(rewards) + 0.95 * running
        returns, total = [], 0.0
        for reward in rewards[::-1]:
            total = reward + gamma * total
            returns.insert(0, total)
        returns = np.array(returns)
        returns = ((returns - returns.mean()) / (returns.std() + 1e-7)).tolist()
        loss = 0.0
        for log_odd, value, back in zip(log_odds, values, returns, strict=True):
            loss += -log_odd * (back - value) + huber(ops.expand_dims(value, 0), ops.expand_dims(back, 0))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    losses.append(float(loss))
    if (episode + 1) % 10 == 0:
        print(f"running reward: {running:.2f} at episode {episode + 1}")

print(json.dumps({"steps": {"TRAIN": int(optimizer.iterations)}, "losses": losses}))
