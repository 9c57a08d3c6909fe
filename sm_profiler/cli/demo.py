"""`sm-profiler demo`: train, profile, evaluate and report on this machine."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.command import DONE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", metavar="DIR", help="folder for the report (default: %(default)s)")
    parser.add_argument(
        "--framework", choices=("pytorch", "keras"), default="pytorch", help="what to train with (default: %(default)s)"
    )


def run(options: Namespace) -> int:
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
