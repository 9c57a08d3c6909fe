"""`sm-profiler monitor`: sample this machine until stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sm_profiler.cli.main import BAD, DONE
from sm_profiler.errors import ProfilerError
from sm_profiler.settings import METRICS_TARGETS
from sm_profiler.threads import SignalEvent

if TYPE_CHECKING:
    from sm_profiler.monitor.board import Board
    from sm_profiler.monitor.uploader import Uploader

FLUSH_SECONDS = 100.0  # a SageMaker container has 120 s after SIGTERM
WATCH_SECONDS = 0.5


def add_monitor(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder to write system/incremental/… to"
    )
    parser.add_argument(
        "--interval-ms", type=int, default=500, metavar="N", help="milliseconds between samples (default: %(default)s)"
    )
    parser.add_argument(
        "--node",
        default=None,
        metavar="NAME",
        help="name of this node (default: that of resourceconfig.json, else algo-1)",
    )
    parser.add_argument("--pid", type=int, default=None, metavar="N", help="stop when this process ends")
    parser.add_argument(
        "--upload", default=None, metavar="URI", help="s3:// URI of the profiler-output to upload the files to"
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="N", help="also serve the newest values for Prometheus, at /metrics"
    )
    parser.add_argument(
        "--metrics-address", default="127.0.0.1", metavar="A", help="interface of that port (default: %(default)s)"
    )
    parser.add_argument(
        "--job", metavar="NAME", help="name of the job in these metrics (default: the scheduler's, or that of DIR)"
    )
    parser.add_argument(
        "--otlp", action="store_true", help="also push them by OpenTelemetry, to the endpoint in its OTEL_* variables"
    )
    parser.add_argument("--kms-key", default=None, metavar="KEY", help="KMS key that encrypts the uploads")


def run_monitor(options: Namespace) -> int:
    from sm_profiler.container import JOB_NAME_VARIABLE, read_resources
    from sm_profiler.monitor.board import Board, StepCounter, job_labels, name_of_folder
    from sm_profiler.monitor.node_state import NodeLock
    from sm_profiler.monitor.sampler import MAX_INTERVAL_MS, MIN_INTERVAL_MS, Sampler
    from sm_profiler.monitor.uploader import Uploader, open_destination
    from sm_profiler.processes import start_time

    if not MIN_INTERVAL_MS <= options.interval_ms <= MAX_INTERVAL_MS:
        raise ProfilerError(
            f"--interval-ms {options.interval_ms}: must be between {MIN_INTERVAL_MS} and {MAX_INTERVAL_MS}"
        )
    started = start_time(options.pid) if options.pid else ""
    if options.pid and not started:
        raise ProfilerError(f"--pid {options.pid}: no such process")
    uploader = None
    if options.upload:
        uploader = Uploader(options.out, open_destination(options.upload, options.kms_key))
    node = options.node or read_resources().node
    lock = NodeLock(options.out, node)
    try:
        taken = lock.acquire()
    except OSError as error:
        raise ProfilerError(f"{options.out}: {error.strerror}") from None
    if not taken:
        print(f"{options.out}: another process is already sampling {node}")
        return BAD
    sampler = Sampler(options.out, node, options.interval_ms / 1000)
    name = options.job or os.environ.get(JOB_NAME_VARIABLE, "")
    labels = job_labels(name, otherwise=name_of_folder(options.out) or options.out.resolve().name)
    board = Board(node, time.monotonic, StepCounter(options.out, node, of_job=False), labels)
    stop_metrics = show_metrics(board, options)
    sampler.board = board if stop_metrics else None
    stop = SignalEvent()
    stop.set_on(signal.SIGINT, signal.SIGTERM)
    print(f"sampling {node} every {options.interval_ms} ms into {options.out}; Ctrl-C stops", flush=True)
    threads = [
        threading.Thread(target=work, args=(stop,)) for work in (sampler.run, *([uploader.run] if uploader else []))
    ]
    for thread in threads:
        thread.start()
    while not stop.wait(WATCH_SECONDS):
        if options.pid and start_time(options.pid) != started:
            stop.set()
    for thread in threads:
        thread.join()
    for end in stop_metrics:
        end()
    print(f"{sampler.ticks} samples")
    return DONE if uploader is None or flush(uploader) else BAD


def show_metrics(board: Board, options: Namespace) -> list[Callable[[], object]]:
    """Serve or push the board's values as the options ask for; return what ends that."""
    ends: list[Callable[[], object]] = []
    if options.otlp:
        from sm_profiler.monitor.exposition import start_telemetry

        ends.append(start_telemetry(board).shutdown)
    if options.metrics_port is not None:
        from sm_profiler.monitor.exposition import Exposition

        metrics = Exposition(options.metrics_address, options.metrics_port, board.values)
        print(f"metrics at http://{options.metrics_address}:{metrics.server_port}/metrics", flush=True)
        ends.append(metrics.close)
        if folder := METRICS_TARGETS.read(os.environ):
            metrics.announce(Path(folder), dict(board.labels).get("host", "localhost"))
    return ends


def flush(uploader: Uploader) -> bool:
    """Upload the remaining files within the time that a container has."""
    uploader.wait = time.sleep
    done = uploader.drain(uploader.clock() + FLUSH_SECONDS)
    left = "" if done else f", {uploader.remaining()} failed: {uploader.error}"
    files = "1 file" if uploader.uploaded == 1 else f"{uploader.uploaded:,} files"
    print(f"{files} uploaded to {uploader.destination.uri}{left}")
    return done
