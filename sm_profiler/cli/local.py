"""`sm-profiler local` and `demo`: a SageMaker endpoint on this machine, and a job's whole way on it."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from sm_profiler.cli.main import DONE
from sm_profiler.printable import printable
from sm_profiler.threads import SignalEvent

PORT = 5127
MAX_PORT = 65535
LOCAL_EXAMPLE = """\
example:
  sm-profiler local                        in one shell
  eval "$(sm-profiler local --env)"        in another: boto3 and the SageMaker SDK now use the endpoint
"""


def add_local(parser: ArgumentParser) -> None:
    parser.epilog = LOCAL_EXAMPLE
    parser.add_argument(
        "--port",
        type=port,
        default=PORT,
        metavar="N",
        help="port on 127.0.0.1; 0 picks a free port (default: %(default)s)",
    )
    parser.add_argument(
        "--env",
        action="store_true",
        help="print only export lines for a client's shell and, if an endpoint already serves the port, return",
    )
    parser.add_argument(
        "--folder", metavar="DIR", help="folder for job files (default: a temporary folder, removed on exit)"
    )
    parser.add_argument(
        "--interrupt",
        metavar="JOB",
        help="take the machines of a running training job away, as happens to spot instances, and return",
    )


def run_local(options: Namespace) -> int:
    from sm_profiler.local.endpoint import environment_at, interrupt_at
    from sm_profiler.local.server import Endpoint

    if options.interrupt:
        interrupt_at(options.port, options.interrupt)
        print(f"{printable(options.interrupt)}: its machines are being taken away")
        return DONE
    if options.env and options.port and (environment := environment_at(options.port)):
        print(_exports(environment))
        return DONE
    ended = SignalEvent()
    ended.set_on(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with Endpoint(options.port, options.folder, log_event=_log) as local:
        if not options.env:
            print(f"SageMaker, S3, IAM, STS and CloudWatch Logs: {local.url}\njob files: {local.folder}\n")
            print("Run this in your client's shell:\n")
        print(_exports(local.environment))
        if not options.env:
            print(f"\nRole for your jobs: {local.role}\nJobs run as you, not in a sandbox. Ctrl-C stops everything.")
        sys.stdout.flush()
        ended.wait()
        print("stopping the jobs …", file=sys.stderr)
    return DONE


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_PORT:
        raise ArgumentTypeError(f"{text} is not between 0 and {MAX_PORT}")
    return number


def _log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {printable(line)}", file=sys.stderr, flush=True)


def _exports(environment: dict[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


def add_demo(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", metavar="DIR", help="folder for the report (default: %(default)s)")
    parser.add_argument(
        "--framework", choices=("pytorch", "keras"), default="pytorch", help="what to train with (default: %(default)s)"
    )


def run_demo(options: Namespace) -> int:
    print("sm-profiler demo: no AWS account needed, nothing leaves this machine", flush=True)
    from sm_profiler.local import LocalSageMaker
    from sm_profiler.local.demo_run import Demo, check_packages, launch_script

    check_packages(options.framework)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with LocalSageMaker() as local:
        try:
            out, launch = Path(options.out).absolute(), launch_script(options.framework)
            demo = Demo(local, out, lambda line: print(line, flush=True), launch)
            print("\n" + "\n".join(demo.summary(demo.run())), flush=True)
        except KeyboardInterrupt:
            print("\nstopping the demo's jobs …", file=sys.stderr, flush=True)
            raise
    return DONE
