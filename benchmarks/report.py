"""Measure time and memory of a full report on a large synthetic job, from JSON and from the cache.

python benchmarks/report.py [--minutes 60] [--nodes 2] [--gpus 8]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MAKE_JOB = Path(__file__).parents[1] / "tests" / "tools" / "make_job.py"
RUN = """
import json, resource, sys, time
begun = time.perf_counter()
from sm_profiler.report import build_report, write_report
from sm_profiler.source import open_source
source = open_source(sys.argv[1], cache=sys.argv[3] == "cache", progress=False)
report = build_report(source)
built = time.perf_counter() - begun
write_report(report, sys.argv[2])
usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
steps = sum(len(rank.steps) for rank in report.metrics.ranks)
print(json.dumps({"built_s": built, "total_s": time.perf_counter() - begun, "peak_mb": usage[0] / 1024, "largest_child_mb": usage[1] / 1024,
                  "rows": report.metrics.system.rows, "steps": steps, "verdict": report.verdict.kind.value}))
"""


def measure(job: Path, out: Path, cache: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(job), str(out), cache], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--cpus", type=int, default=48)
    parser.add_argument("--steps-per-second", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder, "job"), Path(folder, "out")
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        shape = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items()]
        made = subprocess.run(
            [sys.executable, str(MAKE_JOB), "--out", str(job), *shape], check=True, capture_output=True, text=True
        )
        print(made.stdout.strip().rpartition(": ")[2])
        print("\n| read | seconds | MiB | verdict |\n|---|---|---|---|")
        for label, cache in (
            ("from JSON, no cache", "none"),
            ("from JSON, writing the cache", "cache"),
            ("from the cache", "cache"),
        ):
            found = measure(job, out, cache)
            memory = f"{found['peak_mb']:.0f} and {found['largest_child_mb']:.0f} of the largest helper"
            print(f"| {label} | {found['total_s']:.1f} | {memory} | {found['verdict']} |")
        size = (out / "profiler-report.html").stat().st_size
        print(f"\nprofiler-report.html: {size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
