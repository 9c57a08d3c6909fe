"""A million steps with everything on: memory, file descriptors and threads stay flat, and nothing is lost."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from usage import Usage, assert_flat, watch

from sm_profiler.source import open_source

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
STEPS = int(os.environ.get("SM_PROFILER_SOAK_STEPS", "1000000"))
PYTHON_WINDOW = {"StartStep": 9, "NumSteps": 2, "ProfilerName": "cprofile", "cProfileTimer": "total_time"}


def find_child(pid: int, word: str, deadline_s: float = 60) -> int:
    """Return the process below `pid` whose command line contains `word`."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                if any(word in part for part in child.cmdline()):
                    return child.pid
        time.sleep(0.1)
    raise AssertionError(f"no process with {word} started")


def test_a_million_steps(tmp_path):
    script = [str(HERE / "million_steps.py"), str(STEPS)]
    plain = subprocess.run([sys.executable, *script], capture_output=True, text=True, check=True)
    profile = tmp_path / "profile"
    config = tmp_path / "profilerconfig.json"
    parameters = {
        "LocalPath": str(profile),
        "DataloaderProfilingConfig": json.dumps({"StartStep": 7, "NumSteps": 1, "MetricsRegex": ".*"}),
        "DetailedProfilingConfig": json.dumps({"StartStep": 5, "NumSteps": 1}),
        "PythonProfilingConfig": json.dumps(PYTHON_WINDOW),
    }
    config.write_text(json.dumps({"ProfilingIntervalInMilliseconds": 500, "ProfilingParameters": parameters}))

    run = subprocess.Popen(
        [sys.executable, "-m", "sm_profiler", "run", "--config", str(config), *script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    training = Usage(find_child(run.pid, "million_steps.py"))
    monitor = Usage(find_child(run.pid, "sm_profiler.monitor"))
    watch([training, monitor], lambda: run.poll() is None, every_s=1.0)
    out, err = run.communicate()

    assert (run.returncode, out) == (0, plain.stdout), err
    source = open_source(profile, cache=False)
    events = source.events()
    assert int(events.phase.mask("Step:ModeKeys.TRAIN").sum()) == STEPS
    assert sum(file.lost for file in source.quality()) == 0
    assert_flat(training, "training process")
    assert_flat(monitor, "monitor")
