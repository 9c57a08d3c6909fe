"""Measure the listing of a profile of many files, from a stub of S3 that answers after some time.

python benchmarks/listing.py [--files 100000,1000000] [--seconds 0.03]
"""

from __future__ import annotations

import argparse
import resource
import runpy
import subprocess
import sys
import time
from pathlib import Path

from sm_profiler.source.catalog import Catalog
from sm_profiler.storage.s3 import S3Storage

STUB = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "tools" / "listing_stub.py"))


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(files: int, seconds: float) -> None:
    stub = STUB["ListingStub"](STUB["profile_keys"](files), seconds)
    before, started = memory_mb(), time.perf_counter()
    count = sum(1 for _ in S3Storage("b", "p", client=stub).list())
    listed, of_list, calls = time.perf_counter() - started, memory_mb() - before, stub.calls
    started, used = time.perf_counter(), time.process_time()
    Catalog(S3Storage("b", "p", client=stub)).refresh()
    print(
        f"| {count:,} | {calls:,} | {stub.most} | {listed:.1f} | {calls * seconds:.1f} | {of_list:.0f} |"
        f" {time.perf_counter() - started:.1f} | {time.process_time() - used:.1f} | {memory_mb() - before:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", default="100000,1000000")
    parser.add_argument("--seconds", type=float, default=0.03, help="before each answer")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.seconds)
        return
    print(
        "| files | requests | at once | list, s | one by one, s | MiB | catalog, s | CPU s | MiB |\n" + "|---" * 9 + "|"
    )
    for files in options.files.split(","):
        command = [sys.executable, __file__, "--measure", files, "--seconds", str(options.seconds)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
