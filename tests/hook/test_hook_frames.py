"""Stacks of other threads."""

import gc
import sys
import threading
from pathlib import Path

import pytest

import sm_profiler.hook
from sm_profiler.hook import frames
from sm_profiler.hook.frames import outwards, stack_of


@pytest.fixture
def deep():
    """Return a thread that waits in a recursion."""
    waits, ready = threading.Event(), threading.Event()

    def recurse(depth):
        if depth:
            recurse(depth - 1)
        else:
            ready.set()
            waits.wait()

    thread = threading.Thread(target=recurse, args=(50,))
    thread.start()
    ready.wait()
    yield thread
    waits.set()
    thread.join()


def test_the_innermost_frame_is_first_and_the_outermost_last(deep):
    names = [frame.f_code.co_name for frame in stack_of(deep.ident)]
    assert names.count("recurse") == 51
    assert names.index("wait") < names.index("recurse")
    assert names[-1] == "_bootstrap"


def test_a_thread_that_does_not_run_has_no_frames(deep):
    assert stack_of(None) == []
    assert stack_of(-1) == []
    assert outwards(None) == []


def test_a_very_deep_stack_is_cut(monkeypatch):
    def recurse(depth):
        return recurse(depth - 1) if depth else outwards(sys._getframe())

    monkeypatch.setattr(frames, "MAX_FRAMES", 100)
    assert len(recurse(150)) == 100


def test_no_collection_begins_while_a_stack_is_read(deep):
    """A collection may run Python code, and with that other threads."""
    enabled = []

    def frames():
        enabled.append(gc.isenabled())
        return sys._current_frames()

    assert stack_of(deep.ident, frames)
    assert enabled == [False]
    assert gc.isenabled()


def test_stacks_of_other_threads_are_read_in_one_place():
    """`f_back` of a frame of a thread that has run on may be gone: CPython 3.11 crashes."""
    folder = Path(sm_profiler.hook.__file__).parent
    readers = [path.name for path in folder.rglob("*.py") if "_current_frames" in path.read_text(encoding="utf-8")]
    assert readers == ["frames.py"]
