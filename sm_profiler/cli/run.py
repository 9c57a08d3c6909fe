"""`sm-profiler run`: run a training script with the hook on while the machine is sampled."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import attrs

from sm_profiler.cli.live_view import LiveView
from sm_profiler.errors import ProfilerError
from sm_profiler.jobs.finding import last_written
from sm_profiler.limits import oom_kills
from sm_profiler.monitor.run_state import remove_state, write_state
from sm_profiler.printable import printable
from sm_profiler.run_folder import default_config, profile_folder, quoted, shown, start_monitor
from sm_profiler.settings import AUTO, CONFIG, JOB

FAILED_START_S = 60.0  # a run that fails sooner, without a step, leaves no folder
INTERRUPTED = 128 + signal.SIGINT
SIGNALS = range(129, 193)  # exit codes of a process ended by a signal, whose job may be resumed


EXAMPLES = """\
examples:
  sm-profiler run train.py --epochs 3
  sm-profiler run -m my_package.train
  sm-profiler run -- torchrun --nproc-per-node 2 train.py
"""


class Command:
    """Runs the script in a process of its own and samples the machine meanwhile."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLES
        parser.usage = (
            "sm-profiler run [--out DIR | --config FILE] [--no-monitor] [--watch] [--open] "
            "[-m MODULE | SCRIPT | -- COMMAND] [ARGS]"
        )
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--out", type=Path, metavar="DIR", help="the profile's folder (default: ./sm-profiler/<script>-<time>)"
        )
        where.add_argument(
            "--config", type=Path, metavar="FILE", help="a profilerconfig.json; the profile goes to its LocalPath"
        )
        parser.add_argument("--no-monitor", action="store_true", help="do not sample the machine")
        parser.add_argument("--watch", action="store_true", help="show verdict and step time below the script's output")
        parser.add_argument(
            "--open",
            action="store_true",
            help="serve the live page meanwhile, and open it in a browser, if there is one",
        )
        parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
        parser.add_argument(
            "words", nargs=argparse.REMAINDER, metavar="…", help="the script and its arguments, or -- and any command"
        )

    def run(self, options: Namespace) -> int:
        """Run the script and return its exit code."""
        from sm_profiler.config import load_profile
        from sm_profiler.container import rooted
        from sm_profiler.formats.trace_recovery import recover_traces
        from sm_profiler.monitor.place import settle, with_variables

        view = LiveView(options.watch, options.open)
        view.check()
        command, name = find_command(options)
        config = find_configuration(options.config, name, options.out)
        profile = load_profile(config.text)
        for problem in profile.problems:
            print(f"sm-profiler: {printable(problem)}", file=sys.stderr)
        environment = environment_of(config, name)
        profile = (settle if config.folder is None else with_variables)(profile, environment)
        root = rooted(profile.local_path)
        print(f"sm-profiler: configuration: {config.origin}", file=sys.stderr)
        print(f"sm-profiler: writing the profile to {printable(root)}", file=sys.stderr, flush=True)
        registration = start_monitor(profile, environment[JOB.name], sample=not options.no_monitor, config=config.path)
        write_state(root)
        started, kills = time.monotonic(), oom_kills()
        ended, recorded = Ended(1), False
        try:
            view.start(root)
            ended = run_command(command, environment)
        except BaseException:  # the command cannot be started, or Ctrl-C came before it was
            view.finish(recorded=False)
            raise
        finally:
            with contextlib.suppress(OSError):  # before the monitor does, which does not get the signals
                recover_traces(root, stopped=ended.stopped)
            if registration:
                registration.leave(by_itself=ended.by_itself)
            failed_start = ended.code != 0 and time.monotonic() - started < FAILED_START_S
            if config.folder and failed_start and not has_data(config.folder / "framework"):
                shutil.rmtree(config.folder, ignore_errors=True)
        try:
            if ended.by_itself and not registration and root.is_dir():
                from sm_profiler.monitor.left_profile import mark_end

                mark_end(root)
            recorded = bool(last_written(root))
            if recorded:
                write_state(root, ended.code, stopped=ended.stopped, out_of_memory=oom_kills() != kills)
                hint = f"next: sm-profiler report {quoted(shown(root))}"
            else:
                remove_state(root)
                hint = f"nothing was recorded in {printable(shown(root))}"
        except (OSError, ProfilerError) as error:  # the exit code stays the script's
            hint = f"the profile cannot be read: {printable(error)}"
        view.finish(recorded=recorded)
        print(f"sm-profiler: exit code {ended.code}; {hint}", file=sys.stderr)
        return ended.code


def find_command(options: Namespace) -> tuple[list[str], str]:
    """Return the command to run and a short name for it.

    Raises:
        ProfilerError: there is no such script, module or command.
    """
    words: list[str] = options.words
    if words[:1] == ["--"] and not options.module:
        if len(words) == 1:
            raise ProfilerError("run: no command after --")
        if shutil.which(words[1]) is None:
            raise ProfilerError(f"{words[1]}: no such command")
        return words[1:], Path(words[1]).name
    if not words:
        raise ProfilerError("run: no script given, as in sm-profiler run train.py")
    start = [sys.executable] if entry_installed() else [sys.executable, "-m", "sm_profiler.hook.launch"]
    if options.module:
        check_module(words[0])
        return [*start, "-m", *words], words[0].rpartition(".")[2]
    script = Path(words[0])
    if not script.exists():
        raise ProfilerError(f"{words[0]}: no such file")
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise ProfilerError(f"{words[0]}: a folder without __main__.py")
    return [*start, *words], script.resolve().stem


def check_module(name: str) -> None:
    """Check that `python -m name` will find a module, without importing its packages.

    Raises:
        ProfilerError: there is none.
    """
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        path: Sequence[str] | None = None
        full = ""
        for part in name.split("."):
            full = f"{full}.{part}" if full else part
            spec = next((found for finder in sys.meta_path if (found := finder.find_spec(full, path))), None)
            if spec is None:
                raise ProfilerError(f"no module {full}")
            path = spec.submodule_search_locations
        main = f"{name}.__main__"
        if path is not None and not any(finder.find_spec(main, path) for finder in sys.meta_path):
            raise ProfilerError(f"{name} is a package without __main__")
    except (ImportError, AttributeError, ValueError) as error:  # a finder rejects a strange name
        raise ProfilerError(f"no module {name}: {error}") from error
    finally:
        del sys.path[0]


@attrs.frozen
class Configuration:
    """Configuration of a run.

    Attributes:
        text: its JSON.
        origin: its file or variable, for display.
        variables: environment variables that pass it to the script.
        folder: the run's folder if it was created for this run.
        path: its file; None for a text of the environment.
    """

    text: str
    origin: str
    variables: dict[str, str]
    folder: Path | None = None
    path: Path | None = None


def find_configuration(given: Path | None, name: str, out: Path | None = None) -> Configuration:
    """Return the configuration given by option or environment, as the hook finds it, or else the default one.

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
            return Configuration(read_config(given).text, printable(given), variables, path=given)
        found = find_config(os.environ) if out is None else None
        if found is not None:
            return Configuration(found.text, printable(found.path or f"${CONFIG.name}"), {}, path=found.path)
        path = default_config(profile_folder(name, out))
        text = path.read_text("utf-8")
    except OSError as error:
        raise ProfilerError(f"{error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProfilerError(f"the configuration is not UTF-8: {error}") from error
    return Configuration(text, "default", {CONFIG.name: str(path)}, path.parent, path)


def environment_of(config: Configuration, name: str) -> dict[str, str]:
    """Return the environment of the script: the hook is on, and its processes are those of one job."""
    from sm_profiler.monitor.task import job_name

    environment = {**os.environ, AUTO.name: "1", **config.variables}
    environment.pop(JOB.name, None)  # of a run around this one
    environment[JOB.name] = job_name(environment, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
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
    forwarded: list[int] = []
    interrupts: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.append(number)
        process.send_signal(number)

    # The terminal sends Ctrl-C to the script too, which decides how to end.
    kept = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number)),
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
    }
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    code = code if code >= 0 else 128 - code
    # After SIGTERM, a spot instance may resume the job under the same prefix; Ctrl-C is the user's end of it.
    ended = code not in SIGNALS or code == INTERRUPTED
    asked = bool(forwarded or interrupts) and code != 0
    return Ended(code, ended and not forwarded, asked or code - 128 in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def has_data(folder: Path) -> bool:
    """Return whether a folder holds more than empty files, as end markers are."""
    return any(path.is_file() and path.stat().st_size for path in folder.rglob("*"))


def entry_installed() -> bool:
    """Return whether the `.pth` file is installed that loads the hook into every Python of this environment."""
    return any(Path(sysconfig.get_path(kind), "sm_profiler_auto.pth").exists() for kind in ("purelib", "platlib"))
