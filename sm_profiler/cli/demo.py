"""`sm-profiler demo`: the whole loop on this machine."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.command import DONE


class Command:
    """Trains a small network through a SageMaker Estimator on the local endpoint, and shows its report."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare arguments."""
        parser.add_argument("--out", default="out/demo", help="where the report is copied to (default: ./out/demo)")

    def run(self, options: Namespace) -> int:
        """Run the demo; Ctrl-C stops everything that it started."""
        print(
            "sm-profiler demo: train, profile, judge, report; no AWS account, nothing leaves this machine", flush=True
        )
        from sm_profiler.local.demo_run import Demo, check_packages
        from sm_profiler.local.handle import LocalSageMaker

        check_packages()
        signal.signal(signal.SIGTERM, _interrupt)
        with LocalSageMaker() as local:
            try:
                demo = Demo(local, Path(options.out).absolute(), _say)
                report = demo.run()
                print("\n" + "\n".join(demo.summary(report)), flush=True)
            except KeyboardInterrupt:
                print("\nstopping what the demo started …", file=sys.stderr, flush=True)
                raise
        return DONE


def _say(line: str) -> None:
    print(line, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
