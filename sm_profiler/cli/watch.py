"""`sm-profiler watch`: a running job in the terminal."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.command import DONE, SOURCE_HELP, newest_run

EXAMPLES = """\
examples:
  sm-profiler watch sm-profiler          the newest local run
  sm-profiler watch my-training-job      a job of SageMaker while it runs
"""


class Command:
    """Shows the verdict, where the time goes, step time and GPUs, and keeps them current; only reads."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLES
        parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)

    def run(self, options: Namespace) -> int:
        """Watch until the job has ended, or q is pressed."""
        from sm_profiler.report.build import job_name
        from sm_profiler.serve.live import LiveJob
        from sm_profiler.serve.terminal import watch

        where = newest_run(options.source, running=True)
        name = job_name(os.path.realpath(where) if os.path.isdir(where) else where)  # may be a URI
        colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        watch(LiveJob(where), name, out=sys.stdout, colour=colour)
        return DONE
