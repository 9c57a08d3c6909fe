"""`sm-profiler mcp`: answer coding agents over the Model Context Protocol."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from functools import partial

from sm_profiler.cli.command import DONE

EXAMPLES = """\
examples:
  sm-profiler mcp                                            the runs in ./sm-profiler, on stdio
  sm-profiler mcp s3://bucket/job/profiler-output my-job     these two
  claude mcp add sm-profiler -- sm-profiler mcp              in a coding agent
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="*", default=["sm-profiler"],
        help="folders of runs or profiles, s3:// URIs, training jobs, account:REGION; nothing else is read (default: ./sm-profiler)"
    )  # fmt: skip
    parser.add_argument("--source-lines", action="store_true", help="show agents the text of lines of your code")


def run(options: Namespace) -> int:
    from sm_profiler.exporters.mcp.server import Library, build_server, jobs_of, survey

    with tempfile.TemporaryDirectory(prefix="sm-profiler-mcp-") as index:
        library = Library(partial(jobs_of, options.sources), partial(survey, options.sources, index))
        server = build_server(library, source_lines=options.source_lines)
        server.run("stdio")
    return DONE
