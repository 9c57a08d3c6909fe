"""torch.profiler, for the detailed window, with a span for each submodule's forward."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
from _thread import get_ident
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import FORWARD_MODULE
from sm_profiler.hook.convert import KINETO
from sm_profiler.hook.detailed import Profiler
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.pytorch.forward import add_hooks

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sm_profiler.hook.pytorch.forward import Forwards
    from sm_profiler.hook.session import Session


# Kineto, the library below torch.profiler.  Recent versions print `USDT:… profiler_start` to standard error whenever a
# profiler starts or stops; a detailed window would add such lines to the training's output, and to its FailureReason.
# Its first start leaves a thread that waits on a condition variable.  A forked child has the variable but not the thread,
# and the variable's destructor, which runs when the child exits, waits for the thread for ever.
#
# CUPTI, from which it has the kernels, stays attached to the process after a profile and makes each launch slower for the
# rest of the training, unless this variable has Kineto detach it, in the first call of CUDA after the profile.  With CUDA
# before 12.6, that crashes programs that use CUDA graphs.  A profile that starts before it is detached loses its kernels,
# so the variable is set for the end of the window only; Kineto reads it once more when CUPTI is detached.

TEARDOWN = "TEARDOWN_CUPTI"
TEARDOWN_SINCE = (12, 6)
TEARDOWN_NS = 1_000_000_000  # after the window, for the first call of CUDA

LEVEL = "_ZN9libkineto6Logger14severityLevel_E"  # libkineto::Logger::severityLevel_
QUIET = 99
MAX_MODULES = 2000
INHERITED = "this process was forked while the profiler of its parent was on"


def exit_without_destructors() -> None:
    """Let this process, a forked child, exit without running the destructors of C++ libraries, as workers of multiprocessing do.

    Python's own exit comes before: its exit functions, and the flushing of its files.  C's files are flushed here.  The exit
    code is that of the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.on_exit(library["_exit"], None)  # called with the exit code; the last to be registered is called first
        library["__cxa_atexit"](library.fflush, None, None)


def severity_level(torch: Any) -> ctypes.c_int | None:
    """Return Kineto's severity level, below which it logs nothing; None in builds that do not export it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))  # loaded already
        return ctypes.c_int.in_dll(library, LEVEL)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def quiet(torch: Any) -> Iterator[None]:
    """Suppress Kineto's log inside the block; profilers of the script log as ever."""
    level = severity_level(torch)
    if level is None:
        yield
        return
    owner, before, patches = torch.autograd.profiler.profile, level.value, Patches(pass_on)
    prepare = owner._prepare_trace  # it initialises Kineto, which sets the level

    def _prepare_trace(*args: Any, **kwargs: Any) -> Any:
        nonlocal before
        level.value = before
        try:
            return prepare(*args, **kwargs)
        finally:
            before, level.value = level.value, QUIET

    try:
        patches.put(owner, "_prepare_trace", _prepare_trace)
        level.value = QUIET
        yield
    finally:
        level.value = before
        patches.remove()


class ScriptProfilers:
    """Sees the script's profilers through the functions of C++ that each of them calls, for the whole run.

    torch reports a profiler that is prepared, but not started yet, as disabled.  Kineto has a single session, though: a
    profiler that starts or stops meanwhile takes it away, and torch crashes when the script's profiler stops.

    Attributes:
        make_way: stops the window's profiler, and keeps it from starting inside the block.
    """

    def __init__(self, torch: Any) -> None:
        self.make_way: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self._torch = torch
        self._patches = Patches(pass_on)
        self._threads: set[int] = set()  # that prepared or started a profiler, and have not stopped it
        self._own = 0  # thread on which the window's profiler starts or stops
        self._searched = False

    def watch(self) -> None:
        """Wrap the functions, which are called whenever a profiler starts or stops, and at no other time."""
        autograd = self._torch.autograd
        for owner in (autograd, autograd.profiler, getattr(autograd, "profiler_legacy", None)):
            for name in ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy"):
                self._patches.replace(owner, name, self._wrap_start)
            for name in ("_disable_profiler", "_disable_profiler_legacy"):
                self._patches.replace(owner, name, self._wrap_stop)

    def remove(self) -> None:
        """Restore the functions."""
        self._patches.remove()

    def any(self) -> bool:
        """Return whether the script has prepared or started a profiler that it has not stopped."""
        if not self._searched:  # some may be older than the hook
            self._searched = True
            kind = self._torch.autograd.profiler.profile
            if any(_is_unfinished(found) for found in gc.get_referrers(kind) if type(found) is kind):
                self._threads.add(0)
        return bool(self._threads or self._torch.autograd._profiler_enabled())  # torch has no public function for it

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Let the window's profiler start or stop in the block, on this thread."""
        self._own = get_ident()
        try:
            yield
        finally:
            self._own = 0

    def _wrap_start(self, original: Any) -> Any:
        @functools.wraps(original)
        def starts(*args: Any, **kwargs: Any) -> Any:
            if self._own == (thread := get_ident()):
                return original(*args, **kwargs)
            with self.make_way():
                self._threads.add(thread)
                return original(*args, **kwargs)

        return starts

    def _wrap_stop(self, original: Any) -> Any:
        @functools.wraps(original)
        def stops(*args: Any, **kwargs: Any) -> Any:
            if self._own == (thread := get_ident()):
                return original(*args, **kwargs)
            with self.make_way():  # a script may stop what it has not started: that must not be the window's profiler
                try:
                    return original(*args, **kwargs)
                finally:
                    self._threads -= {thread, 0}

        return stops


def _is_unfinished(profiler: Any) -> bool:
    """Return whether a profiler of torch was prepared, and not stopped since."""
    state = vars(profiler)
    return bool(state.get("entered")) and state.get("kineto_results") is None


def _cuda_version(torch: Any) -> tuple[int, ...]:
    """Return the version of CUDA that torch was built with; empty if it was built without."""
    return tuple(int(part) for part in (torch.version.cuda or "").split(".") if part.isdecimal())


class TorchProfiler(Profiler):
    """Profiles operators and kernels, and times the submodules of the models."""

    framework = "pytorch"
    trace = KINETO
    is_of_thread = True

    def __init__(self, session: Session, torch: Any, forwards: Forwards, scripts: ScriptProfilers) -> None:
        self._session = session
        self._torch = torch
        self._forwards = forwards
        self._scripts = scripts
        self._started = False  # at least once
        self._inherited = False
        self._handles: list[Any] = []
        self._detached_ns: int | None = None  # when the variable was set

    def is_busy(self) -> bool:
        """Return whether the script profiles, or is about to."""
        return self._scripts.any()

    def obstacle(self) -> str:
        """Return why the profiler cannot start."""
        return INHERITED if self._inherited else super().obstacle()

    def start(self, folder: Path) -> Any:
        """Start profiling."""
        kinds = self._torch.profiler.ProfilerActivity
        on_gpu = self._torch.cuda.is_available() and self._torch.cuda.is_initialized()
        profiler = self._torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if on_gpu else [kinds.CPU])
        if not self._started:
            with contextlib.suppress(ImportError):  # torch would discard an exception of the script during this import
                import_module("torch.profiler._cupti_monitor")
        self._started = True
        with self._scripts.own(), quiet(self._torch):
            profiler.start()
        return profiler

    def opened(self) -> None:
        """Add hooks for the spans of submodules, unless a model is compiled: hooks would compile it again."""
        if self._forwards.compiled:
            self._session.note("submodules", "left out: the model is compiled")
            return
        tracker, starts = self._session.tracker, dict[int, list[int]]()

        def before(module: Any, _args: Any) -> None:
            if tracker.forward_key:
                starts.setdefault(id(module), []).append(perf_counter_ns())

        def make_after(name: str) -> Callable[[Any, Any, Any], None]:
            def after(module: Any, _args: Any, _output: Any) -> None:
                began = starts.get(id(module))
                if began:
                    tracker.append((FORWARD_MODULE, name, began.pop(), perf_counter_ns(), tracker.number, None))

            return after

        for root in self._forwards.models():
            for count, (name, module) in enumerate(self._torch.nn.Module.named_modules(root)):
                if name and count < MAX_MODULES:
                    self._handles += add_hooks(module, self._torch.nn.Module, before, make_after(name))

    def stop(self, session: Any) -> Callable[[Path], object]:
        """Stop profiling; return what writes the trace."""
        self._remove_hooks()
        with self._scripts.own(), quiet(self._torch):
            session.stop()
        return lambda path: session.export_chrome_trace(str(path))

    def detach(self) -> None:
        """Have Kineto detach CUPTI, unless the script, or torch for it, has decided about that."""
        if TEARDOWN not in os.environ and _cuda_version(self._torch) >= TEARDOWN_SINCE:
            self._detached_ns = perf_counter_ns()
            os.environ[TEARDOWN] = "1"

    def beat(self) -> None:
        """Remove the variable, for the sake of the script's profiles and of processes that it starts."""
        if self._detached_ns is not None and perf_counter_ns() - self._detached_ns > TEARDOWN_NS:
            self._detached_ns = None
            os.environ.pop(TEARDOWN, None)

    def abandon(self) -> None:
        """Stop profiling on this thread: torch's session may not have been started, or may have stopped."""
        profiler = self._torch.autograd.profiler
        if self._torch.autograd._profiler_enabled():  # torch has no public function for it
            with self._scripts.own(), quiet(self._torch):
                self._torch.autograd._disable_profiler()  # torch has no public function for it
        if hasattr(profiler, "_run_on_profiler_stop"):
            profiler._run_on_profiler_stop()
        self._remove_hooks()

    def forked(self, session: Any) -> None:
        """Let the child run without the parent's profiler."""
        if self._started:
            exit_without_destructors()
        self._inherited = self._inherited or session is not None
        if session is not None:  # it would record the child's operators for as long as the child lives
            self._torch.autograd._enable_record_function(False)  # torch has no public function for it
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
