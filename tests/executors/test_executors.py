import json
import os
import pickle
import signal
import threading
import time
from concurrent.futures import BrokenExecutor

import pytest

from sm_profiler.cli.main import main
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.executors import open_pool, run_tasks
from sm_profiler.executors.pools import LocalExecutor, worker_version
from sm_profiler.metrics.scaling.part import fold_part
from tests.support.jobs import make_job


@pytest.mark.parametrize("name", ["", "locals", "local:0", "local:x", "dask", "dask:http://h:1", "local:99999"])
def test_unknown_executors_are_refused(name):
    with pytest.raises(ConfigError, match="expected local"), open_pool(name):
        pass


def test_local_processes_answer_and_report_errors():
    with open_pool("local:2") as pool:
        assert pool.workers == 2
        answers = [pool.executor.submit(fold_part, fold_part.encode(1)) for _ in range(3)]
        for answer in answers:
            with pytest.raises(RuntimeError, match=r"DecodeError|ValidationError"):
                answer.result()
        with pytest.raises(SourceError, match="sm-profiler is"):
            fold_part.decode(pool.executor.submit(fold_part, b"\xc1").result())


def test_task_that_kills_its_process_fails_after_some_attempts(monkeypatch):
    executor = LocalExecutor(1)
    take = LocalExecutor._take

    def killed(self, name):
        helper = take(self, name)
        os.kill(helper.process.pid, signal.SIGKILL)
        return helper

    monkeypatch.setattr(LocalExecutor, "_take", killed)
    with pytest.raises(BrokenExecutor, match="3 processes in a row"):
        executor.submit(fold_part, b"").result()
    executor.shutdown()


def test_scheduler_that_cannot_be_reached_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sm_profiler.executors.pools.CONNECT_S", 0.5)
    make_job(tmp_path / "job", "--minutes", "0.5")
    assert main(["report", str(tmp_path / "job"), "--executor", "dask:tcp://127.0.0.1:9"]) == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1
    assert "cannot be reached" in shown


def test_follow_and_executor_exclude_each_other(tmp_path, capsys):
    (tmp_path / "system").mkdir()
    assert main(["report", str(tmp_path), "--follow", "--executor", "local"]) == 2
    assert "leave out --follow" in capsys.readouterr().err


@pytest.fixture(scope="module")
def dask_pool():
    pytest.importorskip("distributed")
    with open_pool("dask:local:2") as pool:
        yield pool


@pytest.mark.long
def test_dask_gives_the_same_digits_and_survives_a_killed_worker(dask_pool, tmp_path, monkeypatch):

    from sm_profiler import folding as engine
    from sm_profiler.report import build_report
    from sm_profiler.report.report_json import to_json
    from sm_profiler.source import open_source

    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    monkeypatch.setattr(engine, "SLICE_WINDOWS", 3)
    make_job(tmp_path / "job", "--minutes", "60", "--gpus", "2")

    def text(**options):
        found = json.loads(to_json(build_report(open_source(tmp_path / "job"), **options)))
        del found["generated"]
        return json.dumps(found)

    expected = text()
    assert text(executor=dask_pool.executor) == expected
    client = dask_pool.executor._client
    pids = list(client.run(os.getpid).values())

    def kill():
        time.sleep(0.5)
        os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert text(executor=dask_pool.executor) == expected
    thread.join()


@pytest.mark.long
def test_workers_of_another_version_are_refused(dask_pool, monkeypatch):
    client = dask_pool.executor._client
    assert set(client.run(worker_version).values())
    monkeypatch.setattr("sm_profiler.executors.pools.__version__", "9.9.9")
    with (
        pytest.raises(SourceError, match=r"sm-profiler is 9\.9\.9 here and"),
        open_pool(f"dask:{client.scheduler.address}"),
    ):
        pass


def test_damaged_answers_are_one_line():
    for data in (b"\0\xc1", b"\0\xc7\x01\x7fx", b"\0"):
        with pytest.raises(SourceError, match="answer is damaged"):
            fold_part.decode(data)


def test_a_function_of_a_task_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(fold_part)) is fold_part  # noqa: S301 - our own


@pytest.mark.long
def test_task_that_kills_each_dask_worker_fails_alone(dask_pool):
    tasks = [b"__import__('os')._exit(1)", b"b'x'"]
    found = sorted(run_tasks(dask_pool, eval, tasks), key=lambda one: one.number)
    assert "KilledWorker" in found[0].error
    assert found[1].data == b"x"


@pytest.mark.long
def test_scheduler_that_dies_ends_in_one_line():
    pytest.importorskip("distributed")
    with open_pool("dask:local:1") as pool:
        client = pool.executor._client
        results = run_tasks(pool, eval, [b"b'x'", *[b"__import__('time').sleep(600)"] * 3])
        assert next(results).data == b"x"
        os.kill(client.run_on_scheduler(os.getpid), signal.SIGKILL)
        with pytest.raises(SourceError, match="the workers cannot be reached"):
            list(results)


@pytest.mark.long
def test_report_through_a_scheduler_on_the_command_line(dask_pool, tmp_path, capsys):
    make_job(tmp_path / "job", "--minutes", "130", "--interval-ms", "8000", "--gpus", "1")
    address = dask_pool.executor._client.scheduler.address
    for name, more in (("here", []), ("there", ["--executor", f"dask:{address}"])):
        assert main(["report", str(tmp_path / "job"), "--out", str(tmp_path / name), *more]) == 0
    found = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("here", "there")]
    assert all(one.pop("generated") for one in found)
    assert found[0] == found[1]
    assert not [line for line in capsys.readouterr().err.splitlines() if "distributed" in line]
