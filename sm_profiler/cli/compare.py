"""`sm-profiler compare`: two runs side by side, for people and for CI."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.command import BAD, DONE


class Command:
    """Judges both runs and says what changed."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "before", metavar="A", help="the run to compare with: a folder, an s3:// URI or a job's name"
        )
        parser.add_argument("after", metavar="B", help="the other run")
        parser.add_argument(
            "--fail-on",
            metavar="regression>5%",
            help="exit with 1 if B's steps are that much slower, and not by chance",
        )
        parser.add_argument("--out", metavar="DIR", help="also write compare.html and compare.json there")

    def run(self, options: Namespace) -> int:
        """Compare, tell, decide."""
        from sm_profiler.report import build_report
        from sm_profiler.report.compare import Limit, compare
        from sm_profiler.report.compare_page import render_comparison, terminal_comparison
        from sm_profiler.report.write import finite
        from sm_profiler.source import open_source
        from sm_profiler.storage import open_storage

        limit = Limit.parse(options.fail_on) if options.fail_on else None
        found = compare(build_report(open_source(options.before)), build_report(open_source(options.after)))
        if options.out:
            storage = open_storage(options.out)
            storage.write("compare.json", (json.dumps(finite(found.as_dict()), indent=1) + "\n").encode())
            storage.write("compare.html", render_comparison(found).encode())
        print(terminal_comparison(found))
        return BAD if limit is not None and limit.broken_by(found) else DONE
