"""`sm-profiler fleet`: what many jobs cost, what of that is lost, and why."""

from __future__ import annotations

import argparse
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import attrs

from sm_profiler.cli.main import BAD, DONE, add_executor, add_prices, read_json
from sm_profiler.formatting import percent
from sm_profiler.printable import printable, say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from sm_profiler.fleet.model import FleetJob, Totals

EXAMPLES = """\
examples:
  sm-profiler fleet account:us-east-1 --since 30d       all jobs of the account in the last 30 days
  sm-profiler fleet s3://bucket/jobs --group-by user,team --fail-on "waste>20%"
  sm-profiler fleet sm-profiler                         all local runs in a folder
"""
OUT = "fleet-report"
_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([hdw])")

FORMS = "waste>20%, cost>500 (dollars) or coverage<80%, several separated by commas"
_CONDITION = re.compile(r"(waste|cost|coverage)\s*([<>])\s*\$?\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(%?)")
_SIGN = {"waste": ">", "cost": ">", "coverage": "<"}
_WHOLE = 100.0  # percent


def add_fleet(parser: ArgumentParser) -> None:
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
        help="leave out jobs without this tag or other value of --group-by, such as account=nlp; may be repeated",
    )
    parser.add_argument(
        "--group-by",
        metavar="KEYS",
        type=_keys,
        help="user, account, namespace, image, instance-type, git, host, job, tuning-job, or names of tags or labels, separated by commas "
        "(default: the first six)",
    )
    add_jobs(parser)
    add_executor(parser, default="local")
    parser.add_argument(
        "--out", metavar="DIR", default=OUT, help=f"folder or s3:// URI for the report (default: ./{OUT})"
    )
    parser.add_argument(
        "--index", metavar="DIR", help="folder or s3:// URI of the index of jobs read before (default: that of --out)"
    )
    add_prices(parser, instance_type=False)
    parser.add_argument(
        "--fail-on",
        metavar="CONDITIONS",
        type=conditions_of,
        action="extend",
        default=[],
        help='exit with 1 if one is met: "waste>20%%,coverage<80%%,cost>500"; waste is a share of what was judged',
    )


def add_jobs(parser: ArgumentParser) -> None:
    """Declare the scheduler's list of jobs; `listed_jobs` reads it."""
    parser.add_argument(
        "--jobs",
        metavar="FILE",
        help="the scheduler's list of jobs, written by sacct -a -X -P -o JobIDRaw,JobName,User,Account,State,Start,Elapsed,NNodes,AllocTRES; "
        "those without a profile count as not judged",
    )


def listed_jobs(path: str | None) -> list[FleetJob] | None:
    """Read the scheduler's list of jobs; None without one."""
    from sm_profiler.fleet.scheduler import read_list

    return None if path is None else read_list(path)


def run_fleet(options: Namespace) -> int:
    prices = read_json(options.prices)
    from sm_profiler.fleet.analysis import GROUP_BY
    from sm_profiler.fleet.building import HTML, build_fleet, write_fleet
    from sm_profiler.fleet.first import first_lines
    from sm_profiler.fleet.wording import none_of, summary
    from sm_profiler.storage import open_storage

    fleet = build_fleet(
        options.sources,
        since=options.since,
        tags=dict(options.tag),
        group_by=options.group_by or GROUP_BY,
        listed=listed_jobs(options.jobs),
        executor=options.executor,
        index=open_storage(options.index or options.out),
        prices=prices,
    )
    if fleet.found:
        write_fleet(fleet, options.out)
        say(f"{printable(options.out.rstrip('/'))}/{HTML}")
    print(summary(fleet, options.group_by or (), first_lines(fleet)), flush=True)
    if not fleet.totals.jobs:
        checks = [
            text for text, given in (
                ("the names: a job's folder contains system/, framework/ or a report.json", True),
                ("the region", any(source.startswith("account:") for source in options.sources)),
                ("--since", options.since), ("--tag", options.tag),
            ) if given
        ]  # fmt: skip
        sources = printable(", ".join(options.sources))
        if fleet.found:
            say(f"{sources}: {none_of(fleet)}")
        else:
            say(f"there are no jobs in {sources}. To do: check {', '.join(checks)}")
    in_folders = not all(source.startswith("account:") for source in options.sources)
    if in_folders and options.jobs is None and any(condition.name == "coverage" for condition in options.fail_on):
        say(
            "coverage is that of jobs with a profile: folders show no others. To do: give the scheduler's list with --jobs"
        )
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


@attrs.frozen
class Condition:
    """A limit of `--fail-on`: a share for waste and coverage, dollars for cost."""

    name: str
    limit: float

    def __str__(self) -> str:
        limit = f"{self.limit:g}" if self.name == "cost" else f"{round(_WHOLE * self.limit, 6):g}%"
        return f"{self.name}{_SIGN[self.name]}{limit}"

    def value(self, totals: Totals) -> float | None:
        """Return what the limit is for; None if there is nothing that it could be checked for."""
        if self.name == "cost":
            return totals.bill_usd
        return totals.waste if self.name == "waste" else totals.coverage

    def broken_by(self, totals: Totals) -> str:
        """Return what the jobs have instead; "" if they keep the limit or what it concerns is unknown."""
        from sm_profiler.fleet.wording import money

        value = self.value(totals)
        if value is None or not (value < self.limit if self.name == "coverage" else value > self.limit):
            return ""
        return money(value) if self.name == "cost" else f"{_WHOLE * value:.3g} %"

    def unknown_for(self, totals: Totals) -> str:
        """Return why the condition could not be checked, or only for a part of the jobs; "" if it was."""
        from sm_profiler.fleet.wording import coverage

        if not totals.jobs:
            return f"{self}: there are no jobs to check; is the source right, and are profiles there?"
        if self.name == "cost" and (left := totals.jobs - totals.priced):
            return f"{self}: the bill of {left:,} of {totals.jobs:,} jobs is unknown and not counted"
        if self.value(totals) is None:
            return f"{self}: nothing is known, no job was judged"
        covered = coverage(totals)
        if self.name == "waste" and covered:
            return f"{self} was checked for what was judged. {covered}"
        if self.name == "coverage" and covered and totals.coverage is not None and self.broken_by(totals):
            counted = percent(totals.coverage)
            if f" {counted} of" not in covered:  # the summary has another share
                return f"{self}: {counted} counts jobs whose time or price is unknown as average ones. {covered}"
        return ""


def conditions_of(text: str) -> tuple[Condition, ...]:
    """Read conditions separated by commas, such as `waste>20%,coverage<80%`."""
    return tuple(_condition(part.strip()) for part in text.split(","))


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a condition: expected {FORMS}")
    name, sign, number, unit = found.groups()
    if sign != _SIGN[name]:
        raise argparse.ArgumentTypeError(
            f"{text}: {name} has {'an upper' if _SIGN[name] == '>' else 'a lower'} limit, {name}{_SIGN[name]}N"
        )
    if name == "cost":
        if unit:
            raise argparse.ArgumentTypeError(f"{text}: the cost is in dollars, without %")
        return Condition(name, float(number))
    if not unit:
        raise argparse.ArgumentTypeError(f"{text}: {name} is in percent: {name}{sign}{number}%")
    if float(number) > _WHOLE:
        raise argparse.ArgumentTypeError(f"{text}: {name} is at most 100 %")
    return Condition(name, float(number) / _WHOLE)


def _checked(conditions: Sequence[Condition], totals: Totals) -> int:
    """Print which conditions are met, and which could not be checked; return the exit code."""
    code = DONE
    for condition in conditions:
        if found := condition.broken_by(totals):
            say(f"--fail-on {condition}: {found}")
            code = BAD
        if unknown := condition.unknown_for(totals):
            say(f"--fail-on {unknown}")
            code = BAD if condition.value(totals) is None else code
    return code
