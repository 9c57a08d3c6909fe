"""The profiler does not accuse a script of its own doing: the verdict is the same with each window on and off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.report import Class, build_report
from sm_profiler.source import open_source

pytestmark = [pytest.mark.long, pytest.mark.alone]

SCRIPT = Path(__file__).parent / "scripts" / "lightning_pause.py"
OWN = 0.01  # of the loop: the script has no collection of a millisecond if it runs alone
WINDOWS = {
    "off": {},
    "detailed": {"DetailedProfilingConfig": '{"StartStep": 5, "NumSteps": 40}'},
    "dataloader": {"DataloaderProfilingConfig": '{"StartStep": 7, "NumSteps": 60, "MetricsRegex": ".*"}'},
    "python": {"PythonProfilingConfig": '{"StartStep": 9, "NumSteps": 60, "ProfilerName": "cprofile"}'},
    "pyinstrument": {"PythonProfilingConfig": '{"StartStep": 9, "NumSteps": 60, "ProfilerName": "pyinstrument"}'},
}
WINDOWS["all"] = {**WINDOWS["detailed"], **WINDOWS["dataloader"], **WINDOWS["python"]}


def report_of(folder, windows):
    """Return the report on a run of the script with these windows."""
    folder.mkdir()
    config = {
        "ProfilingIntervalInMilliseconds": 500,
        "ProfilingParameters": {"LocalPath": str(folder / "profile"), **windows},
    }
    path = folder / "profilerconfig.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "sm_profiler", "run", "--config", str(path), str(SCRIPT)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SM_PROFILER")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return build_report(open_source(folder / "profile"))


@pytest.mark.parametrize("name", WINDOWS)
def test_no_window_changes_the_verdict(tmp_path, name):
    if name == "pyinstrument":
        pytest.importorskip("pyinstrument")
    report = report_of(tmp_path / "run", WINDOWS[name])
    verdict, (rank,) = report.verdict, report.metrics.ranks
    guilty = next(number for number, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.endswith("# GUILTY"))
    assert (verdict.kind, verdict.main.confidence) == (Class.SYNC_BOUND, "high"), verdict.main.headline
    usual = [one for one in report.metrics.samples.stacks if one.places and not one.long]
    between = [one for one in usual if one.phase in {"between", "outside"}]
    if sum(one.count for one in between) >= limits.SAMPLES // 2:  # a busy machine may leave fewer
        assert verdict.main.where[0].line == guilty
    also = {one.kind for one in verdict.also if one.confidence != "low"}  # as on a machine that others use
    assert also <= {Class.INITIALIZATION_BOUND}  # which Lightning's import takes
    assert rank.gc <= OWN * rank.loop
    assert WINDOWS[name] or rank.left_out == 0
