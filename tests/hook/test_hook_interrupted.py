"""Exceptions of the script that come while the detailed window is prepared, opened or closed."""

import dis
import gc
import signal
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from sm_profiler.hook.detailed import DetailedWindow
from sm_profiler.hook.pytorch.detailed import ScriptProfilers, TorchProfiler, severity_level

PLACES = ("/sm_profiler/threads.py", "/hook/detailed.py", "/pytorch/detailed.py")
# After these instructions Python runs them, and at the start of a function.
CALLS = {number for name, number in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD"))}


class OutOfTimeError(Exception):
    """A time limit of the script."""


class Interrupt:
    """Raises at the n-th place at which a handler of a signal may run."""

    def __init__(self, at):
        self.left, self.last = at, None

    def __call__(self, frame, event, _arg):
        if not frame.f_code.co_filename.endswith(PLACES):
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self.last = None
            self.count()
        elif event == "opcode":
            if self.last == frame:
                self.count()
            self.last = frame if frame.f_code.co_code[frame.f_lasti] in CALLS else None
        return self

    def count(self):
        self.left -= 1
        if self.left == 0:
            raise OutOfTimeError


def interrupted(action, at):
    """Call an action, and return whether it was interrupted."""
    before = sys.gettrace()
    sys.settrace(interrupt := Interrupt(at))
    try:
        action()
    except OutOfTimeError:
        return True
    finally:
        sys.settrace(before)
    return interrupt.left <= 0


@pytest.fixture
def window():
    warnings = []
    session = SimpleNamespace(
        work=SimpleNamespace(doing=lambda *_: nullcontext()),
        timebase=SimpleNamespace(now_us=lambda: 1),
        tracker=SimpleNamespace(number=0),
        schedule=SimpleNamespace(end=lambda _: None),
        guard=SimpleNamespace(failed=lambda *_: None, warn=warnings.append),
        guarded=lambda _: nullcontext(),
        note=lambda *_: None,
        later=lambda _: None,
        warnings=warnings,
    )
    forwards = SimpleNamespace(compiled=False, models=lambda: [torch.nn.Linear(2, 2)])
    window = DetailedWindow(session, TorchProfiler(session, torch, forwards, ScriptProfilers(torch)))
    window.prepare()
    return window


def whole(window):
    window._prepared = False
    window.prepare()
    window.enter(1)
    torch.ones(2).sum()
    window.leave(-1)


def test_no_profiler_runs_on_when_an_exception_of_the_script_interrupts_the_window(window):
    prepare = torch.autograd.profiler.profile._prepare_trace
    level, mask, at = severity_level(torch), signal.pthread_sigmask(signal.SIG_BLOCK, ()), 1
    value = level.value if level is not None else None
    while interrupted(lambda: whole(window), at):
        if window.is_open:  # as the schedule does
            window.failed()
        gc.collect()
        assert not torch.autograd._profiler_enabled(), at
        assert not getattr(torch.autograd.profiler, "_is_profiler_enabled", False), at
        assert torch.autograd.profiler.profile._prepare_trace is prepare, at
        assert level is None or level.value == value, at
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask, at
        assert window._session.warnings == []
        at += 12  # of over a thousand places
    assert at > 100
