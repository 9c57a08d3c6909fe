"""A simulated day of the monitor: memory, file descriptors and threads stay flat."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from usage import Usage, assert_flat

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

HOURS = float(os.environ.get("SM_PROFILER_SOAK_HOURS", "24"))


def test_a_day_of_sampling(tmp_path):
    script = Path(__file__).with_name("monitor_day.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(HOURS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    usage = Usage(os.getpid())
    usage.samples = result["samples"]
    assert_flat(usage, "monitor")
    assert result["failures"] == 0
    assert result["bytes"] > HOURS * 1e6
