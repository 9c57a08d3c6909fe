"""Which floor next? Deep Q-learning for an elevator, prioritized replay, a jitted update with optax."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

FLOORS, BUILDINGS, BATCH, CAPACITY = 10, 8, 256, 8192
GAMMA, ALPHA, BETA, VECTORS = 0.97, 0.6, 0.4, os.environ.get("REPAIRED") == "1"


class Elevators:  # a ride takes as long as it is far
    def __init__(self, rng):
        self.rng, self.waiting, self.at = rng, np.zeros((BUILDINGS, FLOORS), np.float32), np.zeros(BUILDINGS, int)

    def states(self):
        return np.concatenate([self.waiting / 5, np.eye(FLOORS, dtype=np.float32)[self.at]], axis=1)

    def move(self, floors):
        far, every = np.abs(floors - self.at) + 1, np.arange(BUILDINGS)
        self.waiting = np.minimum(self.waiting + self.rng.poisson(0.06 * far[:, None], self.waiting.shape), 20).astype(np.float32)
        served = np.minimum(self.waiting[every, floors], 6)
        self.waiting[every, floors] -= served
        self.at = floors
        return served - 0.05 * self.waiting.sum(1) - 0.1 * far


class Replay:  # a binary tree: priorities in the leaves, sums in the nodes
    def __init__(self, rng):
        self.rng, self.nodes, self.count = rng, np.zeros(2 * CAPACITY), 0
        self.columns = [np.zeros(CAPACITY, kind) for kind in ("20f4", "i4", "f4", "20f4")]

    def set(self, places, priorities):
        if VECTORS:
            nodes = np.asarray(places) + CAPACITY
            self.nodes[nodes] = priorities
            while (nodes := np.unique(nodes // 2))[0] > 0:
                self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]
            return
        for place, priority in zip(places, priorities):
            node = place + CAPACITY
            change = priority - self.nodes[node]
            while node >= 1:
                self.nodes[node] += change
                node //= 2

    def find(self, mass):
        if VECTORS:
            node = np.ones(len(mass), int)
            while node[0] < CAPACITY:
                right = mass > self.nodes[2 * node]
                mass, node = mass - right * self.nodes[2 * node], 2 * node + right
            return node - CAPACITY
        places = []
        for m in mass:
            node = 1
            while node < CAPACITY:
                node *= 2
                if m > self.nodes[node]:
                    m, node = m - self.nodes[node], node + 1
            places.append(node - CAPACITY)
        return np.array(places)

    def add(self, *transitions):
        places = (self.count + np.arange(BUILDINGS)) % CAPACITY
        for column, new in zip(self.columns, transitions):
            column[places] = new
        self.count += BUILDINGS
        self.set(places, np.ones(BUILDINGS))

    def sample(self):
        places = self.find((np.arange(BATCH) + self.rng.random(BATCH)) * self.nodes[1] / BATCH)
        weight = np.maximum(self.nodes[places + CAPACITY] / self.nodes[1], 1e-12) ** -BETA
        return places, [column[places] for column in self.columns], (weight / weight.max()).astype(np.float32)


tx = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(5e-4))


@jax.jit
def values(params, x):
    *hidden, (w, b) = params
    for v, c in hidden:
        x = jax.nn.relu(x @ v + c)
    return x @ w + b


@jax.jit
def learn(params, target, state, batch, weight):
    now, action, reward, following = batch
    goal = reward + GAMMA * values(target, following).max(1)

    def loss(params):
        error = jnp.take_along_axis(values(params, now), action[:, None], 1)[:, 0] - goal
        return (weight * optax.losses.huber_loss(error)).mean(), error

    grads, error = jax.grad(loss, has_aux=True)(params)
    updates, state = tx.update(grads, state)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target, 0.005), state, error


rng, key, sizes = np.random.default_rng(9), jax.random.key(9), (2 * FLOORS, 128, 128, FLOORS)
target = params = [(jax.random.normal(key, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b)) for a, b in zip(sizes, sizes[1:])]
state, elevators, replay, rewards, start = tx.init(params), Elevators(rng), Replay(rng), [], time.monotonic()
for step in range(3500):
    now = elevators.states()
    floors = np.where(rng.random(BUILDINGS) < max(0.05, 1 - step / 1500), rng.integers(0, FLOORS, BUILDINGS), values(params, now).argmax(1))
    rewards.append(elevators.move(floors))
    replay.add(now, floors, rewards[-1], elevators.states())
    places, batch, weight = replay.sample()
    params, target, state, error = learn(params, target, state, batch, weight)
    replay.set(places, (np.abs(np.asarray(error)) + 1e-3) ** ALPHA)
    if step % 500 == 499:
        print(f"step {step + 1}: mean reward {np.mean(rewards[-200:]):.3f}", flush=True)
print(f"training took {time.monotonic() - start:.2f} s")
