"""Time and memory of reading a trace of TensorFlow's or JAX's profiler.

python benchmarks/xplane.py [TRACE] [--events 1000000] [--repeat 5]

TRACE is an `*.xplane.pb` file; without one, a trace of compiled operations is made up.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the package `tests`
from sm_profiler.formats.xplane_reader import read_xplane
from tests.support.xplane import large


def main() -> None:
    """Read it several times; print wall clock and processor time, and the peak of memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    data = arguments.trace.read_bytes() if arguments.trace else large(arguments.events)
    wall, processor, count = [], [], 0
    for _ in range(arguments.repeat):
        began = time.perf_counter(), time.process_time()
        trace, outcome = read_xplane(data)
        trace.origins()
        wall.append(time.perf_counter() - began[0])
        processor.append(time.process_time() - began[1])
        count = len(trace.events)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count:,} events, {len(data) / 2**20:.0f} MiB, {outcome.status}: "
        f"{statistics.median(wall):.2f} s (processor {statistics.median(processor):.2f} s), peak {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()
