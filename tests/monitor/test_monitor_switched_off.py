"""The configuration file of a running job ends its sampling."""

import json
import threading
from pathlib import Path

import pytest

from sm_profiler.config import load_profile
from sm_profiler.hook.settings import task_of
from sm_profiler.monitor.agent import LOOK_SECONDS, Agent, SwitchedOff
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry
from sm_profiler.monitor.task import Task


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    return path


def test_the_file_is_read_once_a_second_and_half_of_one_changes_nothing(config):
    now = 0.0
    stop = threading.Event()
    switch = SwitchedOff(stop, str(config), lambda: now)
    assert not switch.is_set()
    found = []
    for text in ('{"DisableProfiler": true}', '{"Disable', None, '{"DisableProfiler": false, "a": 1}'):
        config.unlink() if text is None else config.write_text(text)
        before = switch.wait(0)
        now += LOOK_SECONDS
        found.append((before, switch.wait(0)))
    assert found == [(False, True), (True, True), (True, True), (True, False)]
    stop.set()
    assert switch.is_set()


def test_sampling_ends_and_restarts(config, tmp_path, monkeypatch):
    monkeypatch.setattr("sm_profiler.monitor.agent.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("sm_profiler.monitor.agent.CHECK_SECONDS", 0.01)
    stop, log = threading.Event(), []

    class Sampler:
        def run(self, switch):
            log.append("on")
            assert not switch.is_set()
            config.write_text(json.dumps({"DisableProfiler": True}))
            assert switch.wait(60)
            log.append("off")
            if len(log) == 4:
                stop.set()
            else:
                config.write_text("{}")

    task = Task(str(tmp_path), "algo-1", 500, config=str(config))
    agent = Agent(task, NodeLock(tmp_path, "algo-1"), ProcessRegistry(tmp_path, "algo-1"), None, Sampler)
    agent._sample(stop)
    assert log == ["on", "off", "on", "off"]


def test_the_monitor_has_the_path_of_the_file():
    profile = load_profile("{}")
    assert task_of(profile, "job", config=Path("/etc/config.json")).config == "/etc/config.json"
    assert task_of(profile, "job").config == ""
