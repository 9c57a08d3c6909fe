import os
import signal
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future

import pytest

from sm_profiler.cli.main import main
from sm_profiler.errors import SourceError
from sm_profiler.executors import Meter, Pool, TaskResult, open_pool, run_tasks
from sm_profiler.executors.pools import LocalExecutor
from sm_profiler.metrics.scaling import codec, part


class Answering(Executor):
    """Answers each task with the next of some results or errors, at once."""

    def __init__(self, *results):
        self.results, self.submitted = list(results), []

    def submit(self, fn, /, *args):
        result = self.results.pop(0) if self.results else fn(*args)
        if isinstance(result, BrokenExecutor):
            raise result
        self.submitted.append(args[0])
        future = Future()
        if isinstance(result, BaseException):
            future.set_exception(result)
        elif result is not None:
            future.set_result(result)
        return future


def test_results_have_the_numbers_of_their_tasks():
    tasks = [bytes([number]) for number in range(40)]
    with open_pool("local:2") as pool:
        found = list(run_tasks(pool, codec.encode, iter(tasks)))
    assert sorted(found, key=lambda one: one.number) == [
        TaskResult(number, codec.encode(task)) for number, task in enumerate(tasks)
    ]


def test_error_of_one_task_leaves_the_others():
    pool = Pool(Answering(b"a", ValueError("two\nlines"), b"c"), 1)
    found = sorted(run_tasks(pool, codec.encode, [b"1", b"2", b"3"]), key=lambda one: one.number)
    assert found == [TaskResult(0, b"a"), TaskResult(1, error="ValueError: two lines"), TaskResult(2, b"c")]


@pytest.mark.parametrize("error", [BrokenExecutor("all gone"), CancelledError()])
def test_lost_workers_are_one_line(error):
    with pytest.raises(SourceError, match=r"cannot be reached: .*(all gone|lost)"):
        list(run_tasks(Pool(Answering(error), 1), codec.encode, [b""]))


def test_few_tasks_are_submitted_ahead_and_none_after_the_caller_stops():
    executor = Answering()
    asked = []
    results = run_tasks(Pool(executor, 2), lambda data: data, (asked.append(n) or bytes([n]) for n in range(1000)))
    next(results)
    assert len(asked) <= 10
    results.close()
    assert len(executor.submitted) <= 10


def test_caller_is_called_while_nothing_arrives(monkeypatch):
    monkeypatch.setattr("sm_profiler.executors.pools.WAITED_S", 0.01)
    future = Future()

    class Slow(Answering):
        def submit(self, fn, /, *args):
            del fn, args
            return future

    assert [
        one.data
        for one in run_tasks(Pool(Slow(), 1), bytes, [b""], waiting=lambda: future.done() or future.set_result(b"x"))
    ] == [b"x"]


def test_task_whose_worker_is_killed_is_counted_and_the_rest_goes_on(monkeypatch):
    take = LocalExecutor._take
    taken = []

    def killed(self, name):
        helper = take(self, name)
        taken.append(helper)
        if len(taken) <= 3:
            os.kill(helper.process.pid, signal.SIGKILL)
            helper.process.wait()
            helper.process.poll = lambda: None
        return helper

    monkeypatch.setattr(LocalExecutor, "_take", killed)
    with open_pool("local:1") as pool:
        found = sorted(run_tasks(pool, codec.encode, [b"a", b"b"]), key=lambda one: one.number)
    assert "3 processes in a row" in found[0].error
    assert found[1] == TaskResult(1, codec.encode(b"b"))


def test_meter_shows_files_rows_workers_and_time_left(capsys):
    with Meter(10, 4, show=True) as meter:
        meter.add(5, 1_000_000)
    shown = capsys.readouterr().err
    assert "5 of 10 files, 1,000,000 rows, 4 workers, 0 s, about 0 s left" in shown
    assert shown.endswith("\r\033[K")
    with Meter(10, 4) as meter:
        meter.add(5)
    assert not capsys.readouterr().err


def test_compare_uses_the_executor(tmp_path, capsys):
    for name in ("a", "b"):
        folder = tmp_path / name / "system" / "incremental" / "2023111422"
        folder.mkdir(parents=True)
        row = '{"Timestamp":1700000000.1,"Type":"cpu","Name":"cpu0","Value":1.0,"Dimension":"CPUUtilization","NodeId":"algo-1"}\n'
        (folder / "1700000000.algo-1.json").write_text(row)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--executor", "none"]) == 2
    assert "expected local" in capsys.readouterr().err


def test_part_that_always_kills_its_worker_ends_in_one_line(monkeypatch):
    from sm_profiler.executors import pools as tasks
    from sm_profiler.metrics.scaling import folding

    result = TaskResult(0, error="KilledWorker: Attempted to run task on 4 different workers")
    monkeypatch.setattr(tasks, "run_tasks", lambda *_, **__: (each for each in [result]))

    class Source:
        class options:  # like the attribute
            progress = False

    with pytest.raises(SourceError, match="the workers failed: KilledWorker"):
        list(folding._answers(Pool(Answering(), 1), [], [], Source()))
    assert part.fold_part is folding.fold_part
