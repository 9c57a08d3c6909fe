"""`sm-profiler monitor`: system metrics of this machine until stopped."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.command import BAD, DONE
from sm_profiler.errors import ProfilerError


class Command:
    """Samples until SIGINT or SIGTERM."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--out", required=True, type=Path, metavar="DIR", help="folder that gets system/incremental/…"
        )
        parser.add_argument(
            "--interval-ms", type=int, default=500, metavar="N", help="milliseconds between samples (500)"
        )
        parser.add_argument("--node", default=None, help="name of this node (algo-1, or as resourceconfig.json says)")

    def run(self, options: Namespace) -> int:
        """Sample until stopped."""
        from sm_profiler.hook.settings import node_name
        from sm_profiler.monitor.lock import NodeLock
        from sm_profiler.monitor.sampler import Sampler

        if not 100 <= options.interval_ms <= 60_000:  # noqa: PLR2004 - the range that the API knows
            raise ProfilerError(f"--interval-ms {options.interval_ms}: between 100 and 60000")
        node = options.node or node_name()
        lock = NodeLock(options.out, node)
        try:
            taken = lock.acquire()
        except OSError as error:
            raise ProfilerError(f"{options.out}: {error.strerror}") from None
        if not taken:
            print(f"{options.out}: {node} is sampled already by another process")
            return BAD
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        print(f"sampling {node} every {options.interval_ms} ms into {options.out}; Ctrl-C ends it", flush=True)
        sampler = Sampler(options.out, node, options.interval_ms / 1000)
        sampler.run(stop)
        print(f"{sampler.ticks} samples")
        return DONE
