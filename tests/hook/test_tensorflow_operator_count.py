"""The count of operators, without TensorFlow: the step may not end, and the calibration may fail or hang."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from sm_profiler.hook.own_work import Aside, OwnWork
from sm_profiler.hook.tensorflow import adapter
from sm_profiler.hook.tensorflow.adapter import Costs, OperatorCount


@pytest.fixture
def count(monkeypatch):
    launchers = SimpleNamespace(TFE_Py_FastPathExecute=max, TFE_Py_Execute=min)
    monkeypatch.setattr(adapter, "import_module", lambda _: launchers)
    loops = SimpleNamespace(thread=threading.get_ident(), ran=None)
    session = SimpleNamespace(aside=Aside(), fail=pytest.fail, work=OwnWork([].append))
    return OperatorCount(session, None, loops, SimpleNamespace(ignored=contextlib.nullcontext))


def test_a_step_that_does_not_end_is_not_counted_forever(count, monkeypatch):
    monkeypatch.setattr(adapter, "MAX_OPERATORS", 4)
    count._begin()
    for _ in range(4):
        assert count._launchers.TFE_Py_Execute(1, 2) == 1
    assert count._loops.ran is not None
    assert count._launchers.TFE_Py_FastPathExecute(1, 2) == 2
    assert count._launchers.TFE_Py_FastPathExecute is max
    assert count._launchers.TFE_Py_Execute is min
    assert count._loops.ran is None


def test_what_callbacks_and_saves_launch_is_not_the_steps(count):
    count._begin()
    launch = count._launchers.TFE_Py_Execute
    assert launch(1, 2) == 1
    count._session.aside.depth += 1
    assert launch(1, 2) == 1
    count._session.aside.leave(taken_ns=5)
    assert launch(1, 2) == 1
    assert count._count == 2
    count.stop()


def test_costs_are_measured_on_a_thread_of_their_own(count, monkeypatch):
    threads = []

    def measure(graphs):
        threads.append(threading.current_thread())
        return Costs(1.0, 2.0, 3.0 if graphs else 1.0)

    monkeypatch.setattr(count, "_measure", measure)
    assert count._calibrated(graphs=True) == Costs(1.0, 2.0, 3.0)
    assert threads[0] is not threading.current_thread()


def test_an_error_is_the_hooks_own(count, monkeypatch):
    """The session switches the collector off; a thread that ends with the error would print it."""

    def measure(graphs):
        raise LookupError(graphs)

    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    monkeypatch.setattr(count, "_measure", measure)
    with pytest.raises(LookupError):
        count._calibrated(graphs=True)
    assert not printed


def test_the_training_does_not_wait_for_one_that_hangs(count, monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr(adapter, "CALIBRATION_SECONDS", 0.01)
    monkeypatch.setattr(count, "_measure", lambda **_: goes_on.wait())
    with pytest.raises(TimeoutError):
        count._calibrated(graphs=True)
    goes_on.set()
