"""The window of a framework's profiler: it stops once, on the thread that it must, and never in a forked child."""

import gc
import os
import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sm_profiler.hook.detailed import SESSION, DetailedWindow, Profiler
from sm_profiler.hook.pytorch import detailed as pytorch_detailed
from sm_profiler.hook.pytorch.detailed import TEARDOWN, TEARDOWN_NS


class Running:
    """A framework's session."""


class Fake(Profiler):
    """Counts how often it stops."""

    framework = "jax"

    def __init__(self):
        self.module = SimpleNamespace(**{SESSION: Running})
        self.entry = self.module, SESSION
        self.stopped, self.folders, self.error = [], [], None

    def is_busy(self):
        return False

    def start(self, folder):
        self.folders.append(folder)
        return Running()

    def stop(self, session):
        self.stopped.append(session)
        if self.error is not None:
            raise self.error
        return lambda path: path.write_bytes(b"")


@pytest.fixture
def profiler():
    return Fake()


@pytest.fixture
def window(profiler):
    tasks = []
    session = SimpleNamespace(
        work=SimpleNamespace(doing=lambda *_: nullcontext()),
        timebase=SimpleNamespace(now_us=lambda: 1),
        tracker=SimpleNamespace(number=0),
        schedule=SimpleNamespace(end=lambda _: None),
        guard=SimpleNamespace(failed=lambda *_: None, warn=lambda _: None),
        guarded=lambda _: nullcontext(),
        note=lambda *_: None,
        later=tasks.append,
        tasks=tasks,
    )
    window = DetailedWindow(session, profiler)
    window.enter(3)
    return window


def test_threads_that_stop_it_at_the_same_time_stop_it_once(window, profiler):
    gate = threading.Barrier(8)

    def leave():
        gate.wait()
        window.leave(-1)

    threads = [threading.Thread(target=leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    window.failed()
    assert len(profiler.stopped) == 1
    assert getattr(profiler.module, SESSION) is Running


def test_the_script_may_profile_on_a_thread_of_its_own(window, profiler):
    thread = threading.Thread(target=getattr(profiler.module, SESSION))
    thread.start()
    thread.join()
    assert (len(profiler.stopped), window.is_open) == (1, False)
    assert getattr(profiler.module, SESSION) is Running


def test_the_scripts_session_starts_only_after_the_windows_has_stopped(window, profiler):
    stops, goes_on, order = threading.Event(), threading.Event(), []

    class Scripts:
        def __init__(self):
            order.append("script starts")

    def stop(_session):
        stops.set()
        goes_on.wait(60)
        order.append("window stopped")
        return lambda path: path.write_bytes(b"")

    profiler.stop = stop
    window._patches.remove()
    setattr(profiler.module, SESSION, Scripts)
    window._watch()
    starts = getattr(profiler.module, SESSION)  # looked up by the script before the window ends
    leaving = threading.Thread(target=window.leave, args=(-1,))
    leaving.start()
    assert stops.wait(60)
    script = threading.Thread(target=starts)
    script.start()
    script.join(0.2)  # it must not get further, however long this takes
    goes_on.set()
    leaving.join()
    script.join()
    assert order == ["window stopped", "script starts"]
    assert getattr(profiler.module, SESSION) is Scripts


def on_thread(action, *args):
    thread = threading.Thread(target=action, args=args)
    thread.start()
    thread.join()


def test_a_session_of_a_thread_is_stopped_on_it_alone(window, profiler):
    """Stopped elsewhere, torch's has nothing to export, and exporting that crashes."""
    profiler.is_of_thread = True
    on_thread(window.leave, 5)
    assert (profiler.stopped, window.is_open) == ([], True)
    on_thread(window.step_begins, 6, None)
    assert (profiler.stopped, window.is_open) == ([], True)
    window.step_begins(7, None)
    assert (len(profiler.stopped), window.is_open) == (1, False)


def test_a_session_ends_with_its_thread(window, profiler):
    window.leave(4)
    profiler.is_of_thread = True

    def trains():
        window.enter(8)
        window.thread_ends()

    on_thread(trains)
    assert (len(profiler.stopped), window.is_open) == (2, False)


@pytest.mark.parametrize("end", ["leave", "step_begins", "failed", "finish"])
def test_a_session_whose_thread_is_gone_is_kept_and_never_stopped(window, profiler, end):
    window.leave(4)
    profiler.is_of_thread = True
    on_thread(window.enter, 8)
    running = weakref.ref(window._running)
    window._is_asked = True
    {
        "leave": lambda: window.leave(9),
        "step_begins": lambda: window.step_begins(9, None),
        "failed": window.failed,
        "finish": window.finish,
    }[end]()
    gc.collect()
    assert running() is not None
    assert (len(profiler.stopped), window.is_open) == (1, False)
    assert not profiler.folders[-1].exists()


def test_a_forked_child_neither_stops_nor_frees_its_parents_profiler(window, profiler):
    running = weakref.ref(window._running)
    window.forked()
    gc.collect()
    assert running() is not None
    window.leave(-1)
    window.failed()
    assert (profiler.stopped, window.is_open) == ([], False)


def test_a_profiler_that_cannot_be_stopped_leaves_no_folder(window, profiler):
    profiler.error = RuntimeError("no session")
    with pytest.raises(RuntimeError):
        window.leave(-1)
    assert not profiler.folders[0].exists()
    assert window._session.tasks == []
    window.leave(-1)


@pytest.mark.parametrize(
    ("cuda", "set_by_script", "during"),
    [("12.6", None, "1"), ("13.0", "0", "0"), ("12.4", None, None), (None, None, None)],
)
def test_what_keeps_launches_slow_is_detached_at_the_end_of_a_window(monkeypatch, cuda, set_by_script, during):
    monkeypatch.delenv(TEARDOWN, raising=False)
    if set_by_script is not None:
        monkeypatch.setenv(TEARDOWN, set_by_script)
    now = iter([0, TEARDOWN_NS // 2, 2 * TEARDOWN_NS])
    monkeypatch.setattr(pytorch_detailed, "perf_counter_ns", lambda: next(now))
    profile = SimpleNamespace(_prepare_trace=None)
    torch = SimpleNamespace(
        version=SimpleNamespace(cuda=cuda), autograd=SimpleNamespace(profiler=SimpleNamespace(profile=profile))
    )
    profiler = pytorch_detailed.TorchProfiler(None, torch, None, None)
    profiler.detach()
    assert os.environ.get(TEARDOWN) == during
    profiler.beat()
    assert os.environ.get(TEARDOWN) == during  # the first call of CUDA may come later
    profiler.beat()
    assert os.environ.get(TEARDOWN) == set_by_script


def test_only_a_window_that_ran_to_its_end_is_detached(window, profiler):
    profiler.detach = lambda: profiler.stopped.append("detached")
    window.leave(-1)  # the script starts to profile, or training ends
    assert "detached" not in profiler.stopped
    window.enter(4)
    window.leave(5)
    assert profiler.stopped[1] == "detached"
