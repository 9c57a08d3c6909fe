"""A profile on this machine, for the command `run` and for `sm_profiler.start`: its folder, configuration, monitor and command."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sm_profiler import threads
from sm_profiler.errors import ProfilerError
from sm_profiler.limits import oom_kills
from sm_profiler.printable import printable, say
from sm_profiler.settings import AUTO, CONFIG, JOB, REPORTED, misspelt

if TYPE_CHECKING:
    from sm_profiler.config import Profile
    from sm_profiler.hook.settings import ConfigText
    from sm_profiler.monitor.start import Registration

INTERVAL_MS = 500
MAX_NAME_BYTES = 150  # of a command, in the name of its folder
FAILED_START_S = 60.0  # a run that fails sooner by itself, without a step, leaves no folder
INTERRUPTED = 128 + signal.SIGINT
# Signals that are forwarded, unless they are ignored.  Not an error of this very process, nor a limit of its resources; nor
# Ctrl-C, which the script gets too: from the terminal, or with the whole process group.
FORWARDED = sorted(
    signal.valid_signals() - {
        signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGINT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE,
        signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS, signal.SIGPIPE, signal.SIGXCPU, signal.SIGXFSZ,
        signal.SIGTTIN, signal.SIGTTOU,
    }
)  # fmt: skip
GROUP_SECONDS = 0.05  # in which a signal reaches the other processes of a group, to each of which it may be sent
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NO_STEP = (
    "no training step was seen: those of PyTorch, Keras, TensorFlow and JAX are found; mark others with "
    "'with get_hook().step():', after 'from sm_profiler.hook import get_hook'"
)
NOT_WRITTEN = "no event could be written, for the reason above; the report has only what was sampled of the machine"
SIGNALS = range(129, 193)  # exit codes of a process ended by a signal, whose job may be resumed


class FolderTakenError(ProfilerError):
    """A folder for a new profile has files."""


def start_monitor(profile: Profile, job: str, *, sample: bool, config: Path | None = None) -> Registration | None:
    """Start this node's monitor, which also uploads if the profile has an S3 path, in a separate process."""
    from sm_profiler.hook.settings import task_of
    from sm_profiler.monitor.start import join

    task = task_of(profile, job, sample=sample, config=config)
    if profile.disabled or not (task.interval_ms or task.destination):
        return None
    try:
        registration = join(task)
    except ProfilerError as error:
        say(f"system metrics are off: {error}")
        return None
    if task.destination:
        say(f"uploading to {task.destination}")
    return registration


def default_config(folder: Path) -> Path:
    """Write the configuration of a run without `--config` into the folder of its profile, and return its path.

    Operators and data loader in their default windows.  cProfile is left out: it slows the steps and the imports that it
    measures, and the sampler names the same lines.  Horovod and SMDDP are left out: the hook would warn about libraries
    that the user never mentioned.
    """
    from sm_profiler.container import escaped
    from sm_profiler.debugger import FrameworkProfile, ProfilerConfig

    config = ProfilerConfig(
        system_monitor_interval_millis=INTERVAL_MS,
        framework_profile_params=FrameworkProfile(local_path=escaped(str(folder))),
    )
    request = config._to_request_dict()  # the SDK's name for its wire form
    for optional in ("PythonProfilingConfig", "HorovodProfilingConfig", "SMDataParallelProfilingConfig"):
        del request["ProfilingParameters"][optional]
    path = folder / "profilerconfig.json"
    path.write_text(json.dumps(request, indent=1))
    return path


def profile_folder(name: str, out: Path | None = None) -> Path:
    """Create and return the folder of a profile: `out`, or else `./sm-profiler/<name>-<time>/`.

    Raises:
        FolderTakenError: `out` has files: two profiles in one folder would be judged as one job.
    """
    if out is None:
        return new_folder(Path("sm-profiler").absolute(), dated(name))
    folder = out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FolderTakenError(f"{printable(out)} is not empty; a profile takes a new folder")
    return folder


def dated(name: str) -> str:
    """Return a name with the time, short enough for a folder."""
    short = name.encode("utf-8", "surrogateescape")[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    return f"{name if len(os.fsencode(name)) <= MAX_NAME_BYTES else short}-{time.strftime('%Y%m%d-%H%M%S')}"


def new_folder(parent: Path, name: str) -> Path:
    """Create and return a folder that did not exist, numbered if the name is taken."""
    from sm_profiler.monitor.place import share

    try:
        if not parent.is_dir():
            parent.mkdir(parents=True)
            share(parent)  # other users of a project's folder need it, too
    except FileExistsError:
        if not parent.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "no folder, which the profile needs; see --out", str(parent)
            ) from None
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except PermissionError as error:
            raise PermissionError(
                error.errno, "no permission to write the profile there; see --out", str(parent)
            ) from None
        return folder
    raise AssertionError


def quoted(path: Path) -> str:
    """Return a path as an argument for a shell, in one line without control characters."""
    text = str(path)
    if text.isprintable():
        return shlex.quote(text)
    plain = "".join(
        sign if sign.isprintable() and sign not in "'\\" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(sign))
        for sign in text
    )
    return f"$'{plain}'"


def shown(path: Path) -> Path:
    """Return a path relative to the current folder if it is in it."""
    try:
        return path.relative_to(Path.cwd())
    except (OSError, ValueError):  # the current folder was removed, or is another
        return path


@attrs.frozen
class Configuration:
    """Configuration of a run.

    Attributes:
        source: its text and file.
        origin: its file or variable, for display.
        variables: environment variables that pass it to the script.
        folder: the run's folder if it was created for this run.
    """

    source: ConfigText
    origin: str
    variables: dict[str, str]
    folder: Path | None = None


def find_configuration(given: Path | None, name: str, out: Path | None = None) -> Configuration:
    """Return the configuration given by option or environment, as the hook finds it, or else the default.

    Args:
        given: a file with a configuration.
        name: short name of the command.
        out: folder for the profile, which needs the default configuration.

    Raises:
        ProfilerError: it cannot be read, or the folder is not empty.
    """
    from sm_profiler.hook.settings import find_config, read_config

    try:
        if given is not None:
            variables = {CONFIG.name: str(given.resolve())}
            return Configuration(read_config(given), printable(given), variables)
        found = find_config(os.environ) if out is None else None
        if found is not None:
            return Configuration(found, printable(found.path or f"${CONFIG.name}"), {})
        path = default_config(profile_folder(name, out))
        source = read_config(path)
    except OSError as error:
        raise ProfilerError(f"{error.filename or 'the current folder'}: {error.strerror}") from error
    return Configuration(source, "default", {CONFIG.name: str(path)}, path.parent)


def environment_of(config: Configuration, name: str) -> dict[str, str]:
    """Return the environment of the script: the hook is on, and its processes are those of one job."""
    from sm_profiler.monitor.task import job_name

    environment = {**os.environ, AUTO.name: "1", **config.variables}
    environment.pop(JOB.name, None)  # of a run around this one
    environment[JOB.name] = job_name(environment, f"{dated(name)}-{os.getpid()}")
    return environment


@attrs.frozen
class Ended:
    """End of a command.

    Attributes:
        code: its exit code; 128 and the signal's number if a signal ended it.
        by_itself: it ended by itself, not by a signal.
        stopped: it was asked to stop: Ctrl-C, or SIGTERM.
    """

    code: int
    by_itself: bool = False
    stopped: bool = False


def run_command(command: list[str], environment: dict[str, str]) -> Ended:
    """Run the command, and return how it ended."""
    try:
        process = subprocess.Popen(command, env=environment)  # the user's own command
    except OSError as error:
        raise ProfilerError(f"{command[0]}: {error.strerror}") from error
    except ValueError as error:  # a null byte in an argument
        raise ProfilerError(f"{command[0]}: {error}") from error
    stopping = set[int]()
    arrived, arrives = os.pipe()
    for end in (arrived, arrives):
        os.set_blocking(end, False)
    # Not by the handlers: one whose signal arrives just before the main thread waits runs after the wait.
    wakeup = signal.set_wakeup_fd(arrives, warn_on_full_buffer=False)
    kept = {
        number: signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGINT, *FORWARDED)
        if signal.getsignal(number) is not signal.SIG_IGN  # the script ignores it, too
    }
    forwarder = threads.start(_forward, process, arrived, stopping, name="sm-profiler signals")
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.write(arrives, b"\0")
        forwarder.join()
        os.close(arrived)
        os.close(arrives)
    code = code if code >= 0 else 128 - code
    # After SIGTERM, a spot instance may resume the job under the same prefix; Ctrl-C is the user's end of it.
    ended = (code not in SIGNALS or code == INTERRUPTED) and stopping <= {signal.SIGINT}
    asked = bool(stopping) and code != 0
    return Ended(code, ended, asked or code - 128 in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def _forward(process: subprocess.Popen[bytes], arrived: int, stopping: set[int]) -> None:
    """Send the script the signals that it did not get itself, until the number 0 comes.

    Args:
        process: the script's.
        arrived: where the numbers of signals are read.
        stopping: gets those that ask the script to end.
    """
    witness, taken = _new_witness(), b""
    while 0 not in taken:
        select.select([arrived], [], [])
        taken = os.read(arrived, 1)
        if taken != b"\0":
            time.sleep(GROUP_SECONDS)
            with contextlib.suppress(BlockingIOError):
                taken += os.read(arrived, 4096)
        stopping.update({signal.SIGINT, *STOPPING}.intersection(taken))
        known = _pending(witness) if _are_together(process) else set()
        if known:
            _end(witness)
            witness = _new_witness()
        for number in taken:
            if number in FORWARDED and number not in known:
                with contextlib.suppress(OSError):  # the script's process is another user's
                    process.send_signal(number)
        if signal.SIGTSTP in taken:  # stop as well, until SIGCONT, which is forwarded
            os.kill(os.getpid(), signal.SIGSTOP)
    _end(witness)


# A signal may be sent to this process alone, or to all of its group or its job: by the terminal, by timeout, by Slurm.
# Neither its number nor its sender shows which.  So there is a witness in the group, which does nothing and blocks all
# signals: those that it got, too, are pending there.


def _new_witness() -> subprocess.Popen[bytes] | None:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    try:
        return threads.with_blocked_signals(start)  # it ends when its input does, with this process
    except OSError:  # all signals are forwarded then
        return None


def _pending(witness: subprocess.Popen[bytes] | None) -> set[int]:
    """Return the signals that the witness got."""
    try:
        lines = Path(f"/proc/{witness.pid}/status").read_text().splitlines() if witness else []
    except OSError:
        return set()
    fields = dict(line.split(":", 1) for line in lines)
    found = int(fields.get("ShdPnd", "0"), 16) | int(fields.get("SigPnd", "0"), 16)
    return {number for number in signal.valid_signals() if found >> (number - 1) & 1}


def _end(witness: subprocess.Popen[bytes] | None) -> None:
    if witness is not None and witness.stdin is not None:
        witness.stdin.close()
        witness.wait()


def _are_together(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the script is still in this process's group."""
    try:
        return os.getpgid(process.pid) == os.getpgrp()
    except OSError:  # it has ended
        return True


def run(
    command: list[str],
    config: Configuration,
    name: str,
    *,
    sample: bool = True,
    started: Callable[[Path], object] = bool,
    over: Callable[[bool], object] = bool,
) -> int:
    """Run a command with the hook on while the machine is sampled, and return its exit code.

    Args:
        command: the words of the command.
        config: the configuration, which names the folder.
        name: short name of the command.
        sample: sample the machine.
        started: called with the folder before the command starts.
        over: called after its end, with whether anything was recorded.

    Raises:
        ProfilerError: the command cannot be started, or the folder cannot be written to.
    """
    from sm_profiler.container import rooted
    from sm_profiler.formats.layout import TRACE_FOLDER
    from sm_profiler.formats.trace_recovery import recover_traces
    from sm_profiler.monitor.left_profile import mark_end
    from sm_profiler.monitor.place import settle, with_variables
    from sm_profiler.monitor.run_state import write_state
    from sm_profiler.source.open_files import last_written

    profile = config.source.profile()
    for problem in filter(None, (*profile.warnings, misspelt())):
        say(printable(problem))
    environment = {**environment_of(config, name), REPORTED.name: "1"}
    profile = (settle if config.folder is None else with_variables)(profile, environment)
    root = rooted(profile.local_path)
    say(f"configuration: {config.origin}")
    say(f"writing the profile to {printable(root)}")
    registration = start_monitor(profile, environment[JOB.name], sample=sample, config=config.source.path)
    write_state(root)
    began, kills = time.monotonic(), oom_kills()
    ended, recorded = Ended(1), False
    try:
        started(root)
        ended = run_command(command, environment)
    except BaseException:  # the command cannot be started, or Ctrl-C came before it was
        over(False)
        raise
    finally:
        with contextlib.suppress(OSError):  # before the monitor does, which does not get the signals
            recover_traces(root, stopped=ended.stopped)
        if registration:
            registration.leave(by_itself=ended.by_itself)
        # by a crash whose reason no traceback shows, or a scheduler; Ctrl-C is the user's
        by_signal = not ended.by_itself and (ended.stopped or ended.code in SIGNALS)
        failed_start = ended.code != 0 and not by_signal and time.monotonic() - began < FAILED_START_S
        if config.folder and failed_start and not has_data(config.folder / "framework"):
            shutil.rmtree(config.folder, ignore_errors=True)
    try:
        if ended.by_itself and not registration and root.is_dir():
            mark_end(root)
        recorded = bool(last_written(root)) or by_signal
        hint = _note_end(root, ended, recorded=recorded, out_of_memory=oom_kills() != kills)
    except (OSError, ProfilerError) as error:  # the exit code stays the script's
        hint = f"the profile cannot be read: {printable(error)}"
    over(recorded)
    if config.folder and recorded and ended.code == 0 and not has_data(root / "framework"):
        tried = (root / TRACE_FOLDER).is_dir()  # made with the first file of events
        say(NOT_WRITTEN if tried else NO_STEP)
    say(f"exit code {ended.code}; {hint}")
    return ended.code


def _note_end(root: Path, ended: Ended, *, recorded: bool, out_of_memory: bool) -> str:
    """Write how a run ended, if it recorded anything; return what the user has to do next."""
    from sm_profiler.monitor.run_state import remove_state, write_state

    if not recorded:
        remove_state(root)
        return f"nothing was recorded in {printable(shown(root))}"
    write_state(root, ended.code, stopped=ended.stopped, out_of_memory=out_of_memory)
    return f"next: sm-profiler report {quoted(shown(root))}"


def has_data(folder: Path) -> bool:
    """Return whether a folder holds more than empty files, as end markers are."""
    return any(path.is_file() and path.stat().st_size for path in folder.rglob("*"))
