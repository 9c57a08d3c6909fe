"""`sm-profiler watch`: a running job in the terminal."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.command import DONE, add_source, has_colours, newest_run

EXAMPLES = """\
examples:
  sm-profiler watch sm-profiler          the newest local run
  sm-profiler watch my-training-job      a job of SageMaker while it runs
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_source(parser)


def run(options: Namespace) -> int:
    from sm_profiler.report.build import job_name
    from sm_profiler.serve.live import LiveJob
    from sm_profiler.serve.terminal import watch

    where = newest_run(options.source, running=True)
    name = job_name(os.path.realpath(where) if os.path.isdir(where) else where)  # may be a URI
    watch(LiveJob(where), name, out=sys.stdout, colour=has_colours(sys.stdout))
    return DONE
