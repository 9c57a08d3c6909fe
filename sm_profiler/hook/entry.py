"""The hook's public API, and its installation in this process."""

from __future__ import annotations

import atexit
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import parent_process
from typing import Any

from sm_profiler.config import Profile
from sm_profiler.container import PROFILER_CONFIG, rooted
from sm_profiler.errors import ProfilerError
from sm_profiler.formats.process_end import NEVER_STARTED
from sm_profiler.formats.trace_recovery import is_recorded_since
from sm_profiler.formats.trace_writer import TraceEvent
from sm_profiler.hook import settings
from sm_profiler.hook.adapter import Collector, FrameworkAdapter, confined
from sm_profiler.hook.frameworks import FRAMEWORKS, WINDOWS, Framework, frameworks
from sm_profiler.hook.guard import attempt, pass_on, told
from sm_profiler.hook.hang import HangWatch
from sm_profiler.hook.memory import GarbageCollector, Objects
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import when_loaded
from sm_profiler.hook.process_end import Leaving, StopSignals, record_end, record_failed_start
from sm_profiler.hook.python_window import PythonStarter
from sm_profiler.hook.sampler import SAMPLER, Sampler, is_wanted
from sm_profiler.hook.scheduling import Threads
from sm_profiler.hook.session import UNSUPPORTED, Session
from sm_profiler.hook.settings import Standby, accompany
from sm_profiler.hook.steps import SCRIPT
from sm_profiler.hook.timed_calls import TimedCalls
from sm_profiler.monitor.gpu import why_missing
from sm_profiler.monitor.place import settle
from sm_profiler.monitor.task import is_own_job
from sm_profiler.printable import logger_for
from sm_profiler.settings import AUTO, HANG_SECONDS, REPORTED, misspelt
from sm_profiler.settings import SAMPLER as SAMPLER_SWITCH

logger = logger_for("sm_profiler")
_OF_EACH_RANK = (SAMPLER_SWITCH, HANG_SECONDS)  # read in each, and a wrong value is reported once
_OFF = "off"  # value of REPORTED once a process has reported why the hook is off
_installed: list[Hook] = []  # at most one
_waiting: list[Standby] = []  # at most one: the configuration may switch the hook on later
_refused: list[bool] = []  # not empty once the hook was off: the import of another framework does not ask again


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
        session, tracker = self.session, self.session.tracker
        try:
            forced = ModeKeys[mode.name]
        except Exception as error:  # not a mode: the training goes on
            pass_on(error)
            session.report_once("modes", f"set_mode takes a mode such as ModeKeys.TRAIN, not {type(mode).__name__}")
            return
        try:
            if forced is not tracker.forced_mode:
                tracker.end_rest()
                tracker.forced_mode = forced
        except Exception as error:  # fail open
            session.fail(error)

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
            tracker.claim(SCRIPT)
            tracker.begin_step(time.perf_counter_ns(), gradients=tracker.forced_mode is not ModeKeys.EVAL)
        except Exception as error:  # fail open
            session.fail(error)
        try:
            yield
        except BaseException:
            tracker.failed = tracker.number
            raise
        finally:
            try:
                tracker.end_step(time.perf_counter_ns())
            except Exception as error:  # fail open
                session.fail(error)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a span under this name in the timeline."""
        cutter = Cutter()
        text = attempt(lambda: cutter.text(_text("name", name), MAX_NAME), partial(self._leave_out, "phase"))
        if text is None:
            yield
            return
        self.session.events_cut += cutter.cut
        start = time.perf_counter_ns()
        declared = self.session.sampler.declared if self.session.sampler else []
        declared.append(text)
        try:
            yield
        finally:
            try:
                declared.pop()
                self.session.append_span(text, start, time.perf_counter_ns())
            except Exception as error:  # fail open
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
        """Record an event, as in smdebug; one with arguments of another kind is left out, and the report counts it.

        Names have at most 200 characters, and the further arguments of an event together about 4,000: longer ones are cut,
        which an ellipsis marks, and the report counts such events.

        Args:
            training_phase: row of the timeline.
            op_name: name of the event.
            phase: kind of the event: `X`, `B`, `E` or `i`.
            timestamp: seconds since the epoch, at most 31 days ago; by default now.
            duration: seconds; the event ends within the next hour.
            args: further arguments of the event.
        """
        session = self.session
        cutter = Cutter()
        make = partial(
            _event, session.timebase.now_us(), training_phase, op_name, phase, timestamp, duration, args, cutter
        )
        event = attempt(make, partial(self._leave_out, "record_trace_events"))
        if event is not None:
            session.events_cut += cutter.cut
            with session.guarded("user events"):
                session.append_event(event)

    def _leave_out(self, function: str, error: Exception) -> None:
        pass_on(error)
        self.session.leave_out(f"{function}: {told(error)}")

    def close(self) -> None:
        """End the profile; further calls do nothing."""
        with self.session.guarded("closing"):
            self.session.close()


KINDS = ("X", "B", "E", "i")  # of events of the script
MAX_NAME, MAX_ARGUMENTS = 200, 4000  # characters
CUT = "\N{HORIZONTAL ELLIPSIS}"
EARLIEST_S, LATEST_S = 31 * 86_400.0, 3600.0  # before and after now: a job takes 28 days at most


class Cutter:
    """Copies the names and arguments of an event up to a length, so that no event becomes megabytes.

    Attributes:
        cut: something was left out.
    """

    def __init__(self) -> None:
        self.cut = False
        self._left = MAX_ARGUMENTS

    def text(self, value: str, most: int) -> str:
        """Return the first characters of a text; an ellipsis replaces the rest."""
        if len(value) <= most:
            return value
        self.cut = True
        return value[: max(most, 0)] + CUT

    def copy(self, value: Any) -> Any:
        """Return an argument in the types of JSON; others become texts."""
        if isinstance(value, dict):
            return self._copy_object(value)
        if isinstance(value, (list, tuple)):
            found: list[Any] = []
            for item in value:
                if self._is_full(value, found):
                    found.append(CUT)
                    break
                found.append(self.copy(item))
            return found
        if value is None or isinstance(value, (bool, float)):
            self._left -= 8
            return value
        if isinstance(value, int):
            self._left -= value.bit_length() // 3 + 2
            return value
        return self._copy_text(str.__str__(value) if isinstance(value, str) else str(value))

    def _copy_object(self, value: dict[Any, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, item in value.items():
            if self._is_full(value, found):
                found[CUT] = CUT
                break
            found[self._copy_text(str.__str__(key)) if isinstance(key, str) else key] = self.copy(item)
        return found

    def _copy_text(self, value: str) -> str:
        kept = self.text(value, self._left)
        self._left -= len(kept) + 2
        return kept

    def _is_full(self, whole: Sized, found: Sized) -> bool:
        full = self._left <= 0 and len(found) < len(whole)
        self.cut = self.cut or full
        self._left -= 2
        return full


def _event(
    now_us: int,
    training_phase: Any,
    op_name: Any,
    kind: Any,
    timestamp: Any,
    duration: Any,
    args: dict[str, Any],
    cutter: Cutter,
) -> TraceEvent:
    """Return an event of the script.

    Raises:
        Exception: an argument is of another kind, or an object in it raises.
    """
    row = cutter.text(_text("training_phase", training_phase), MAX_NAME)
    name, kind = cutter.text(_text("op_name", op_name), MAX_NAME), _text("phase", kind)
    if kind not in KINDS:
        raise ValueError(f"phase is none of {', '.join(KINDS)}")
    start_us = now_us if timestamp is None else _microseconds("timestamp", timestamp)
    length_us = 0 if duration is None else _microseconds("duration", duration)
    if not now_us - EARLIEST_S * 1e6 <= start_us <= now_us + LATEST_S * 1e6:
        shown = f"{start_us / 1e6:.0f}, and now is {now_us / 1e6:.0f}"
        raise ValueError(f"timestamp is in seconds since the epoch, at most 31 days ago; it is {shown}")
    if not 0 <= length_us <= now_us + LATEST_S * 1e6 - start_us:
        raise ValueError(
            f"duration is in seconds, at least 0; {length_us / 1e6:.6g} s from its start on are not over yet"
        )
    return TraceEvent(row, name, start_us, length_us, _json(cutter.copy(args)) if args else "", kind)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {type(value).__name__}")
    return str.__str__(value)  # of a class derived from text, the text


def _microseconds(name: str, value: Any) -> int:
    number = float(value) * 1e6
    if not math.isfinite(number):
        raise ValueError(f"{name} is a number of seconds, not {number}")
    return int(number)


def _json(args: dict[str, Any]) -> str:
    """Return arguments as JSON, which has no NaN and no infinity: they become texts."""
    try:
        return json.dumps(args, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(args), parse_constant=str))


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
        framework: a framework that has just been imported; by default all frameworks, whenever they are imported.
    """
    if not _installed:
        if _refused and framework is not None:
            return None
        try:
            session = _start()
        except Exception as error:  # the training must start regardless
            pass_on(error)
            kind = "" if isinstance(error, (ProfilerError, OSError, ValueError)) else f"{type(error).__name__}: "
            if _first_of_node():
                logger.warning("sm-profiler: the hook is off: %s%s", kind, error)
            session = None
        if session is None:
            _refused.append(True)
            return None
        _installed.append(Hook(session))
    for one in frameworks() if framework is None else (framework,):
        when_loaded(one.module, partial(_arm, _installed[0].session, one))
    return _installed[0]


def start(profile: Profile, source: settings.ConfigText, *, here: bool = False) -> Hook:
    """Install the hook in the middle of a process.

    Args:
        profile: the profile.
        source: its text.
        here: the job begins now; what the process did before is no part of it.

    Raises:
        ProfilerError: a hook is installed already.
    """
    if _installed:
        root = _installed[0].session.root
        raise ProfilerError(f"start: a profile is being recorded already, to {root}")
    session = _start_session(profile, source)
    if here:
        session.begin_here()
    while _waiting:
        _waiting.pop().end()
    _installed.append(Hook(session))
    for one in frameworks():
        when_loaded(one.module, partial(_arm, session, one))
    return _installed[0]


def _arm(session: Session, framework: Framework) -> None:
    """Let a framework take part in a session, unless it does already."""
    with session.guarded(framework.title):  # the framework's import must succeed regardless
        if not _installed or _installed[0].session is not session or framework.module in session.armed:
            return
        known = frameworks()
        earlier = [one.module for one in known[: known.index(framework)]]
        first = not any(module in session.armed for module in earlier)
        session.armed.append(framework.module)
        session.arm(_adapter_class(session, framework)(session), first=first)


def _adapter_class(session: Session, framework: Framework) -> Callable[[Session], FrameworkAdapter]:
    module, _, name = framework.adapter.partition(":")
    if framework in FRAMEWORKS:
        found: Callable[[Session], FrameworkAdapter] = getattr(import_module(module), name)
        return found
    try:
        return confined(getattr(import_module(module), name), session.adapter_failed, session.tracker.release)
    except SystemExit as error:  # of another package's module
        raise ImportError(f"SystemExit: {error}") from error


def uninstall() -> None:
    """Close the hook and restore the framework."""
    while _waiting:
        _waiting.pop().end()
    if _installed:
        session = _installed.pop().session
        session.end(exits=False)
        for adapter in reversed(session.adapters):
            session.disarm(adapter)


def _start() -> Session | None:
    source = settings.find_config()
    if source is None:
        _report_missing_configuration()
        return None
    profile = source.profile()
    problems = [*profile.warnings, *filter(None, (misspelt(), *(one.problem() for one in _OF_EACH_RANK)))]
    if problems and _reports():
        for problem in problems:
            logger.warning("sm-profiler: %s", problem)
    if not profile.disabled:
        profile = settle(profile)
    if profile.hook_on and settings.may_be_a_tool():
        session = _start_session(profile, source)
        session.add(Joining(partial(accompany, profile, source.path)))
        return session
    accompany(profile, source.path)
    if profile.hook_on:
        return _start_session(profile, source)
    if not profile.disabled and profile.parameters:
        logger.warning("sm-profiler: the hook is off: %s", profile.off)
    if source.path is not None and not _waiting:
        logger.info("sm-profiler: the hook is off until %s asks for framework metrics: %s", source.path, profile.off)
        _wait(source)
    return None


class Joining(Collector):
    """Joins the job with the first record of a process that may never train."""

    name = "monitor"
    follows_steps = False

    def __init__(self, join: Callable[[], None]) -> None:
        self._join = join

    def start(self) -> None:
        """Start the monitor, unless it runs."""
        self._join()


def _reports() -> bool:
    """Return whether this process reports what is wrong with the configuration: once a job, not each rank and worker."""
    if settings.rank_from() not in {None, 0} or parent_process() is not None or REPORTED.text(os.environ):
        return False
    os.environ[REPORTED.name] = "1"  # for the processes that this one starts
    return True


def _first_of_node() -> bool:
    """Return whether no process of this node is known to have reported why the hook is off: not each rank does."""
    if settings.local_rank_from() not in {None, 0} or parent_process() is not None or REPORTED.text(os.environ) == _OFF:
        return False
    os.environ[REPORTED.name] = _OFF  # for the ranks that a launcher starts
    return True


def refuse(problem: str) -> None:
    """Report, once a job, why the hook is off although the environment has a word about it; a script may still start one."""
    if not _refused and _reports():
        logger.warning("sm-profiler: %s", problem)
    _refused.append(True)


def _report_missing_configuration() -> None:
    """Report that SM_PROFILER_AUTO=1 is not enough."""
    if AUTO.usable(os.environ) and _reports():
        logger.warning(
            "sm-profiler: SM_PROFILER_AUTO=1 is set, but no configuration was found, so nothing is recorded: name one by "
            "SM_PROFILER_CONFIG (JSON, a file or an s3:// address), or leave the variable out"
        )
        if problem := misspelt():
            logger.warning("sm-profiler: %s", problem)


def _wait(source: settings.ConfigText) -> None:
    """Start the hook when the file asks for it, in the folder of this job."""
    while _waiting:
        _waiting.pop().end()
    _waiting.append(Standby(source, _start_late, _record_never_started))
    _waiting[0].begin()


def _start_late(profile: Profile, source: settings.ConfigText, waited_for: str) -> None:
    profile = settle(profile)
    uninstall()
    session = start(profile, source).session
    session.tracker.join_loop()
    if waited_for:
        session.note("profiler", f"switched on while the job ran, and started when {waited_for} was over")


def _record_never_started(profile: Profile, source: settings.ConfigText, reason: str) -> None:
    """Record why there are no steps, at the end of a process in which the hook could not start."""
    session = Session(settle(profile), source=source)
    session.note("profiler", f"{NEVER_STARTED}: {reason}")
    record_end(session.root, session.source, session.describe(), session.timebase.now_us())


def _start_session(profile: Profile, source: settings.ConfigText) -> Session:
    session = Session(profile, source=source)
    session.on_retired = _wait
    missing = sorted(settings.requested_collectors(profile) - WINDOWS)
    if missing:
        logger.warning("sm-profiler: requested, but %s: %s", UNSUPPORTED, ", ".join(missing))
    if is_own_job(profile, os.environ, rooted(PROFILER_CONFIG)) and (reason := why_missing()):
        session.note("GPU metrics", reason)
    sampler = _add_sampler(session)
    session.add(
        GarbageCollector(session.append, session.work, on_collection=sampler.note_collection if sampler else None)
    )
    session.add(Threads(session.append))
    session.add(Objects(session.append, hold=lambda: session.work.holding("objects are counted")))
    calls = TimedCalls(session)
    session.add(calls)
    leaving = Leaving(partial(_leave, session, os.getpid()), session.guard.failed)
    session.add(leaving)
    session.run(leaving, leaving.install)
    stops = StopSignals(lambda: (session.root, session.source), session.describe, session.later, session.guard.failed)
    session.add(stops)
    atexit.register(_record_failed_start, session, os.getpid())
    atexit.register(stops.exit)
    watch = HangWatch(session, still_loading=stops.start_loading)
    session.add(watch)
    try:
        calls.install()
    except BaseException:
        calls.remove()
        raise
    starter = PythonStarter(session)
    session.add(starter)
    session.run(starter, partial(starter.add, before_loop=True))
    session.run(watch, watch.watch_start)
    return session


def _record_failed_start(session: Session, pid: int, code: int | None = None) -> None:
    """Record how a process ends that fails before its first step: nothing else of it is in the profile.

    A launcher fails because of what it has started, which is recorded; tools import frameworks, too.

    Args:
        code: it leaves by `os._exit` with this code.
    """
    if session.is_recording or session.closed or os.getpid() != pid or parent_process() is not None:
        return
    with session.guarded("end of the process"):
        if session.is_helper():
            return
        process = session.describe()
        if process["rank"] is None and (
            settings.may_be_a_tool() or is_recorded_since(session.root, process["process_us"] / 1e6, pid)
        ):
            return
        record_failed_start(session.root, session.source, process, session.timebase.now_us(), code=code)


def _leave(session: Session, pid: int, code: int) -> None:
    session.leave(code)
    if code:
        _record_failed_start(session, pid, code)
    settings.leaves_at_once()


def _add_sampler(session: Session) -> Sampler | None:
    if not is_wanted(session.profile):
        session.note(SAMPLER, "off")
        return None
    sampler = Sampler(
        session.append,
        session.tracker,
        session.training_thread,
        is_recording=lambda: session.is_recording,
        on_error=session.switch_off,
        work=session.work,
    )
    session.sampler = sampler
    session.add(sampler)
    session.controller.others.append(lambda: sampler.cpu_seconds)
    sampler.thrift = lambda: session.controller.share
    session.run(sampler, sampler.begin)
    return sampler
