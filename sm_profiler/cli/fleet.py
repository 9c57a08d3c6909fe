"""`sm-profiler fleet`: what many jobs cost, what of that is lost, and why."""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from sm_profiler.cli.command import BAD, DONE, EXECUTOR_HELP, read_json
from sm_profiler.errors import ConfigError
from sm_profiler.printable import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from sm_profiler.fleet.conditions import Condition
    from sm_profiler.fleet.model import Totals

EXAMPLES = """\
examples:
  sm-profiler fleet account:us-east-1 --since 30d       all jobs of the account in the last 30 days
  sm-profiler fleet s3://bucket/jobs --group-by user,team --fail-on "waste>20%"
  sm-profiler fleet sm-profiler                         all local runs in a folder
"""
OUT = "fleet-report"
_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([hdw])")


class Command:
    """Finds and reads many jobs, judges those without a report, and writes one page about all of them."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLES
        parser.add_argument(
            "sources",
            metavar="SOURCE",
            nargs="+",
            help="a folder or s3:// URI that holds profiles or reports at any depth, or account:REGION",
        )
        parser.add_argument(
            "--since",
            metavar="AGE",
            type=_since,
            help="leave out jobs that started before: 12h, 30d, 4w, or a date (2026-11-01)",
        )
        parser.add_argument(
            "--tag",
            metavar="KEY=VALUE",
            type=_tag,
            action="append",
            default=[],
            help="leave out jobs without this tag; may be repeated",
        )
        parser.add_argument(
            "--group-by",
            metavar="KEYS",
            type=_keys,
            help="user, account, namespace, image, instance-type, git, host, tuning-job, or names of tags or labels, separated by commas "
            "(default: the first six)",
        )
        parser.add_argument("--executor", metavar="NAME", default="local", help=EXECUTOR_HELP)
        parser.add_argument(
            "--out", metavar="DIR", default=OUT, help=f"folder or s3:// URI for the report (default: ./{OUT})"
        )
        parser.add_argument(
            "--index",
            metavar="DIR",
            help="folder or s3:// URI of the index of jobs read before (default: that of --out)",
        )
        parser.add_argument(
            "--prices",
            type=Path,
            metavar="FILE",
            help="JSON of dollars per hour by instance type, added to the built-in table or in its place",
        )
        parser.add_argument(
            "--fail-on",
            metavar="CONDITIONS",
            type=_conditions,
            action="extend",
            default=[],
            help='exit with 1 if one is met: "waste>20%%,coverage<80%%,cost>500"; waste is a share of what was judged',
        )

    def run(self, options: Namespace) -> int:
        """Build, write and print the fleet."""
        prices = read_json(options.prices) if options.prices else None
        from sm_profiler.fleet.analysis import GROUP_BY
        from sm_profiler.fleet.building import build_fleet
        from sm_profiler.fleet.terminal import summary
        from sm_profiler.fleet.writing import HTML, write_fleet
        from sm_profiler.storage import open_storage

        fleet = build_fleet(
            options.sources,
            since=options.since,
            tags=dict(options.tag),
            group_by=options.group_by or GROUP_BY,
            executor=options.executor,
            index=open_storage(options.index or options.out),
            prices=prices,
        )
        write_fleet(fleet, options.out)
        print(f"sm-profiler: {printable(options.out.rstrip('/'))}/{HTML}", file=sys.stderr)
        print(summary(fleet), flush=True)
        return _checked(options.fail_on, fleet.totals)


def _since(text: str) -> float:
    """Return the time of an age or a date, seconds since the epoch."""
    found = _AGE.fullmatch(text)
    if found:
        return time.time() - float(found[1]) * _UNITS[found[2]]
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected 12h, 30d, 4w or a date such as 2026-11-01") from None
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()


def _tag(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text}: expected KEY=VALUE")
    return key, value


def _keys(text: str) -> list[str]:
    keys = [key.strip() for key in text.split(",")]
    if not all(keys):
        raise argparse.ArgumentTypeError(f"{text}: expected names separated by commas")
    return keys


def _conditions(text: str) -> tuple[Condition, ...]:
    from sm_profiler.fleet.conditions import conditions_of

    try:
        return conditions_of(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _checked(conditions: Sequence[Condition], totals: Totals) -> int:
    """Print which conditions are met, and which could not be checked; return the exit code."""
    code = DONE
    for condition in conditions:
        if found := condition.broken_by(totals):
            print(f"sm-profiler: --fail-on {condition.text()}: {found}", file=sys.stderr)
            code = BAD
        if unknown := condition.unknown_for(totals):
            print(f"sm-profiler: --fail-on {unknown}", file=sys.stderr)
            code = BAD if condition.has_nothing(totals) else code
    return code
