"""Hosts of a processing job that lend their processors to the first one; the whole is in tests/local."""

import json
import socket
from concurrent.futures import Executor, Future

import pytest

from sm_profiler.container import PROCESSING_RESOURCE_CONFIG, Resources, read_resources
from sm_profiler.errors import SourceError
from sm_profiler.executors import Pool
from sm_profiler.report import rule_runner

THREE = ("algo-2", "algo-10", "algo-1")


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_ROOT", str(tmp_path))

    def write(node, names=THREE):
        (tmp_path / "config").mkdir(exist_ok=True)
        found = {"current_host": node, "hosts": list(names)}
        (tmp_path / "config" / "resourceconfig.json").write_text(json.dumps(found))

    return write


def test_the_scheduler_is_on_the_host_with_the_lowest_number(container, monkeypatch):
    container("algo-10")
    found = read_resources(path=PROCESSING_RESOURCE_CONFIG)
    assert (found.first_node, found.is_first_node) == ("algo-1", False)
    assert rule_runner.scheduler_address(found, {}) == ("algo-1", 8786)
    assert rule_runner.scheduler_address(found, {"SM_PROFILER_SCHEDULER": "127.0.0.1:7"}) == ("127.0.0.1", 7)
    monkeypatch.setattr(rule_runner, "processors", lambda: 7)
    assert rule_runner.workers_here(found, {}) == 7
    assert rule_runner.workers_here(found, {"SM_PROFILER_SCHEDULER": "127.0.0.1:7"}) == 2


def test_alone_the_rules_run_as_ever(container, monkeypatch):
    container("algo-1", ["algo-1"])
    monkeypatch.setattr(rule_runner, "main", lambda words, **options: (words, sorted(options)))
    assert rule_runner.run_rules_job(["--follow"]) == (["--follow"], ["make_folds", "write_report"])


def test_other_hosts_end_without_an_error(container, monkeypatch):
    container("algo-2")
    served = []
    monkeypatch.setattr(rule_runner, "lend", lambda found, **_: served.append(found.node))
    assert rule_runner.run_rules_job([]) == 0
    assert served == ["algo-2"]
    monkeypatch.setattr(rule_runner, "is_possible", lambda: False)
    assert rule_runner.run_rules_job([]) == 0
    assert served == ["algo-2"]


def test_host_without_a_scheduler_gives_up(monkeypatch, caplog):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("SM_PROFILER_SCHEDULER", f"127.0.0.1:{port}")
    monkeypatch.setattr(rule_runner, "JOIN_S", 0.0)
    rule_runner.lend(Resources("algo-2", THREE))
    assert "this host has nothing to do" in caplog.text


def test_image_without_dask_uses_the_first_host(container, monkeypatch):
    container("algo-1")
    monkeypatch.setattr(rule_runner, "is_possible", lambda: False)
    monkeypatch.setattr(rule_runner, "main", lambda _, **options: options["notes"])
    assert rule_runner.run_rules_job([]) == ["Only the first host was used: the image has no Dask."]


class Cluster:
    def __init__(self, missing=(), error=""):
        self.missing, self.error = missing, error

    def join(self, _):
        if self.error:
            raise SourceError(self.error)
        return "pool"


def test_status_names_what_did_not_take_part(monkeypatch):
    monkeypatch.setattr(rule_runner, "fold_with", lambda *_, **__: "whole")
    notes = []
    assert rule_runner._spread(Cluster(("algo-3",)), notes, None, {}, 1, bool) == "whole"
    assert rule_runner._spread(Cluster(error="no workers"), notes, None, {}, 1, bool) is None
    assert notes == ["Worked without algo-3, which did not join.", "Only the first host was used: no workers."]


class Dying(Executor):
    """All workers are lost at the first task."""

    def submit(self, fn, /, *args):
        del fn, args
        future = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_first_host_goes_on_alone_if_the_workers_are_lost(monkeypatch):
    cluster = Cluster()
    cluster.join = lambda _: Pool(Dying(), 2)

    def folded(_source, pool, **_):
        from sm_profiler.executors import run_tasks

        return list(run_tasks(pool, bytes, [b""]))

    monkeypatch.setattr(rule_runner, "fold_with", folded)
    notes = []
    assert rule_runner._spread(cluster, notes, None, {}, 1, bool) is None
    assert "cannot be reached" in notes[0]
