"""`sm-profiler run`: a training script with the hook on and the machine sampled, no change to the script."""

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
SIGNALS = range(129, 193)  # exit codes that tell of a signal, after which a job may be taken up again


class Command:
    """Runs the script as a process of its own and samples the machine beside it."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = "sm-profiler run [--config FILE] [--no-monitor] [-m MODULE | SCRIPT | -- COMMAND] [ARGS]"
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="a profilerconfig.json; its LocalPath gets the profile"
        )
        parser.add_argument("--no-monitor", action="store_true", help="do not sample the machine")
        parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
        parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="the script, or -- and any command")

    def run(self, options: Namespace) -> int:
        """Run it; the exit code is the script's own."""
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
        print(f"sm-profiler: profile under {root}", file=sys.stderr, flush=True)
        environment = {**os.environ, AUTO_VARIABLE: "1", CONFIG_VARIABLE: str(config)}
        beside = start_beside(profile, name, sample=not options.no_monitor)
        code, by_itself = 1, False
        try:
            code, by_itself = self._run(command, environment)
        finally:
            if beside:
                beside.leave(by_itself=by_itself)
        recover_traces(root)
        if by_itself and not beside:
            mark_end(root)
        print(f"sm-profiler: ended with {code}; sm-profiler report {shown(root)}", file=sys.stderr)
        return code

    def _command(self, options: Namespace) -> tuple[list[str], str]:
        """The command to run and a short name for it."""
        words: list[str] = options.words
        if words[:1] == ["--"] and not options.module:
            if len(words) == 1:
                raise ProfilerError("run: a command is missing after --")
            return words[1:], Path(words[1]).name
        if not words:
            raise ProfilerError("run: which script? (sm-profiler run train.py)")
        start = [sys.executable] if entry_installed() else [sys.executable, "-m", "sm_profiler.hook.launch"]
        if options.module:
            return [*start, "-m", *words], words[0].rpartition(".")[2]
        if not Path(words[0]).exists():
            raise ProfilerError(f"{words[0]}: no such file")
        return [*start, *words], Path(words[0]).stem

    def _run(self, command: list[str], environment: dict[str, str]) -> tuple[int, bool]:
        """The exit code, and whether the script came to its end by itself."""
        try:
            process = subprocess.Popen(command, env=environment)  # the user's own command
        except OSError as error:
            raise ProfilerError(f"{command[0]}: {error.strerror}") from None
        forwarded: list[int] = []

        def forward(number: int, _frame: FrameType | None) -> None:
            forwarded.append(number)
            process.send_signal(number)

        # Ctrl-C reaches the script by itself (one terminal); it decides how to end, and so do we.
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
        # After SIGTERM a spot instance may take the job up again under the same prefix.
        return code, code not in SIGNALS and not forwarded


def start_beside(profile: Profile, name: str, *, sample: bool) -> Member | None:
    """Start this node's monitor, and uploader where the profile names a place on S3, as a process of its own."""
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
        print(f"sm-profiler: the machine is not sampled: {error}", file=sys.stderr)
        return None
    if task.destination:
        print(f"sm-profiler: uploaded to {task.destination}", file=sys.stderr, flush=True)
    return member


def mark_end(root: Path) -> None:
    """Say that nothing more will come into this profile."""
    for marker in END_MARKERS:
        with contextlib.suppress(OSError):
            (root / marker).parent.mkdir(parents=True, exist_ok=True)
            (root / marker).touch()


def default_config(name: str) -> Path:
    """The configuration for a run without one, which writes under `./sm-profiler/<name>-<time>/`.

    Operators, data loader and Python code in their default windows; not the timelines of Horovod and SMDDP: who has
    asked for nothing needs no word on their absence.
    """
    from sm_profiler.debugger import FrameworkProfile, ProfilerConfig

    folder = Path("sm-profiler", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    config = ProfilerConfig(
        system_monitor_interval_millis=INTERVAL_MS,
        framework_profile_params=FrameworkProfile(local_path=str(folder)),
    )
    request = config._to_request_dict()  # noqa: SLF001 - the SDK's name for its wire form
    for unasked in ("HorovodProfilingConfig", "SMDataParallelProfilingConfig"):
        del request["ProfilingParameters"][unasked]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "profilerconfig.json"
        path.write_text(json.dumps(request, indent=1))
    except OSError as error:
        raise ProfilerError(f"{folder}: {error.strerror}") from None
    return path


def entry_installed() -> bool:
    """Whether the `.pth` file brings the hook into every Python of this environment."""
    return any(Path(sysconfig.get_path(kind), "sm_profiler_auto.pth").exists() for kind in ("purelib", "platlib"))


def shown(path: Path) -> Path:
    """A path as short as it can be said from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
