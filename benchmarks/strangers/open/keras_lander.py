"""Deep Q-learning with Keras (JAX): land softly with three engines. After a well-known tutorial."""

import os
import random
import time
from collections import deque

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

VECTORIZED = os.environ.get("REPAIRED") == "1"
keras.utils.set_random_seed(64)


class Lander:
    """Height, position and speed; thrust costs fuel, and a hard landing costs more."""

    actions = 4

    def reset(self):
        self.state = np.array([random.uniform(-0.5, 0.5), 1.0, 0.0, 0.0, 0.0, 1.0], np.float32)
        return self.state.copy()

    def step(self, action):
        x, y, vx, vy, tilt, fuel = self.state
        vx += 0.02 * (action == 1) - 0.02 * (action == 2) + random.gauss(0, 0.003)
        vy += 0.035 * (action == 3) - 0.015
        tilt = 0.9 * tilt + 0.1 * vx
        self.state = np.array([x + vx, y + vy, vx, vy, tilt, fuel - 0.01 * (action > 0)], np.float32)
        done = self.state[1] <= 0 or abs(self.state[0]) > 1.5
        reward = -0.01 * (action > 0) - 0.02 * abs(x)
        if done:
            reward += 1 - 8 * abs(float(vy)) - abs(float(x)) if self.state[1] <= 0 else -2
        return self.state.copy(), reward, bool(done)


class DQNAgent:
    def __init__(self, inputs=6, actions=Lander.actions):
        self.memory = deque(maxlen=5000)
        self.gamma, self.epsilon, self.batch_size = 0.97, 1.0, 64
        self.actions = actions
        self.model, self.target = self.build(inputs), self.build(inputs)
        self.target.set_weights(self.model.get_weights())
        self.model.compile(loss="huber", optimizer=keras.optimizers.Adam(1e-3), jit_compile=True)
        self.target.compile()

    def build(self, inputs):
        return keras.Sequential([keras.Input((inputs,)), layers.Dense(256, activation="relu"),
                                 layers.Dense(256, activation="relu"), layers.Dense(self.actions)])

    def act(self, states):
        """An action for each of the landers."""
        self.epsilon = max(0.05, self.epsilon * 0.995)
        if VECTORIZED:
            q = np.asarray(self.model.predict_on_batch(np.stack(states)))
        else:
            q = [self.model.predict(state[np.newaxis], verbose=0)[0] for state in states]
        return [random.randrange(self.actions) if random.random() < self.epsilon else int(np.argmax(row)) for row in q]

    def remember(self, *transition):
        self.memory.append(transition)

    def replay(self):
        states, actions, rewards, after, done = map(np.array, zip(*random.sample(self.memory, self.batch_size)))
        rewards = rewards.astype(np.float32)
        future = np.asarray(self.target.predict_on_batch(after)).max(axis=1)
        wanted = np.array(self.model.predict_on_batch(states))
        wanted[np.arange(self.batch_size), actions] = rewards + self.gamma * future * ~done
        return self.model.train_on_batch(states, wanted)


def main(steps=320, landers=4):
    random.seed(64)
    agent, fleet = DQNAgent(), [Lander() for _ in range(landers)]
    states = [lander.reset() for lander in fleet]
    scores, score = [], [0.0] * landers
    for _ in range(40):
        for i, lander in enumerate(fleet):
            action = random.randrange(Lander.actions)
            after, reward, done = lander.step(action)
            agent.remember(states[i], action, reward, after, done)
            states[i] = lander.reset() if done else after
    start = time.time()
    for step in range(1, steps + 1):
        for i, action in enumerate(agent.act(states)):
            after, reward, done = fleet[i].step(action)
            agent.remember(states[i], action, reward, after, done)
            score[i] += reward
            states[i] = after
            if done:
                scores.append(score[i])
                states[i], score[i] = fleet[i].reset(), 0.0
        loss = agent.replay()
        if step % 40 == 0:
            agent.target.set_weights(agent.model.get_weights())
            print(f"step {step}: loss {float(loss):.4f}, mean score {np.mean(scores[-20:] or [0]):.2f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
