"""smdebug 1.0.34 reads our trace files."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.hook import config, train

PYTHON = Path(__file__).parents[2] / ".envs" / "smdebug" / "bin" / "python"
READ = """
import json, sys
from collections import Counter
from smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
reader = LocalAlgorithmMetricsReader(sys.argv[1])
events = reader.get_events(0, 4102444800000000)
print(json.dumps({"phases": Counter(event.event_phase for event in events),
                  "first": min(event.start_time for event in events)}))
"""


@pytest.mark.smdebug
def test_smdebugs_reader_reads_our_files(tmp_path):
    if not PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{PYTHON} is missing")
        pytest.skip("no environment with smdebug 1.0.34")
    assert (
        train(profile=config(tmp_path, DataloaderProfilingConfig='{"StartStep": 2, "NumSteps": 3, }')).returncode == 0
    )
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", READ, tmp_path], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["phases"]["Step:ModeKeys.TRAIN"] == 10
    assert said["phases"]["Forward"] == 10
    assert said["phases"]["DataLoaderIter"] == 3
    assert 1_600_000_000_000_000 < said["first"] < 4_102_444_800_000_000
