"""Butterflies of the meadow, twelve species: flax, pictures varied on the fly, runs are followed on a little server.

The server runs in a process of its own (here on this machine) and keeps what it gets in SQLite.
"""
import json
import os
import subprocess
import sys
import time
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

REPAIRED = os.environ.get("REPAIRED") == "1"
SPECIES, SIDE, BATCH, STEPS = 12, 32, 16, 35
SERVER = """
import http.server, json, sqlite3
table = sqlite3.connect("runs.db")
table.execute("create table points (name, step, value)")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        for point in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
            table.execute("insert into points values (?, ?, ?)", point)
        table.commit()
        self.send_response(204)
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Run:
    def __init__(self, flush_every):
        self.server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        self.address = f"http://127.0.0.1:{int(self.server.stdout.readline())}/points"
        self.points, self.flush_every = [], flush_every

    def log(self, name, step, value):
        self.points.append((name, step, float(value)))
        if len(self.points) >= self.flush_every:
            request = urllib.request.Request(self.address, json.dumps(self.points).encode(), method="POST")
            urllib.request.urlopen(request).close()
            self.points.clear()


def meadow(rng, count):
    species = rng.integers(0, SPECIES, count)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    wings = (np.abs(x)[None] - 0.5 + 0.1 * rng.random((count, 1, 1))) ** 2 + (0.6 + species[:, None, None] / 20) * y**2
    spots = np.sin((3 + species[:, None, None]) * np.abs(x) * 3) * np.cos((2 + species[:, None, None] % 4) * y * 4)
    colour = rng.uniform(0.3, 1, (count, 1, 1, 3))
    image = np.where(wings[..., None] < 0.25, colour * (0.7 + 0.3 * spots[..., None]), [0.2, 0.5, 0.2])
    return (image + 0.05 * rng.normal(size=image.shape)).astype(np.float32), species


def vary(key, image):
    keys = jax.random.split(key, 4)
    image = jnp.where(jax.random.bernoulli(keys[0]), image[:, ::-1], image)
    image = jnp.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    y, x = jax.random.randint(keys[1], (2,), 0, 9)
    image = jax.lax.dynamic_slice(image, (y, x, 0), (SIDE, SIDE, 3))
    light, contrast = jax.random.uniform(keys[2], (2,), minval=0.7, maxval=1.3)
    image = (image - image.mean()) * contrast + image.mean() * light
    return image + 0.05 * jax.random.normal(keys[3], image.shape)


def vary_all(keys, images):
    return jnp.stack([vary(key, image) for key, image in zip(keys, images)])


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in (32, 64, 96):
            x = nn.Conv(width, (3, 3), strides=2)(x)
            y = nn.Conv(width, (3, 3))(nn.silu(nn.GroupNorm(8)(x)))
            x = x + nn.Conv(width, (3, 3))(nn.silu(y))
        return nn.Dense(SPECIES)(x.mean((1, 2)))


def main():
    rng = np.random.default_rng(24)
    images, species = meadow(rng, 3000)
    net, tx = Net(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-3))
    params = net.init(jax.random.key(0), images[:1])
    varied = jax.jit(jax.vmap(vary)) if REPAIRED else vary_all

    @jax.jit
    def update(params, state, x, y):
        def loss(params):
            return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, x), y).mean()

        value, grads = jax.value_and_grad(loss)(params)
        change, state = tx.update(grads, state, params)
        norms = jax.tree.map(jnp.linalg.norm, {"gradient": grads, "weight": params})
        return optax.apply_updates(params, change), state, value, norms

    state, run = tx.init(params), Run(flush_every=2000 if REPAIRED else 1)
    begin = time.time()
    for step in range(STEPS):
        rows = rng.integers(0, len(images), BATCH)
        x = varied(jax.random.split(jax.random.key(step), BATCH), images[rows])
        params, state, value, norms = update(params, state, x, species[rows])
        run.log("loss", step, value)
        for path, norm in jax.tree.leaves_with_path(norms):
            run.log("norm" + jax.tree_util.keystr(path), step, norm)
    print(f"training took {time.time() - begin:.2f} s, loss {value:.3f}")
    run.server.terminate()


if __name__ == "__main__":
    main()
