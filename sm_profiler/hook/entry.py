"""The hook's public API, and its installation in this process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from sm_profiler.config import Profile, load_profile
from sm_profiler.errors import ProfilerError
from sm_profiler.formats.trace_writer import TraceEvent
from sm_profiler.hook import settings
from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.frameworks import FRAMEWORKS, Framework
from sm_profiler.hook.garbage import GarbageCollector
from sm_profiler.hook.hang import HangWatch
from sm_profiler.hook.horovod_collector import HOROVOD, add_horovod
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.monitor_launcher import accompany
from sm_profiler.hook.objects import Objects
from sm_profiler.hook.python_collector import PYTHON, PythonStarter
from sm_profiler.hook.sampler import SAMPLER, Sampler, is_wanted
from sm_profiler.hook.session import UNSUPPORTED, Session
from sm_profiler.hook.threads import Threads
from sm_profiler.hook.timed_calls import TimedCalls
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")
COMMON = frozenset({PYTHON, HOROVOD})  # collectors that need nothing of the framework
_installed: list[Hook] = []  # at most one


class Hook:
    """The hook of one training process: what a script may call.

    Created by `Hook.create_from_config()`, or when the framework is imported with SM_PROFILER_AUTO=1.

    Attributes:
        session: the profiling behind it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    def create_from_config(cls) -> Hook | None:
        """Return the hook that the job's configuration asks for, installed; None if profiling is off.

        A hook that is installed already is returned as it is.
        """
        return get_hook()

    def set_mode(self, mode: ModeKeys) -> None:
        """Count the next steps under this mode, whether or not gradients are enabled."""
        self.session.tracker.forced_mode = ModeKeys[mode.name]

    def register_module(self, module: Any) -> None:
        """Do nothing; accepted for compatibility with smdebug, since models are detected when they run."""

    def register_loss(self, loss: Any) -> None:
        """Do nothing; accepted for compatibility with smdebug."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark one step of a loop that is not detected; from the first use on, only marked steps count."""
        session, tracker = self.session, self.session.tracker
        if session.quiet:
            yield
            return
        try:
            tracker.manual = True
            tracker.begin_step(time.perf_counter_ns(), gradients=tracker.forced_mode is not ModeKeys.EVAL)
        except Exception as error:  # noqa: BLE001 - fail open
            session.fail(error)
        try:
            yield
        finally:
            try:
                tracker.end_step(time.perf_counter_ns())
            except Exception as error:  # noqa: BLE001 - fail open
                session.fail(error)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a span under this name in the timeline."""
        start = time.perf_counter_ns()
        declared = self.session.sampler.declared if self.session.sampler else []
        declared.append(str(name))
        try:
            yield
        finally:
            try:
                declared.pop()
                self.session.append_span(name, start, time.perf_counter_ns())
            except Exception as error:  # noqa: BLE001 - fail open
                self.session.fail(error)

    def record_trace_events(
        self,
        training_phase: str = "",
        op_name: str = "",
        phase: str = "X",
        timestamp: float | None = None,
        duration: float = 0.0,
        **args: Any,
    ) -> None:
        """Record an event, as in smdebug.

        Args:
            training_phase: row of the timeline.
            op_name: name of the event.
            phase: kind of the event: `X`, `B`, `E` or `i`.
            timestamp: seconds since the epoch; by default now.
            duration: seconds.
            args: further arguments of the event.
        """
        try:
            session = self.session
            start_us = session.timebase.now_us() if timestamp is None else int(timestamp * 1e6)
            text = json.dumps(args, default=str) if args else ""
            event = TraceEvent(training_phase, op_name, start_us, int((duration or 0) * 1e6), text, phase)
            session.append_event(event)
        except Exception as error:  # noqa: BLE001 - fail open
            self.session.guard.failed("user events", error)

    def close(self) -> None:
        """End the profile; further calls do nothing."""
        self.session.close()


def get_hook(*, create: bool = True) -> Hook | None:
    """Return this process's hook, or None if profiling is off.

    Args:
        create: install the hook if the configuration asks for one and none is installed yet.
    """
    if _installed:
        return _installed[0]
    return install() if create else None


def install(framework: Framework | None = None) -> Hook | None:
    """Install the hook that the job's configuration asks for; return None if it is off.  Never raises.

    Args:
        framework: the framework to profile; by default the first that is imported, or PyTorch.
    """
    if not _installed:
        try:
            session = _start(framework)
        except (ProfilerError, OSError, ValueError) as error:
            logger.warning("sm-profiler: the hook is off: %s", error)
            return None
        except Exception as error:  # noqa: BLE001 - the training must start regardless
            logger.warning("sm-profiler: the hook is off: %s: %s", type(error).__name__, error)
            return None
        if session is None:
            return None
        _installed.append(Hook(session))
    return _installed[0]


def uninstall() -> None:
    """Close the hook and restore the framework."""
    if _installed:
        session = _installed.pop().session
        session.end()
        session.adapter.remove()


def _start(framework: Framework | None) -> Session | None:
    source = settings.find_config()
    if source is None:
        return None
    if framework is None:
        framework = next((one for one in FRAMEWORKS if one.module in sys.modules), FRAMEWORKS[0])
    if not framework.adapter:
        _report_unsupported(framework)
        return None
    profile = load_profile(source.text)
    for problem in profile.problems:
        logger.warning("sm-profiler: %s", problem)
    accompany(profile)
    if profile.hook_on:
        return _start_session(profile, source, framework)
    if not profile.disabled and profile.parameters:
        logger.warning("sm-profiler: the hook is off: %s", profile.off)
    return None


def _start_session(profile: Profile, source: settings.ConfigText, framework: Framework) -> Session:
    module, _, name = framework.adapter.partition(":")
    make_adapter: Callable[[Session], FrameworkAdapter] = getattr(import_module(module), name)
    session = Session(profile, make_adapter, source)
    missing = sorted(settings.requested_collectors(profile) - session.adapter.collectors - COMMON)
    if missing:
        logger.warning("sm-profiler: requested, but %s: %s", UNSUPPORTED, ", ".join(missing))
    sampler = _add_sampler(session)
    session.add(
        GarbageCollector(session.append, session.work, on_collection=sampler.note_collection if sampler else None)
    )
    session.add(Threads(session.append))
    session.add(Objects(session.append, work=lambda: session.work.doing("objects are counted")))
    calls = TimedCalls(session)
    session.add(calls)
    session.add(HangWatch(session))
    try:
        session.adapter.install()
        calls.install()
    except BaseException:
        session.adapter.remove()
        calls.remove()
        raise
    with session.guarded(HOROVOD):
        add_horovod(session)
    starter = PythonStarter(session)
    session.add(starter)
    session.run(starter, partial(starter.add, before_loop=True))
    return session


def _add_sampler(session: Session) -> Sampler | None:
    if not is_wanted(session.profile):
        session.note(SAMPLER, "off")
        return None
    sampler = Sampler(
        session.append,
        session.tracker,
        session.adapter.training_thread,
        is_recording=lambda: session.is_recording,
        on_error=session.switch_off,
        work=session.work.unrecorded,
    )
    session.sampler = sampler
    session.add(sampler)
    session.controller.others.append(lambda: sampler.cpu_seconds)
    session.run(sampler, sampler.begin)
    return sampler


def _report_unsupported(framework: Framework) -> None:
    if not any(one.adapter and one.module in sys.modules for one in FRAMEWORKS):
        logger.warning("sm-profiler: this version does not profile %s; system metrics are recorded", framework.title)
