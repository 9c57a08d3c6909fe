"""`sm-profiler local`: the endpoint, until it is stopped."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.command import DONE

PORT = 5127


class Command:
    """Starts a SageMaker and S3 endpoint on 127.0.0.1 that runs jobs as processes of this machine."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare arguments."""
        parser.add_argument(
            "--port", type=int, default=PORT, help=f"port of 127.0.0.1; 0 takes a free one (default {PORT})"
        )
        parser.add_argument(
            "--env",
            action="store_true",
            help="print only the lines that a client's shell needs (export NAME=value), then serve",
        )
        parser.add_argument("--folder", help="where jobs stand (default: a temporary folder, removed at the end)")

    def run(self, options: Namespace) -> int:
        """Serve until Ctrl-C or SIGTERM."""
        from sm_profiler.local.server import LocalSageMaker

        ended = threading.Event()
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, lambda *_: ended.set())
        with LocalSageMaker(options.port, options.folder) as local:
            if not options.env:
                print(f"SageMaker, S3, IAM, STS and CloudWatch Logs on {local.url}; jobs stand in {local.folder}.")
                print("In the shell of your client:\n")
            for name, value in local.environment.items():
                print(f"export {name}={shlex.quote(value)}")
            if not options.env:
                print(
                    f"\nA role to pass: {local.role}\nIt runs the code of its jobs as you. Ctrl-C ends it and its jobs."
                )
            sys.stdout.flush()
            ended.wait()
            print("stopping the jobs …", file=sys.stderr)
        return DONE
