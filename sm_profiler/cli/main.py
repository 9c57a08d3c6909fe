"""Parse the command line, run the sub-command, and turn errors into one line and an exit code; arguments that several share."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, overload

from sm_profiler._lazy import install_hint
from sm_profiler._version import __version__
from sm_profiler.errors import ConfigError, ProfilerError
from sm_profiler.printable import ASCII, printable, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm_profiler.report import JobInfo

DONE, BAD, USAGE = 0, 1, 2  # exit codes: success; the inspected thing is bad; wrong usage or unreadable input

SOURCE_HELP = "a folder (of several runs: the newest), an s3:// URI of a profiler-output, or a training job's name"

EXECUTOR_HELP = (
    "work on a long job with several processes, with the same result: local[:N], dask:local[:N] or dask:tcp://HOST:PORT"
)

MAX_BYTES = 16_000_000  # of a JSON file named on the command line

STDERR = 2  # the number of the last standard stream
INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + number of the signal, as shells report it
# name → module, help; the module has the functions `add_<name>`, which declares the arguments, and `run_<name>`
COMMANDS = {
    "run": ("run", "profile a training script on this machine, without changing it"),
    "report": ("report", "find out why a run was slow: verdict, rules, HTML report"),
    "try-loader": ("try_loader", "try other settings of a script's own DataLoader, without training"),
    "serve": ("serve", "show running jobs in the browser: the report, kept current"),
    "watch": ("serve", "show a running job in the terminal"),
    "compare": ("compare", "compare two runs, for people and for CI"),
    "fleet": ("fleet", "find out which of many jobs waste money, and on what"),
    "merge-timeline": ("profiles", "merge all traces of a job into a single file for Perfetto or chrome://tracing"),
    "compact": ("profiles", "keep a profile as Parquet: a twentieth of the bytes of a long job, for any query engine"),
    "monitor": ("monitor", "sample this machine's metrics until stopped"),
    "upload": ("profiles", "upload a profile that was left behind on this machine"),
    "validate": ("settings", "explain what a profiler configuration does, or what is wrong with it"),
    "settings": ("settings", "list every setting with its present value and where it comes from"),
    "local": ("local", "start a SageMaker and S3 endpoint on this machine that really runs jobs"),
    "demo": ("local", "watch the whole loop on this machine: train, profile, evaluate, report"),
    "deploy": ("rules", "build the rule image and push it to your registry"),
    "export": ("export", "send the verdict and metrics of a job to chat, SNS, EventBridge or CloudWatch"),
    "mcp": ("export", "answer coding agents about your jobs, over the Model Context Protocol"),
    "rules": ("rules", "run the rules on a training job, finished or running"),
}
EPILOG = """\
start here:
  sm-profiler run train.py             profile a script on this machine
  sm-profiler report sm-profiler       why was it slow?
  sm-profiler demo                     watch the whole loop, no AWS account needed

exit codes: 0 success; 1 a problem was found (validate, settings; compare, report and fleet with --fail-on);
2 wrong usage or unreadable input; 130 interrupted; 141 output closed early.
run exits with the script's own code.
"""


def add_source(parser: ArgumentParser) -> None:
    """Declare the profile that a command reads; see `newest_run`."""
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)


def add_executor(parser: ArgumentParser, default: str | None = None) -> None:
    """Declare where a long job is read."""
    parser.add_argument("--executor", metavar="NAME", default=default, help=EXECUTOR_HELP)


def add_prices(parser: ArgumentParser, *, instance_type: bool = True) -> None:
    """Declare prices, and the instance type of a single job; `read_json` reads them."""
    if instance_type:
        parser.add_argument(
            "--instance-type", metavar="TYPE", help="the job's instance type, to estimate the lost money"
        )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE",
        help="JSON of dollars per hour by instance type, added to the built-in table or in its place",
    )  # fmt: skip


def newest_run(where: str, *, running: bool = False) -> str:
    """Return the newest run in a folder of runs and name it on standard error; anything else is returned unchanged.

    Args:
        where: the source as named on the command line.
        running: prefer a run that has not ended, even if it has recorded nothing yet.
    """
    from sm_profiler.source.opening import given

    where = given(where)
    if "://" in where or not Path(where).is_dir():
        return where
    from sm_profiler.jobs.finding import jobs_below
    from sm_profiler.monitor.run_state import read_state
    from sm_profiler.source.open_files import last_written

    found = [job for job in jobs_below(Path(where)) if Path(job.where) != Path(where)]
    unfinished = [job for job in found if running and job.state == "running"]
    if unfinished:
        run = max(unfinished, key=lambda each: (each.changed, each.where)).where
        say(f"following {printable(run)}")
        return run
    times = {
        job.where: time for job in found if (time := last_written(Path(job.where), whole=job.state == "running"))
    }  # files that are open are read once their run has ended
    if not times:
        return where
    run = max(times, key=lambda each: (times[each], each))
    count = f"{len(times)} runs; reading the newest" if len(times) > 1 else "one run"
    state = read_state(Path(run))
    now = " (still running)" if state is not None and not state.is_over else ""
    say(f"{printable(where)} contains {count}: {printable(run)}{now}")
    newer = [job for job in found if job.state == "running" and job.where not in times and read_state(Path(job.where))]
    if newer:
        say(
            f"{printable(max(newer, key=lambda each: each.changed).where)} is running and has no complete file "
            "yet: 'sm-profiler watch' shows it, 'sm-profiler report --follow' waits for it"
        )
    return run


def priced_job(options: Namespace) -> JobInfo:
    """Return what `add_prices` declares of a job; print one line if its type has no price: the report has no money then."""
    from sm_profiler.report import JobInfo
    from sm_profiler.report.prices import Prices

    prices = read_json(options.prices)
    if options.instance_type and (problem := Prices.of(prices).unknown(options.instance_type)):
        say(printable(problem))
    return JobInfo(instance_type=options.instance_type, prices=prices)


def has_colours(out: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and its user wants them."""
    return out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


@overload
def read_json(path: str | Path) -> dict[str, Any]: ...
@overload
def read_json(path: str | Path | None) -> dict[str, Any] | None: ...
def read_json(path: str | Path | None) -> dict[str, Any] | None:
    """Read a JSON object from a UTF-8 file named on the command line; `-` is standard input. None if none is named."""
    if path is None:
        return None
    if str(path) == "-" and sys.stdin is None:
        raise ConfigError("standard input is closed")
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        found = json.loads(data.decode("utf-8-sig")) if len(data) <= MAX_BYTES else None
    except OSError as error:
        if str(path).lstrip()[:1] == "{":
            raise ConfigError(
                "a file is expected, not JSON: write it to a file, or pipe it into a command with -"
            ) from None
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES // 1_000_000} MB")
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(found).__name__}")
    return found


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line; sub-commands use it too."""

    def error(self, message: str) -> NoReturn:
        """Exit with the code for wrong usage."""
        self.exit(USAGE, f"{self.prog}: {printable(message)} (see {self.prog} --help)\n")

    def unknown_arguments(self, unknown: Sequence[str]) -> NoReturn:
        """Exit, with a suggestion if an option looks mistyped."""
        near = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def build_parser(chosen: str | None) -> tuple[Parser, Parser | None, Callable[[argparse.Namespace], int] | None]:
    """Build the parser and that of the chosen sub-command, and return them with the function that runs it.

    Only the module of that sub-command is imported, so that `--help` is instant.
    """
    parser = Parser(
        prog="sm-profiler",
        description="Why is my training job slow, and what do I do about it?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sm-profiler {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    chosen_parser: Parser | None = None
    command = None
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            loaded, function = import_module(f"sm_profiler.cli.{module}"), name.replace("-", "_")
            getattr(loaded, f"add_{function}")(sub)
            chosen_parser, command = sub, getattr(loaded, f"run_{function}")
    return parser, chosen_parser, command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; a user's mistake never ends in a traceback."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may not be UTF-8, and terminals may be ASCII
            stream.reconfigure(errors=ASCII)
    try:
        try:
            return run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except ProfilerError as error:
        return fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "sm_profiler":
            raise
        words = sys.argv[1:] if arguments is None else arguments
        command = next((word for word in words if not word.startswith("-")), "")
        return fail(
            f"this command needs {error.name}: {install_hint(error.name, command) or f'pip install {error.name}'}"
        )
    except BrokenPipeError:  # the reader (`| head`) has closed its end
        discard_output()
        return BROKEN_PIPE
    except OSError as error:
        discard_output()
        return fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return INTERRUPTED


def open_closed_streams() -> None:
    """Open the standard streams that were closed (`>&-`), so that no file gets their number and printing works."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(STDERR - 1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", encoding="utf-8", closefd=False)


def run(words: list[str]) -> int:
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser, chosen_parser, command = build_parser(chosen)
    if command is None and chosen is not None and words[0] == chosen:
        near = difflib.get_close_matches(chosen, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        parser.exit(USAGE, f"sm-profiler: no command {printable(chosen)}; {hint}\n")
    options, unknown = parser.parse_known_args(words)
    if unknown:
        (chosen_parser or parser).unknown_arguments(unknown)
    if command is None:
        parser.error(f"no command given; commands: {', '.join(COMMANDS)}")
    return command(options)


def fail(message: str) -> int:
    """Print one line on standard error and return the exit code."""
    say(printable(message))
    return USAGE


def discard_output() -> None:
    """Drop what is still buffered for standard output, which cannot be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
