"""A simulated day of the monitor: samples this machine every 500 ms of a fake clock, uploads, reports its own usage."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from usage import Usage

from sm_profiler.monitor.sampler import Sampler
from sm_profiler.monitor.uploader import Uploader
from sm_profiler.storage import MissingFileError

INTERVAL_S = 0.5
HOURS = float(sys.argv[2])
TICKS = int(HOURS * 3600 / INTERVAL_S)
UPLOAD_TICKS = int(60 / INTERVAL_S)
SAMPLE_TICKS = int(600 / INTERVAL_S)


class Clock:
    """Seconds that pass only when set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Discarding:
    """A destination that counts bytes."""

    uri = "s3://bucket/job/profiler-output"

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, key: str) -> bytes:
        raise MissingFileError(key)

    def write(self, _key: str, data: bytes) -> None:
        self.bytes += len(data)

    def upload(self, _key: str, file: BinaryIO, _size: int) -> None:
        self.bytes += len(file.read())


def await_uploads() -> None:
    """Wait until the threads of the last uploads have ended: the uploader leaves idle ones to end by themselves."""
    for thread in threading.enumerate():
        if thread.name.startswith("sm-profiler-upload"):
            thread.join(10)


def main() -> None:
    root = Path(sys.argv[1])
    wall, monotonic = Clock(1_700_000_000.0), Clock(1000.0)
    destination = Discarding()
    uploader = Uploader(root, destination)
    sampler = Sampler(root, "algo-1", INTERVAL_S, wall=wall, monotonic=monotonic)
    usage = Usage(os.getpid())
    for tick in range(TICKS):
        sampler.tick()
        wall.now += INTERVAL_S
        monotonic.now += INTERVAL_S
        if tick % UPLOAD_TICKS == 0:
            uploader.upload_new()
        if tick % SAMPLE_TICKS == 0:
            await_uploads()
            usage.sample()
    result = {"samples": usage.samples, "bytes": destination.bytes, "failures": uploader.failures}
    print(json.dumps(result))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
