"""`sm-profiler compare`: two runs side by side, for people and for CI."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.arguments import SOURCE_HELP, newest_run
from sm_profiler.cli.command import BAD, DONE

EXAMPLE = """\
example, in CI:
  sm-profiler compare s3://bucket/main/profiler-output s3://bucket/branch/profiler-output --fail-on 'regression>5%'
"""


class Command:
    """Builds the reports of both runs and prints what changed."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLE
        parser.add_argument("before", metavar="A", help=f"the earlier run: {SOURCE_HELP}")
        parser.add_argument("after", metavar="B", help="the later run, given the same way")
        parser.add_argument(
            "--fail-on",
            metavar="regression>5%",
            help="exit with 1 if B's steps are slower by more than that, beyond random variation",
        )
        parser.add_argument("--out", metavar="DIR", help="also write compare.html and compare.json to this folder")

    def run(self, options: Namespace) -> int:
        """Compare, print, and apply the limit."""
        from sm_profiler.report import build_report
        from sm_profiler.report.compare import RegressionLimit, compare, render_comparison, terminal_comparison
        from sm_profiler.report.write import finite
        from sm_profiler.source import open_source
        from sm_profiler.storage import open_storage

        limit = RegressionLimit.parse(options.fail_on) if options.fail_on else None
        before, after = open_source(newest_run(options.before)), open_source(newest_run(options.after))
        found = compare(build_report(before), build_report(after))
        if options.out:
            storage = open_storage(options.out)
            storage.write("compare.json", (json.dumps(finite(found.as_dict()), indent=1) + "\n").encode())
            storage.write("compare.html", render_comparison(found).encode())
        print(terminal_comparison(found))
        return BAD if limit is not None and limit.is_exceeded_by(found) else DONE
