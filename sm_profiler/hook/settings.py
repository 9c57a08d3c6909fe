"""The job's configuration in this process: profile, rank, the monitor of its node, and the start of a hook that was off."""

from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler import threads
from sm_profiler.config import Profile, config_from_environment, load_profile
from sm_profiler.config.api import may_exist
from sm_profiler.config.profile import COLLECTORS
from sm_profiler.container import (
    DEFAULT_PROFILER_OUTPUT,
    JOB_NAME_VARIABLE,
    PROFILER_CONFIG,
    RESOURCE_CONFIG,
    expanded,
    read_resources,
    rooted,
)
from sm_profiler.descriptors import open_regular
from sm_profiler.errors import ConfigError, ProfilerError
from sm_profiler.hook.frames import current_frames, is_library, stack_of
from sm_profiler.hook.guard import pass_on, run_bounded
from sm_profiler.hook.patches import Patches
from sm_profiler.monitor.place import settle
from sm_profiler.monitor.task import Task, destination_of, is_agent_job, job_name
from sm_profiler.printable import logger_for
from sm_profiler.settings import CONFIG, CONFIG_PATH, Setting

if TYPE_CHECKING:
    from sm_profiler.monitor.start import Registration

logger = logger_for("sm_profiler")
S3_SECONDS = 15  # the import of the framework waits no longer for a configuration on S3
_MAX_DIGITS = 9  # of a rank


@attrs.frozen
class ConfigText:
    """JSON of a profile.

    Attributes:
        text: the JSON.
        path: its file, which is read again when it changes; None if it comes from the environment or S3.
        changed: mtime of the file in nanoseconds, 0 without a file.
        place: file, variable or address of it, and what names that, for messages.
    """

    text: str
    path: Path | None = None
    changed: int = 0
    place: str = "the configuration"

    def profile(self) -> Profile:
        """Return the profile.

        Raises:
            ConfigError: the text is not a JSON object.
        """
        try:
            return load_profile(self.text)
        except ConfigError as error:
            check = f", and check it with `sm-profiler validate {self.path}`" if self.path else ""
            raise ConfigError(f"{self.place}: {error}; correct it{check}") from None

    def again(self) -> ConfigText:
        """Read the file again.

        Raises:
            ConfigError: it cannot be read.
        """
        return self if self.path is None else read_config(self.path, self.place)


def find_config(environment: Mapping[str, str] = os.environ) -> ConfigText | None:
    """Return the profile of this job, or None.

    Raises:
        ConfigError: the named file cannot be read.
        SourceError: the named s3:// address cannot be read.
        ProfilerError: a variable in its name is not set.
        TimeoutError: S3 did not answer in time.
    """
    named = config_from_environment(environment)
    if named:
        if named.lstrip().startswith("{"):
            return ConfigText(named, place=f"the JSON in {CONFIG.name}")
        named = expanded(named, environment)
        return _from_s3(named) if named.startswith("s3://") else _named_by(CONFIG, named, environment)
    path_named = CONFIG_PATH.text(environment)
    if path_named:
        return _named_by(CONFIG_PATH, path_named, environment)
    path = rooted(PROFILER_CONFIG, environment)
    return read_config(path, f"{path}, the default path") if path.is_file() else None


def _named_by(variable: Setting, named: str, environment: Mapping[str, str]) -> ConfigText:
    path = rooted(named, environment)
    return read_config(path, f"{path}, which {variable.name} names")


def read_config(path: Path, place: str = "") -> ConfigText:
    """Read a profile's file.

    Args:
        path: the file.
        place: its `ConfigText.place`; by default the path.

    Raises:
        ConfigError: it cannot be read, or is no file: a pipe would wait, and a device may have no end.
    """
    place = place or str(path)
    try:
        with open_regular(path) as file:
            return ConfigText(file.read().decode("utf-8-sig"), path, os.fstat(file.fileno()).st_mtime_ns, place)
    except OSError as error:
        todo = (
            "write it, or name another one" if isinstance(error, FileNotFoundError) else "name a file that can be read"
        )
        raise ConfigError(f"{place}: {error.strerror}; {todo}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: it is not UTF-8: {error}; save it as such") from error


def requested_collectors(profile: Profile) -> set[str]:
    """Return the collectors that the user requested by name.

    The SageMaker SDK's `FrameworkProfile` without individual configurations turns into all five collectors, in their
    default windows or in one common window.  Those that do not exist here are then not worth a message.
    """
    configs = list(profile.collectors.values())
    windows = {(config.start_step, config.num_steps, config.start_time, config.duration) for config in configs}
    if len(configs) == len(COLLECTORS) and (len(windows) == 1 or all(config.default for config in configs)):
        return set()
    return set(profile.collectors)


def rank_from(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank from the launcher's variables, or None."""
    rank = _first(environment, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SMDATAPARALLEL_RANK")
    if rank is not None:
        return rank
    # srun also sets its variables in a step of a single process, which may start ranks by itself
    return _number(environment, "SLURM_PROCID") if (_number(environment, "SLURM_STEP_NUM_TASKS") or 0) > 1 else None


def local_rank_from(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's number among the ranks of its node from the launcher's variables, or None."""
    return _first(environment, "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def world_size_from(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks of the job from the launcher's variables, or None."""
    return _first(environment, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _first(environment: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the first of these variables that has one."""
    numbers = (_number(environment, name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def _from_s3(uri: str) -> ConfigText:
    """Read a configuration from S3; an endpoint that does not answer must not hold up the training."""
    prefix, _, key = uri.rpartition("/")
    if not key or not may_exist(prefix):
        raise ConfigError(f"{CONFIG.name}: {uri} names no object: s3://BUCKET/KEY is needed")

    def read() -> str:
        from sm_profiler.storage import open_storage  # loads boto3

        return open_storage(prefix).read(key).decode()

    text = run_bounded(read, S3_SECONDS, f"no answer from S3 for {S3_SECONDS} seconds: {uri}")
    return ConfigText(text, place=f"{uri}, which {CONFIG.name} names")


# The monitor and uploader, for jobs without a managed service that does both.

# Programs that import frameworks and never train: installers and builds, and torch.compile's workers.
TOOLS = frozenset({"-c", "pip", "setup.py", "_in_process.py", "compile_worker", "collect_env.py"})


def may_be_a_tool(arguments: Sequence[str] | None = None) -> bool:
    """Return whether this process may never train: it is known for other work, or runs a line of code.

    Other processes join their job at once: the system metrics of a start, before the first step, are wanted, and so is
    the end of a script that crashes in it.
    """
    words = getattr(sys, "argv", None) if arguments is None else arguments
    path = Path(words[0] if words else "")
    return (path.parent.name if path.name == "__main__.py" else path.name) in TOOLS


_joined: list[Registration] = []


def accompany(profile: Profile, config: Path | None = None) -> None:
    """Register this process with the monitor of its node, and start the monitor if necessary, in a job of the agent backend.

    Args:
        profile: the profile.
        config: its file, which may switch the sampling off while the job runs.
    """
    if _joined or multiprocessing.parent_process() is not None:
        return  # the parent of a worker is registered already
    if not is_agent_job(profile, os.environ, rooted(PROFILER_CONFIG)):
        return
    from sm_profiler.monitor.start import join  # not needed in jobs of the service

    task = task_of(profile, job_name(os.environ), config=config)
    try:
        registration = join(task)
    except Exception as error:  # the training and its hook continue regardless
        pass_on(error)
        logger.warning("sm-profiler: no system metrics and no uploads: %s", error)
        return
    _joined.append(registration)
    unnamed = task.root == str(rooted(DEFAULT_PROFILER_OUTPUT).absolute())  # no news if it was configured
    if not task.destination and unnamed and registration.monitor is not None and not rooted(RESOURCE_CONFIG).exists():
        logger.warning("sm-profiler: the configuration has no S3OutputPath: the profile stays in %s", task.root)
    atexit.register(registration.leave)  # runs after the hook's exit function, which is registered later


def leaves_at_once() -> None:
    """Leave the job, as this process ends by `os._exit`."""
    for registration in _joined:
        registration.leave_at_once()


def task_of(profile: Profile, job: str, *, sample: bool = True, config: Path | None = None) -> Task:
    """Return the task of this node's monitor for a profile."""
    resources = read_resources()
    return Task(
        root=str(rooted(profile.local_path).absolute()),
        node=resources.node,
        interval_ms=profile.interval_ms if sample else 0,
        destination=destination_of(profile.s3_output_path, job) if profile.s3_output_path else "",
        kms_key_id=profile.kms_key_id or "",
        first=resources.is_first_node,
        interface=resources.interface,
        job=os.environ.get(JOB_NAME_VARIABLE, ""),
        config=str(config.absolute()) if config is not None else "",
        hook=profile.hook_on,
    )


# The start of a hook that was off.

SECONDS = 2.0  # between two looks at the file's time
AGAIN_SECONDS = 0.05
PATIENCE = 10.0  # seconds without a moment to start, after which the log has a line
BUSY = (
    "torch",
    "keras",
    "tensorflow",
    "jax",
    "flax",
    "optax",
    "importlib",
)  # their tables must not change while they run
# Of these, what runs the script's code, or waits on a thread of the framework: nothing there reads what changes, and the
# functions that are replaced are those of later calls.
HARMLESS = (
    "keras.src.trainers.data_adapters",
    "tensorflow.python.autograph.impl.api",
    "tensorflow.python.data",
    "tensorflow.python.ops.script_ops",
    "torch._inductor.compile_worker",
    "torch._tensor",
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.multiprocessing",
    "torch.utils._contextlib",
    "torch.utils.data",
)
_HARMLESS = tuple(f"{module}." for module in HARMLESS)
NO_MOMENT = "the framework's code ran at every moment until the process ended"
# What loops call in each step.  A loop may call frameworks only, and then the interpreter hardly ever makes a pending call
# outside of them.
ENTRIES = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__"),
    ("torch.autograd", "", "backward"),
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "__next__"),
    ("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function", "__call__"),
)
_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # the interpreter holds no reference to pending calls


class Standby:
    """Looks at a configuration file from a thread, and starts the hook on the main thread, outside of the frameworks.

    Args:
        source: the configuration, by which the hook is off.
        start: installs the hook with a profile; gets what it had to wait for, or "".
        missed: takes the profile if the process ends before there was a moment to start, and the reason.
    """

    def __init__(
        self,
        source: ConfigText,
        start: Callable[[Profile, ConfigText, str], object],
        missed: Callable[[Profile, ConfigText, str], object] = lambda *_: None,
    ) -> None:
        self._source = source
        self._start = start
        self._missed = missed
        self._waits_for = ""  # what runs while there is no moment to start
        self._ended = threading.Event()
        self._asked = threading.Event()
        self._call = _PENDING(self._on_main_thread)
        self._ready: tuple[Profile, ConfigText] | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()  # of the entries
        self._entries = Patches(pass_on)

    def begin(self) -> None:
        """Start the thread."""
        _kept.append(self._call)
        atexit.register(self._at_exit)
        threads.start(self._run, name="sm-profiler standby")

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        if self._lock.acquire(timeout=1):  # in a forked child, a thread that is gone may hold it
            self._entries.remove()
            self._lock.release()

    def _run(self) -> None:
        while not self._ended.wait(SECONDS):
            changed = self.changed()
            if changed is None:
                continue
            _accompany_late(*changed)
            if not changed[0].hook_on:
                continue
            self._ready = changed
            since = time.monotonic()
            with self._lock:
                self._watch_entries()
            self._asked.set()
            while not self._ended.wait(AGAIN_SECONDS):
                if self._asked.is_set():
                    self._asked.clear()
                    if ctypes.PyDLL(None).Py_AddPendingCall(self._call, None) != 0:
                        self._asked.set()
                if not self._waits_for and time.monotonic() - since > PATIENCE:
                    self._waits_for = running_call()
                    logger.warning(
                        "sm-profiler: the configuration changed: the hook waits to start: %s runs", self._waits_for
                    )

    def changed(self) -> tuple[Profile, ConfigText] | None:
        """Return the configuration if it has changed and the profiler is on now."""
        path = self._source.path
        try:
            if path is None or path.stat().st_mtime_ns == self._source.changed:
                return None
            self._source = self._source.again()
            profile = self._source.profile()
        except (OSError, ValueError):  # half a file; the next look reads it again
            return None
        return None if profile.disabled else (profile, self._source)

    def _watch_entries(self) -> None:
        """Try again with each call of what loops call; an attribute is replaced at once, so any code may run."""
        for module, kind, name in ENTRIES:
            owner: Any = sys.modules.get(module)
            owner = getattr(owner, kind, None) if kind else owner
            if owner is not None and not self._ended.is_set():
                self._entries.replace(owner, name, partial(self._at_entry, owner, name))

    def _at_entry(self, owner: Any, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def enters(*args: Any, **kwargs: Any) -> Any:
            try:
                started = threads.is_main() and self._starts()
            except Exception as error:  # fail open
                pass_on(error)
                logger.warning("sm-profiler: the hook is off: %s", error)
                started = False
            return (getattr(owner, name) if started else original)(*args, **kwargs)

        enters._torchdynamo_disable = True  # type: ignore[attr-defined]  # breaks a graph without a warning
        return enters

    def _on_main_thread(self, _: Any = None) -> int:
        """Start the hook unless a framework runs, between two instructions of the main thread."""
        try:
            self._starts()
        except Exception as error:  # no caller could handle it, and the training continues
            logger.warning("sm-profiler: the hook is off: %s", error)
        self._asked.set()
        return 0

    def _starts(self) -> bool:
        """Start the hook unless a framework runs; return whether it was started."""
        if self._ready is None or self._ended.is_set() or os.getpid() != self._pid or in_framework():
            return False
        self.end()
        self._start(*self._ready, self._waits_for)
        logger.warning("sm-profiler: the configuration changed: the hook has started, and counts the steps that begin from here on")  # fmt: skip
        return True

    def _at_exit(self) -> None:
        """Report that there was no moment to start."""
        ready = self._ready
        if ready is None or self._ended.is_set() or os.getpid() != self._pid:
            return
        if multiprocessing.parent_process() is not None:  # which reports it
            return
        self.end()
        reason = f"{self._waits_for} ran until the process ended" if self._waits_for else NO_MOMENT
        logger.warning("sm-profiler: the configuration changed, but the hook did not start: %s", reason)
        with suppress(Exception):  # the report of a job that ends
            self._missed(*ready, reason)


def _accompany_late(profile: Profile, source: ConfigText) -> None:
    """Start the monitor of a job that began without one, since the profiler was disabled."""
    try:
        accompany(settle(profile), source.path)
    except ProfilerError as error:  # no folder; the hook reports it, too
        logger.warning("sm-profiler: no system metrics and no uploads: %s", error)


def in_framework() -> bool:
    """Return whether any thread of the script runs code of a framework that may read what the start of the hook changes."""
    return any(
        is_busy(str(frame.f_globals.get("__name__", "")))
        for ident in current_frames()
        if not threads.is_own(ident)
        for frame in stack_of(ident)
    )


def running_call() -> str:
    """Return the framework's function that the script has called, such as `keras fit()`; else the line that it is at."""
    stack = stack_of(threading.main_thread().ident)
    for frame in reversed(stack):
        module = str(frame.f_globals.get("__name__", ""))
        if is_busy(module) and not module.endswith("traceback_utils"):  # the wrapper of all that scripts call in Keras
            return f"{module.partition('.')[0]} {frame.f_code.co_name}()"
    # a call that returns to no line of Python for long, such as a sleep
    own = next((frame for frame in stack if not is_library(frame.f_code.co_filename)), None)
    return f"line {own.f_lineno} of {os.path.basename(own.f_code.co_filename)}" if own is not None else "the script"


def is_busy(module: str) -> bool:
    """Return whether the hook must not start while code of this module runs."""
    return module.partition(".")[0] in BUSY and not f"{module}.".startswith(_HARMLESS)
