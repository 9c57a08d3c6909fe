"""A format: logs of a stopwatch, a line `worker-0 step 12 took 0.103 s` for each step of each worker."""

import csv
import re
import tempfile
from pathlib import Path

from sm_profiler.diagnosis import read_table
from sm_profiler.errors import SourceError

LINE = re.compile(r"worker-(\d+) step (\d+) took ([\d.]+) s$")


class Stopwatch:
    def matches(self, where):
        return where.endswith(".stopwatch")

    def read(self, where):
        rows = [match.groups() for line in Path(where).read_text().splitlines() if (match := LINE.match(line))]
        if not rows:
            raise SourceError(f"{where}: no line of a stopwatch in it")
        with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as table:
            csv.writer(table).writerows([("rank", "step", "seconds"), *rows])
            table.flush()
            return read_table(table.name)


FORMAT = Stopwatch()
