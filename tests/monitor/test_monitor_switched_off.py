"""The configuration file of a running job ends its sampling."""

import itertools
import json
import os
import threading
from pathlib import Path

import pytest

from sm_profiler.config import load_profile
from sm_profiler.formats.system_writer import Measurement
from sm_profiler.hook.settings import read_config, task_of
from sm_profiler.monitor.agent import LOOK_SECONDS, Agent, LiveProfile, SwitchedOff
from sm_profiler.monitor.board import STEPS, Board, StepCounter
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry
from sm_profiler.monitor.task import Task


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    return path


def write(path, text):
    """Write a configuration as a person does, some time after the last one: the kernel's clock may not distinguish the two."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 1_000_000_000, before + 1_000_000_000))


def test_the_file_is_read_once_a_second_and_half_of_one_changes_nothing(config):
    now = 0.0
    stop = threading.Event()
    switch = SwitchedOff(stop, LiveProfile(str(config), clock=lambda: now))
    assert not switch.is_set()
    found = []
    for text in ('{"DisableProfiler": true}', '{"Disable', None, '{"DisableProfiler": false, "a": 1}'):
        config.unlink() if text is None else write(config, text)
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
            write(config, json.dumps({"DisableProfiler": True}))
            assert switch.wait(0)
            log.append("off")
            if len(log) == 4:
                stop.set()
            else:
                write(config, "{}")

    task = Task(str(tmp_path), "algo-1", 500, config=str(config))
    agent = Agent(task, NodeLock(tmp_path, "algo-1"), ProcessRegistry(tmp_path, "algo-1"), None, Sampler)
    agent._sample(stop)
    assert log == ["on", "off", "on", "off"]


def test_the_monitor_has_the_path_of_the_file():
    profile = load_profile("{}")
    assert task_of(profile, "job", config=Path("/etc/config.json")).config == "/etc/config.json"
    assert task_of(profile, "job").config == ""


def test_a_config_map_that_is_mounted_switches_off(tmp_path):
    """The kubelet replaces a link to a folder: the file itself is a link that stays."""
    for version, text in (("..1", "{}"), ("..2", '{"DisableProfiler": true}')):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.json").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.json").symlink_to("..data/config.json")
    now = 0.0
    profile = LiveProfile(str(tmp_path / "config.json"), clock=lambda: now)
    source = read_config(tmp_path / "config.json")
    assert not profile.is_off()
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    now += LOOK_SECONDS
    assert profile.is_off()
    assert read_config(tmp_path / "config.json").changed != source.changed


ON = '{"ProfilingParameters": {"LocalPath": "/x"}}'
STEP_SERIES = {"sm_profiler.steps", "sm_profiler.hanging"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"DisableProfiler": true}', set()),
        ("{}", {"system.cpu.utilization"}),  # system metrics only
        (ON, {"system.cpu.utilization", *STEP_SERIES}),
    ],
)
def test_what_is_switched_off_has_no_series(config, tmp_path, text, left):
    """Steps that stay the same would raise the alert for a training that has stopped, and 0 steps that for its start."""
    config.write_text(ON)
    profile = LiveProfile(str(config))
    board = Board("algo-1", lambda: 0.0, StepCounter(tmp_path, "algo-1"), has=profile.has)
    board.update([Measurement("cpu", "cpu0", "CPUUtilization", 50.0)])

    def series():
        return {value.instrument.name for value in board.values()} - {"sm_profiler.build.info"}

    assert series() == {"system.cpu.utilization", *STEP_SERIES}
    config.write_text(text + " ")
    profile.clock = lambda: float("inf")
    assert series() == left


def test_a_job_that_records_no_steps_has_no_series_of_steps(tmp_path):
    def has_steps(text):
        task = Task.from_json(task_of(load_profile(text), "job").to_json())
        agent = Agent(task, NodeLock(tmp_path, "algo-1"), ProcessRegistry(tmp_path, "algo-1"), None, None)
        return agent.profile.has(STEPS)

    assert (has_steps(ON), has_steps('{"S3OutputPath": "s3://b/p"}')) == (True, False)


def test_a_configuration_that_stays_broken_is_reported_once(tmp_path, caplog):
    """Without a hook, nothing else would report it."""
    (config := tmp_path / "config.json").write_text("{}")
    now = 0.0
    profile = LiveProfile(str(config), hook_on=False, clock=lambda: now)
    assert not profile.is_off()
    config.write_text('{"DisableProfiler": tru')
    for lines in (0, 1, 1, 1):  # a file that is being written is no problem
        now += LOOK_SECONDS
        assert not profile.is_off()
        assert len(caplog.messages) == lines
    assert f"{config} is ignored: the profiler configuration is not JSON: " in caplog.messages[0]


def test_a_pipe_in_place_of_the_configuration_does_not_stop_the_sampling(tmp_path, caplog):
    """Opening it would wait for a writer."""
    os.mkfifo(tmp_path / "config.json")
    profile = LiveProfile(
        str(tmp_path / "config.json"), hook_on=False, clock=itertools.count(1.0, LOOK_SECONDS).__next__
    )
    looks = threading.Thread(target=lambda: [profile.is_off() for _ in range(3)], daemon=True)
    looks.start()
    looks.join(10)
    assert not looks.is_alive()
    assert len(caplog.messages) == 1
    assert "not a regular file" in caplog.messages[0]
