"""`sm-profiler run`: run a training script with the hook on while the machine is sampled."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import END_MARKERS

if TYPE_CHECKING:
    from sm_profiler.config import Profile
    from sm_profiler.monitor.start import Member

INTERVAL_MS = 500
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
        parser.usage = "sm-profiler run [--config FILE] [--no-monitor] [-m MODULE | SCRIPT | -- COMMAND] [ARGS]"
        parser.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="a profilerconfig.json; the profile goes to its LocalPath (default: ./sm-profiler/<script>-<time>)",
        )
        parser.add_argument("--no-monitor", action="store_true", help="do not sample the machine")
        parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
        parser.add_argument(
            "words", nargs=argparse.REMAINDER, metavar="…", help="the script and its arguments, or -- and any command"
        )

    def run(self, options: Namespace) -> int:
        """Run the script and return its exit code."""
        from sm_profiler.config import load_profile
        from sm_profiler.container import AUTO_VARIABLE, CONFIG_VARIABLE, rooted
        from sm_profiler.formats.trace_writer import recover_traces

        command, name = self._command(options)
        config = options.config.resolve() if options.config else default_config(name)
        try:
            profile = load_profile(config.read_text("utf-8-sig"))
        except OSError as error:
            raise ProfilerError(f"{config}: {error.strerror}") from None
        for problem in profile.problems:
            print(f"sm-profiler: {problem}", file=sys.stderr)
        root = rooted(profile.local_path)
        print(f"sm-profiler: writing the profile to {root}", file=sys.stderr, flush=True)
        environment = {**os.environ, AUTO_VARIABLE: "1", CONFIG_VARIABLE: str(config)}
        member = start_monitor(profile, name, sample=not options.no_monitor)
        code, by_itself = 1, False
        try:
            code, by_itself = self._run(command, environment)
        finally:
            if member:
                member.leave(by_itself=by_itself)
        recover_traces(root)
        if by_itself and not member:
            mark_end(root)
        print(f"sm-profiler: exit code {code}; next: sm-profiler report {shown(root)}", file=sys.stderr)
        return code

    def _command(self, options: Namespace) -> tuple[list[str], str]:
        """Return the command to run and a short name for it."""
        words: list[str] = options.words
        if words[:1] == ["--"] and not options.module:
            if len(words) == 1:
                raise ProfilerError("run: no command after --")
            return words[1:], Path(words[1]).name
        if not words:
            raise ProfilerError("run: no script given, as in sm-profiler run train.py")
        start = [sys.executable] if entry_installed() else [sys.executable, "-m", "sm_profiler.hook.launch"]
        if options.module:
            return [*start, "-m", *words], words[0].rpartition(".")[2]
        if not Path(words[0]).exists():
            raise ProfilerError(f"{words[0]}: no such file")
        return [*start, *words], Path(words[0]).stem

    def _run(self, command: list[str], environment: dict[str, str]) -> tuple[int, bool]:
        """Return the exit code, and whether the script ended by itself and not by a signal."""
        try:
            process = subprocess.Popen(command, env=environment)  # the user's own command
        except OSError as error:
            raise ProfilerError(f"{command[0]}: {error.strerror}") from None
        forwarded: list[int] = []

        def forward(number: int, _frame: FrameType | None) -> None:
            forwarded.append(number)
            process.send_signal(number)

        # The terminal sends Ctrl-C to the script too, which decides how to end.
        kept = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
        }
        try:
            code = process.wait()
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
        code = code if code >= 0 else 128 - code
        # After SIGTERM, a spot instance may resume the job under the same prefix.
        return code, code not in SIGNALS and not forwarded


def start_monitor(profile: Profile, name: str, *, sample: bool) -> Member | None:
    """Start this node's monitor, which also uploads if the profile has an S3 path, in a process of its own."""
    from sm_profiler.container import TOOLKIT_JOB_NAME_VARIABLE
    from sm_profiler.hook.monitor_launcher import task_of
    from sm_profiler.monitor.start import join
    from sm_profiler.monitor.task import job_name

    job = job_name({TOOLKIT_JOB_NAME_VARIABLE: f"{name}-{time.strftime('%Y%m%d-%H%M%S')}", **os.environ})
    task = task_of(profile, job, sample=sample)
    if profile.disabled or not (task.interval_ms or task.destination):
        return None
    try:
        member = join(task)
    except ProfilerError as error:
        print(f"sm-profiler: system metrics are off: {error}", file=sys.stderr)
        return None
    if task.destination:
        print(f"sm-profiler: uploading to {task.destination}", file=sys.stderr, flush=True)
    return member


def mark_end(root: Path) -> None:
    """Write the end markers: this profile is complete."""
    for marker in END_MARKERS:
        with contextlib.suppress(OSError):
            (root / marker).parent.mkdir(parents=True, exist_ok=True)
            (root / marker).touch()


def default_config(name: str) -> Path:
    """Write the configuration of a run without `--config` and return its path: `./sm-profiler/<name>-<time>/`.

    Operators, data loader and Python code in their default windows.  Horovod and SMDDP are left out: the hook would warn
    about libraries that the user never mentioned.
    """
    from sm_profiler.debugger import FrameworkProfile, ProfilerConfig

    folder = Path("sm-profiler", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    config = ProfilerConfig(
        system_monitor_interval_millis=INTERVAL_MS,
        framework_profile_params=FrameworkProfile(local_path=str(folder)),
    )
    request = config._to_request_dict()  # noqa: SLF001 - the SDK's name for its wire form
    for optional in ("HorovodProfilingConfig", "SMDataParallelProfilingConfig"):
        del request["ProfilingParameters"][optional]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "profilerconfig.json"
        path.write_text(json.dumps(request, indent=1))
    except OSError as error:
        raise ProfilerError(f"{folder}: {error.strerror}") from None
    return path


def entry_installed() -> bool:
    """Return whether the `.pth` file is installed that loads the hook into every Python of this environment."""
    return any(Path(sysconfig.get_path(kind), "sm_profiler_auto.pth").exists() for kind in ("purelib", "platlib"))


def shown(path: Path) -> Path:
    """Return a path relative to the current folder if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
