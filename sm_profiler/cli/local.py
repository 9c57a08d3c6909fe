"""`sm-profiler local`: the endpoint, until it is stopped."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
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
            help="print only the lines that a client's shell needs (export NAME=value): of the endpoint that runs on"
            " that port already, so that eval works, else of the one that is started now",
        )
        parser.add_argument("--folder", help="where jobs stand (default: a temporary folder, removed at the end)")

    def run(self, options: Namespace) -> int:
        """Serve until Ctrl-C or SIGTERM."""
        from sm_profiler.local.server import Endpoint, environment_at

        if options.env and options.port and (environment := environment_at(options.port)):
            print(_exports(environment))
            return DONE
        ended = threading.Event()
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, lambda *_: ended.set())
        with Endpoint(options.port, options.folder, say=_say) as local:
            if not options.env:
                print(f"SageMaker, S3, IAM, STS and CloudWatch Logs on {local.url}; jobs stand in {local.folder}.")
                print("In the shell of your client:\n")
            print(_exports(local.environment))
            if not options.env:
                print(
                    f"\nA role to pass: {local.role}\nIt runs the code of its jobs as you. Ctrl-C ends it and its jobs."
                )
            sys.stdout.flush()
            ended.wait()
            print("stopping the jobs …", file=sys.stderr)
        return DONE


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _exports(environment: dict[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
