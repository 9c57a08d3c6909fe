"""A hook that is off stays ready: a changed configuration file starts it in the middle of the training."""

import json
import os
import sys
import threading
import time

import pytest
import torch

from sm_profiler.hook import entry, standby
from sm_profiler.hook.settings import ConfigText, read_config
from sm_profiler.hook.standby import Standby, in_framework

OFF = [{"ProfilingIntervalInMilliseconds": 1000}, {"ProfilingParameters": {}}, {"DisableProfiler": True}]
PATIENCE = 60.0  # seconds, on a busy machine


def write(path, config):
    """Write a configuration as the service does, with another time."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(json.dumps(config))
    os.utime(path, ns=(before + 1_000_000_000, before + 1_000_000_000))


def train(steps):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(standby, "SECONDS", 0.01)
    monkeypatch.setattr(standby, "AGAIN_SECONDS", 0.005)
    yield
    entry.uninstall()


@pytest.mark.parametrize("off", OFF)
def test_framework_metrics_are_switched_on_in_a_running_job(quick, off, tmp_path, monkeypatch, caplog):
    path = tmp_path / "profilerconfig.json"
    write(path, off)
    monkeypatch.setenv("SM_PROFILER_CONFIG", str(path))
    backward = torch.autograd.backward
    assert entry.install() is None
    train(3)
    assert torch.autograd.backward is backward  # nothing is patched
    write(path, {"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}})
    end = time.monotonic() + PATIENCE
    while (hook := entry.get_hook(create=False)) is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    train(20)
    hook.session.tracker.end_step()
    assert hook.session.guard.failures == {}
    assert hook.session.tracker.global_step == 19
    assert [one.getMessage() for one in caplog.records if "changed" in one.getMessage()] == [
        "sm-profiler: the configuration changed: the hook starts, and counts steps from here on"
    ]
    assert not [one for one in threading.enumerate() if one.name == "sm-profiler standby" and one.join(5)]


def test_a_configuration_that_stays_off_or_is_broken_starts_nothing(tmp_path):
    path = tmp_path / "profilerconfig.json"
    write(path, OFF[0])
    one = Standby(read_config(path), pytest.fail)
    assert one.changed() is None
    write(path, OFF[2])
    assert one.changed() is None
    path.write_text("{half")
    assert one.changed() is None
    path.unlink()
    assert one.changed() is None
    write(path, {"ProfilingParameters": {"LocalPath": "/x"}})
    assert one.changed()[0].local_path == "/x"


def test_nothing_starts_while_a_framework_runs():
    """A loop over torch's own tables must not see them change."""
    started = []
    one = Standby(ConfigText(""), lambda *_: started.append(sys._getframe()))
    one._ready = (None, ConfigText(""))
    assert not in_framework()
    names = {"__name__": "torch.optim.optimizer", "call": one._on_main_thread}
    exec("def step():\n    call()", names)  # noqa: S102 - a function of another module
    names["step"]()
    assert not started
    one._on_main_thread()
    one._on_main_thread()
    assert len(started) == 1


def test_a_configuration_of_the_environment_cannot_change(quick, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps(OFF[1]))
    assert entry.install() is None
    assert not entry._waiting
