"""Children of a training behave as they do without the profiler: those that begin inside a window, and after it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hook import environment

SCRIPT = Path(__file__).with_name("forking_training.py")
DETAILED = {"DetailedProfilingConfig": '{"StartStep": 2, "NumSteps": 4}'}
PYTHON = {"PythonProfilingConfig": '{"StartStep": 2, "NumSteps": 4, "ProfilerName": "cprofile"}'}
EXPECTED = """\
from Python
at exit
from C
exit code 3
exit code 1
exit code 3
stays
exit code 3
exit code 3
daemon ended
child trains 4
exit code 0
child trains 4
exit code 0
child trains 4
exit code 0
exit code 5
not found
batches 8
done
"""


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("window", "steps"),
    [
        pytest.param(DETAILED, [], id="after a detailed window"),
        pytest.param(DETAILED, ["4"], id="inside a detailed window"),
        pytest.param(PYTHON, ["4"], id="inside a Python window"),
    ],
)
def test_children_end_as_without_a_window(tmp_path, window, steps):
    profile = json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path), **window}})
    done = subprocess.run(
        [sys.executable, "-m", "sm_profiler.hook.launch", SCRIPT, *steps], capture_output=True, text=True, check=False,
        timeout=300, env=environment(SM_PROFILER_CONFIG=profile),
    )  # fmt: skip
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sorted(EXPECTED.splitlines())), done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("LookupError")] == [
        "LookupError: in the child"
    ]
