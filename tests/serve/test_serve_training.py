"""A job that really trains, watched in Chromium from its first line to its end: the network drops, the server restarts."""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.proxy import BASE, LONG_MS, Proxy, chromium, served
from tests.support.serving import until

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(7200)]
TRAIN = """
import pathlib, sys, time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(16), torch.tensor(index % 2)

model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.set_num_threads(1)
print("training", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    for inputs, labels in torch.utils.data.DataLoader(Slow(), batch_size=4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
print("done", flush=True)
"""
HOUR_MS = 40 * LONG_MS


@contextmanager
def training(folder, *options):
    """Train in a process of its own until its block ends, and check its end."""
    stop = folder / "stop"
    stop.unlink(missing_ok=True)
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "sm_profiler", "run", *options, "train.py", str(stop)]
    environment = {**os.environ, "SLURM_JOB_ID": "17"}  # resumed, it is the same job
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
        stop.touch()
        out, errors = process.communicate(timeout=HOUR_MS / 1000)
        assert (process.returncode, out) == (0, "training\ndone\n"), errors
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=HOUR_MS / 1000)


def steps_on(page):
    found = re.search(r"(?<![\d.,])([\d,]+) steps(?!/)", page.locator("#glance").inner_text())
    return int(found[1].replace(",", "")) if found else 0


def grows(page):
    """Wait until the page shows more steps than now."""
    before = steps_on(page)
    until(lambda: steps_on(page) > before, HOUR_MS / 1000)


def test_a_training_is_watched_from_start_to_end(tmp_path):
    runs = tmp_path / "sm-profiler"
    runs.mkdir()
    with chromium() as page, ExitStack() as server, ExitStack() as network:
        page.set_default_timeout(HOUR_MS)
        port = server.enter_context(served(runs))
        proxy = Proxy(target=port)
        network.callback(proxy.kill)
        page.goto(f"{proxy.url}?token=known")
        page.get_by_text("No job yet").wait_for()
        with training(tmp_path):
            page.get_by_role("link", name="train-").click()
            page.locator("#state", has_text="running").wait_for()
            page.evaluate("window.kept = true")  # a reload would lose it
            page.locator("#glance", has_text=" steps").wait_for()
            grows(page)
            page.locator("#verdict .badge", has_text="Waiting for data").wait_for()
            page.locator("#verdict", has_text="train.py").wait_for()  # its line, once the sampler has seen it

            where = proxy.server_port  # the proxy is killed, and another one started
            proxy.kill()
            page.locator("#lost", has_text="cannot be reached").wait_for()
            proxy = Proxy(where, port)
            network.callback(proxy.kill)
            grows(page)
            page.locator("#lost").wait_for(state="hidden")

            server.pop_all().close()  # the server is killed, and another one started
            page.locator("#lost").wait_for()
            server.enter_context(served(runs, port))
            grows(page)
            page.locator("#lost").wait_for(state="hidden")
        page.locator("#state", has_text="completed").wait_for()
        page.locator("#verdict .badge", has_text="Waiting for data").wait_for()
        ended = steps_on(page)
        assert ended > 0

        (run,) = runs.iterdir()
        with training(tmp_path, "--config", str(run / "profilerconfig.json")):  # resumed in the same folder
            page.locator("#state", has_text="running").wait_for()
            until(lambda: steps_on(page) > ended, HOUR_MS / 1000)
        page.locator("#state", has_text="completed").wait_for()
        assert page.evaluate("window.kept")
        assert page.problems == []
        assert all(path.startswith(BASE) for path in proxy.seen)
    assert not [one for one in tmp_path.iterdir() if one.name not in {"sm-profiler", "stop", "train.py"}]
