"""`sm-profiler rules`: the rules on a finished or running job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


class Command:
    """`run` is what the rule container starts."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
        run = actions.add_parser("run", help="evaluate a rule as the environment says; what the rule image starts")
        run.add_argument("--follow", action="store_true", help="wait for more until the job is over")
        run.add_argument("--compat", choices=["service"], help="the managed service's numbers, its faults included")

    def run(self, options: Namespace) -> int:
        """Do it; returns the exit code."""
        from sm_profiler.report.container import make_folds, write_for_runner
        from sm_profiler.rules.runner import main

        words = ["--follow"] * options.follow + (["--compat", options.compat] if options.compat else [])
        return main(words, write_report=write_for_runner, make_folds=make_folds)
