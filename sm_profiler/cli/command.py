"""Exit codes, and the arguments that several sub-commands share."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, overload

from sm_profiler.errors import ConfigError
from sm_profiler.printable import printable

if TYPE_CHECKING:
    from sm_profiler.report import JobInfo

DONE, BAD, USAGE = 0, 1, 2  # exit codes: success; the inspected thing is bad; wrong usage or unreadable input

SOURCE_HELP = "a folder (of several runs: the newest), an s3:// URI of a profiler-output, or a training job's name"

EXECUTOR_HELP = (
    "work on a long job with several processes, with the same result: local[:N], dask:local[:N] or dask:tcp://HOST:PORT"
)

MAX_BYTES = 16_000_000  # of a JSON file named on the command line


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
    from sm_profiler.jobs.finding import jobs_below, last_written
    from sm_profiler.monitor.run_state import read_state

    found = [job for job in jobs_below(Path(where)) if Path(job.where) != Path(where)]
    unfinished = [job for job in found if running and job.state == "running"]
    if unfinished:
        run = max(unfinished, key=lambda each: (each.changed, each.where)).where
        print(f"sm-profiler: following {printable(run)}", file=sys.stderr)
        return run
    times = {job.where: time for job in found if (time := last_written(Path(job.where)))}
    if not times:
        return where
    run = max(times, key=lambda each: (times[each], each))
    count = f"{len(times)} runs; reading the newest" if len(times) > 1 else "one run"
    state = read_state(Path(run))
    now = " (still running)" if state is not None and not state.is_over else ""
    print(f"sm-profiler: {printable(where)} contains {count}: {printable(run)}{now}", file=sys.stderr)
    newer = [job for job in found if job.state == "running" and job.where not in times and read_state(Path(job.where))]
    if newer:
        print(
            f"sm-profiler: {printable(max(newer, key=lambda each: each.changed).where)} is running and has no complete file "
            "yet: 'sm-profiler watch' shows it, 'sm-profiler report --follow' waits for it",
            file=sys.stderr,
        )
    return run


def priced_job(options: Namespace) -> JobInfo:
    """Return what `add_prices` declares of a job; print one line if its type has no price: the report has no money then."""
    from sm_profiler.report import JobInfo
    from sm_profiler.report.prices import Prices

    prices = read_json(options.prices)
    if options.instance_type and (problem := Prices.of(prices).unknown(options.instance_type)):
        print(f"sm-profiler: {printable(problem)}", file=sys.stderr)
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
