"""`sm-profiler mcp`: answer coding agents over the Model Context Protocol."""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from functools import partial

from sm_profiler.cli.command import DONE
from sm_profiler.errors import ConfigError

PORT = 8642
EXAMPLES = """\
examples:
  sm-profiler mcp                                            the runs in ./sm-profiler, on stdio
  sm-profiler mcp s3://bucket/job/profiler-output my-job     these two
  claude mcp add sm-profiler -- sm-profiler mcp              in a coding agent
"""


class Command:
    """Serves read-only tools on standard input and output, or over HTTP on this machine."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLES
        parser.add_argument(
            "sources", metavar="SOURCE", nargs="*", default=["sm-profiler"],
            help="folders of runs or profiles, s3:// URIs, training jobs, account:REGION; nothing else is read (default: ./sm-profiler)",
        )  # fmt: skip
        parser.add_argument("--http", action="store_true", help="streamable HTTP on 127.0.0.1 in place of stdio")
        parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"of --http (default: {PORT}; 0: any)")
        parser.add_argument("--source-lines", action="store_true", help="show agents the text of lines of your code")

    def run(self, options: Namespace) -> int:
        """Serve until the client is gone, or Ctrl-C."""
        if not 0 <= options.port <= 65535:  # noqa: PLR2004 - ports are 16 bits
            raise ConfigError(f"--port {options.port}: expected 0 to 65535")
        from sm_profiler.exporters.mcp.finding import jobs_of, survey
        from sm_profiler.exporters.mcp.library import Library
        from sm_profiler.exporters.mcp.server import build_server

        with tempfile.TemporaryDirectory(prefix="sm-profiler-mcp-") as index:
            library = Library(partial(jobs_of, options.sources), partial(survey, options.sources, index))
            server = build_server(library, source_lines=options.source_lines)
            if options.http:
                from sm_profiler.exporters.mcp.http import serve

                serve(server, options.port, print_address)
            else:
                server.run("stdio")
        return DONE


def print_address(address: str) -> None:
    """Print the address of the server."""
    print(f"sm-profiler: MCP server at {address} (Ctrl-C stops)", file=sys.stderr, flush=True)
