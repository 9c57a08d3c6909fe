"""Exceptions of the script that pass through the hook's frames reach the script; the hook's own do not."""

import ctypes
import functools
import json
import signal
import threading
import time
from itertools import chain
from types import SimpleNamespace

import pytest

from sm_profiler import threads
from sm_profiler.hook import guard
from sm_profiler.hook.guard import Guard, is_foreign, pass_on
from sm_profiler.hook.memory import GarbageCollector
from sm_profiler.hook.own_work import OwnWork


class OutOfTimeError(Exception):
    """A time limit of the script."""


def handler(_number, _frame):
    raise OutOfTimeError("too long")


def spin():
    """Run until an exception comes."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


class Handler:
    def __call__(self, number, _frame):
        raise OutOfTimeError(number)

    def method(self, number, _frame):
        raise TimeoutError(f"signal {number}")  # an OSError


def wrapped(*args, **_):
    return handler(*args)


HANDLERS = [handler, Handler(), Handler().method, functools.partial(wrapped)]


@pytest.fixture
def on_signal():
    """Install a handler of SIGUSR1 for a test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda one: signal.signal(signal.SIGUSR1, one)
    signal.signal(signal.SIGUSR1, before)


def work(library=None):
    """Be the hook at work, when a signal arrives."""
    guard = Guard()
    try:
        signal.raise_signal(signal.SIGUSR1) if library is None else library()
        for _ in range(100):
            pass
    except Exception as error:
        guard.failed("collector", error)
    return guard.failures


@pytest.mark.parametrize("one", HANDLERS)
def test_what_a_signal_handler_raises_reaches_the_script(on_signal, one):
    on_signal(one)
    with pytest.raises((OutOfTimeError, TimeoutError)):
        work()


HOOK = """
import signal
def collect(arrives, guard, action=None, name=""):
    try:
        if action is not None:
            action()
        elif name == "chain":
            arrives.session.tracker.end()
        elif name:
            getattr(arrives, name)
        else:
            signal.raise_signal(signal.SIGUSR1)
            for _ in range(100):
                pass
    except Exception as error:
        guard.failed("collector", error)
    return guard.failures
"""
collect = {}
exec(compile(HOOK, guard.__file__, "exec"), collect)  # noqa: S102 - code of the hook, called by a script
collect = collect["collect"]


def deletes(_number, frame):
    del frame
    raise OutOfTimeError


def goes_outwards(_number, frame):
    while frame:
        frame = frame.f_back
    raise OutOfTimeError


def only_once(_number, frame):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    frame = None
    raise OutOfTimeError(frame)


@pytest.mark.parametrize("one", [deletes, goes_outwards, only_once, *HANDLERS])
def test_a_handler_that_replaces_its_argument_reaches_the_script(on_signal, one):
    on_signal(one)
    guard.find_handlers()  # once a second
    with pytest.raises((OutOfTimeError, TimeoutError)):
        collect(None, Guard())


class Property:
    """An object of the script."""

    @property
    def size(self):
        raise OutOfTimeError


def generates():
    yield 1 // 0


def test_what_the_hook_calls_of_the_script_stays_with_the_hook():
    def named_otherwise():
        raise OutOfTimeError

    assert collect(Property(), Guard(), name="size")
    assert collect(None, Guard(), named_otherwise)
    session = SimpleNamespace(tracker=SimpleNamespace(end=named_otherwise))
    assert collect(SimpleNamespace(session=session), Guard(), name="chain")
    assert collect(None, Guard(), functools.partial(named_otherwise))
    assert collect(None, Guard(), functools.partial(next, generates()))


def test_a_handler_that_interrupts_a_library_reaches_the_script(on_signal):
    on_signal(handler)
    decoder = json.JSONDecoder(object_hook=lambda _: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(OutOfTimeError):
        work(lambda: decoder.decode("{}"))


def test_what_another_thread_sets_reaches_the_script():
    guard, began = Guard(), threading.Event()

    def interrupt(ident):
        began.wait()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(OutOfTimeError))

    def hook():
        try:
            began.set()
            spin()
        except Exception as error:
            guard.failed("collector", error)

    threading.Thread(target=interrupt, args=(threading.get_ident(),)).start()
    with pytest.raises(OutOfTimeError):
        hook()
    assert not guard.failures


class Odd:
    """An object of the script."""

    def __len__(self):
        raise OutOfTimeError

    def __eq__(self, other):
        raise ValueError("compared")

    __hash__ = None


@pytest.mark.parametrize(
    "action",
    [
        lambda: len(Odd()),
        lambda: Odd() == 1,
        lambda: {}["missing"],
        lambda: next(iter(())),
        lambda: json.loads("{"),
        lambda: open("/nonexistent"),  # noqa: SIM115 - an OSError of C
    ],
)
def test_errors_that_the_hook_caused_stay_with_the_hook(action):
    assert work(action)


def test_our_threads_keep_what_they_raise(on_signal):
    on_signal(handler)
    with pytest.raises(OutOfTimeError) as found:
        signal.raise_signal(signal.SIGUSR1)
    answers = []
    threads.start(lambda: answers.append(is_foreign(found.value)), name="sm-profiler").join()
    assert answers == [False]


def test_an_error_without_a_traceback_is_none_of_the_scripts():
    pass_on(ValueError())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutOfTimeError("too long")])
@pytest.mark.parametrize("phase", ["start", "stop"])
def test_an_interrupt_in_the_callback_of_the_garbage_collector_is_raised_later(on_signal, error, phase):
    """Python ignores what such a callback raises."""

    def clock():
        signal.raise_signal(signal.SIGUSR1)
        return 0

    def raises(_number, _frame):
        raise error

    on_signal(raises)
    collector = GarbageCollector([].append, OwnWork([].append), clock)

    def collect():
        collector._callback(phase, {"generation": 0})
        spin()

    with pytest.raises(type(error)) as found:
        collect()
    assert found.value is error


def test_a_signal_that_is_pending_when_the_callback_begins_is_not_lost(on_signal):
    """It arrives while C collects: the first code that Python runs after that is the callback's."""
    on_signal(handler)
    callback = GarbageCollector([].append, OwnWork([].append))._callback
    done = []

    def collect():
        done.extend(
            chain(map(ctypes.pythonapi.PyErr_SetInterruptEx, [int(signal.SIGUSR1)]), map(callback, ["stop"], [{}]))
        )
        spin()

    with pytest.raises(OutOfTimeError):
        collect()
    assert len(done) == 2  # the callback returned
