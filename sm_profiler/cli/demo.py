"""`sm-profiler demo`: train, profile, evaluate and report on this machine."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.command import DONE


class Command:
    """Trains a small network through a SageMaker Estimator on the local endpoint and shows its report."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--out", default="out/demo", metavar="DIR", help="folder for the report (default: %(default)s)"
        )

        parser.add_argument(
            "--framework",
            choices=("pytorch", "keras"),
            default="pytorch",
            help="what to train with (default: %(default)s)",
        )

    def run(self, options: Namespace) -> int:
        """Run the demo; Ctrl-C stops everything that it started."""
        print("sm-profiler demo: no AWS account needed, nothing leaves this machine", flush=True)
        from sm_profiler.local import LocalSageMaker
        from sm_profiler.local.demo_run import Demo, check_packages, launch_of

        check_packages(options.framework)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with LocalSageMaker() as local:
            try:
                demo = Demo(
                    local,
                    Path(options.out).absolute(),
                    lambda line: print(line, flush=True),
                    launch_of(options.framework),
                )
                report = demo.run()
                print("\n" + "\n".join(demo.summary(report)), flush=True)
            except KeyboardInterrupt:
                print("\nstopping the demo's jobs …", file=sys.stderr, flush=True)
                raise
        return DONE
