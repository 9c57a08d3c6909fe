"""Verdicts on two real ranks (gloo) that delay each other in turn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.report import Class, build_report
from sm_profiler.source import open_source

SCRIPTS = Path(__file__).parent / "scripts"
IN_TURN = {Class.MOVING_STRAGGLER, Class.GC_OUT_OF_PHASE}

pytestmark = [pytest.mark.alone, pytest.mark.long]


def classes(folder, *arguments):
    """Run the script and return the class that leads, and all others."""
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS), "OMP_NUM_THREADS": "1"}
    environment.pop("SM_PROFILER_CONFIG", None)
    command = [sys.executable, "-m", "sm_profiler", "run", str(SCRIPTS / "turns.py"), *arguments]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=300, check=True)
    (root,) = (folder / "sm-profiler").iterdir()
    verdict = build_report(open_source(root)).verdict
    return verdict.kind, {finding.kind for finding in verdict.also}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("forward 20 150", Class.MOVING_STRAGGLER),
        ("gc 12 150", Class.GC_OUT_OF_PHASE),
    ],
)
def test_names_what_the_ranks_do_in_turn(arguments, expected, tmp_path):
    assert classes(tmp_path, *arguments.split())[0] is expected


def test_names_batches_that_delay_the_ranks_in_turn(tmp_path):
    # Workers hide both the loading and its differences (1.6 times as fast), batches of equal cost the differences (1.35).
    leads, others = classes(tmp_path, "wait", "20", "150")
    assert {leads, *others} >= {Class.INPUT_BOUND, Class.MOVING_STRAGGLER}
    assert leads in {Class.INPUT_BOUND, Class.MOVING_STRAGGLER}


def test_equal_ranks_are_not_accused(tmp_path):
    leads, others = classes(tmp_path, "nothing", "0", "200")
    assert not {leads, *others} & IN_TURN
