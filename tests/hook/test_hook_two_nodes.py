"""Two nodes, one of which ends a minute and a half later: end markers, and files that arrive late."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm_profiler import folding as engine
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.monitor.agent import Agent
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry
from sm_profiler.monitor.task import Task
from sm_profiler.source import open_source
from sm_profiler.storage import MissingFileError
from tests.support.hook import SCRIPT, environment

LATER_S = 90
# The hook takes the time from time.time_ns(); this node's clock is shifted.
SHIFTED = """
import sys, time
real, shift = time.time_ns, int(sys.argv.pop(1)) * 10**9
time.time_ns = lambda: real() + shift
from sm_profiler.hook.launch import main
main()
"""


class Shared:
    """The job's folder on S3."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uri, self.puts = folder, str(folder), []

    def write(self, key, data):
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.puts.append(key)

    def upload(self, key, file, _size):
        self.write(key, file.read())

    def read(self, key):
        path = self.folder / key
        if not path.exists():
            raise MissingFileError(key)
        return path.read_bytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Files that two real trainings left on their nodes."""
    folder = tmp_path_factory.mktemp("nodes")
    nodes = []
    for number in (1, 2):
        config = folder / f"algo-{number}" / "input" / "config"
        config.mkdir(parents=True)
        hosts = {"current_host": f"algo-{number}", "hosts": ["algo-1", "algo-2"]}
        (config / "resourceconfig.json").write_text(json.dumps(hosts))
        (config / "profilerconfig.json").write_text('{"ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"}}')
        command = [sys.executable, "-c", SHIFTED, str((number - 1) * LATER_S), SCRIPT]
        more = {"SM_PROFILER_ROOT": str(folder / f"algo-{number}"), "RANK": str(number - 1)}
        nodes.append(subprocess.Popen(command, env=environment(**more), stderr=subprocess.PIPE, text=True))
    for node in nodes:
        _, errors = node.communicate(timeout=120)
        assert (node.returncode, errors) == (0, "")
    return folder


def ends(folder: Path, node: str, shared: Shared) -> None:
    """The node's script has come to its end: what its monitor does then."""
    root = folder / node / "output" / "profiler"
    registry = ProcessRegistry(root, node)
    registry.register(os.getpid())
    registry.leave(os.getpid())
    task = Task(str(root), node, destination=shared.uri, first=node == "algo-1")
    Agent(task, NodeLock(root, node), registry, lambda: shared, lambda: None).run()


def nodes_of(source) -> set[str]:
    return {item.node for item in source.files}


@pytest.mark.long
def test_the_first_host_writes_the_markers_and_late_files_are_read(trained, tmp_path):
    shared = Shared(tmp_path / "job")
    ends(trained, "algo-1", shared)
    assert shared.puts[-2:] == list(END_MARKERS)
    assert len(shared.puts) > 2
    source = open_source(shared.folder, cache=False)
    seen = sum(len(batch.events) for batch in source.batches())
    assert source.finished
    assert nodes_of(source) == {"algo-1-0"}

    shared.puts.clear()
    ends(trained, "algo-2", shared)
    assert shared.puts
    assert not set(shared.puts) & set(END_MARKERS)
    assert source.refresh() == len(shared.puts)
    late = sum(len(batch.events) for batch in source.batches())
    assert late >= 50
    assert nodes_of(source) == {"algo-1-0", "algo-2-1"}
    assert source.finished  # another node's late files do not take the end back
    assert len(open_source(shared.folder, cache=False).events()) == seen + late

    again = next(path for path in shared.folder.rglob("*_0-algo-1_*.json"))
    number, _, rest = again.name.partition("_")
    again.with_name(f"{int(number) + 200_000_000}_{rest}").write_bytes(again.read_bytes())
    source.refresh()
    assert not source.finished  # the first host continues: the job was resumed


def an_hour_earlier(path):
    """Return the key of a trace file as of an hour before."""
    number, _, rest = path.name.partition("_")
    end_us = int(number) - 3_600_000_000
    return f"framework/pevents/{time.strftime('%Y%m%d%H', time.gmtime(end_us // 10**6))}/{end_us}_{rest}"


def test_a_follower_waits_for_the_other_nodes(trained, tmp_path, monkeypatch):
    shared = Shared(tmp_path / "job")
    for node in ("algo-1", "algo-2"):  # minutes that both have brought so far
        for path in (trained / node).rglob("*_pythontimeline.json"):
            shared.write(an_hour_earlier(path), path.read_bytes())
    ends(trained, "algo-1", shared)
    source = open_source(shared.folder, cache=False)
    assert source.finished
    now = source.last_timestamp_us / 1e6 + 1
    monkeypatch.setattr(engine.time, "time", lambda: now)
    waits = []

    def sleep(seconds):
        nonlocal now
        waits.append(seconds)
        now += seconds
        if len(waits) == 3:
            ends(trained, "algo-2", shared)
        assert len(waits) < 50

    counted = {}
    for window in engine.windows(source, follow=engine.Following(sleep=sleep)):
        for name in window.new_events.node.decode():
            counted[name] = counted.get(name, 0) + 1
    whole = open_source(shared.folder, cache=False).events().node.decode().tolist()
    assert counted == {name: whole.count(name) for name in ("algo-1-0", "algo-2-1")}
    assert 3 * 10 + LATER_S <= sum(waits) <= 300


def test_a_follower_does_not_wait_for_a_job_that_ended_long_ago(trained, tmp_path):
    shared = Shared(tmp_path / "job")
    for node in ("algo-1", "algo-2"):
        for path in (trained / node).rglob("*_pythontimeline.json"):
            shared.write(an_hour_earlier(path), path.read_bytes())
    for key in END_MARKERS:
        shared.write(key, b"")

    def sleep(_):
        raise AssertionError("waited")

    source = open_source(shared.folder, cache=False)
    assert list(engine.windows(source, follow=engine.Following(sleep=sleep)))
