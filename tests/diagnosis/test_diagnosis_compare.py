"""Compare a planted script with its repaired twin: what was predicted, and what came."""

import json
import shutil
import sys

import pytest

from benchmarks.diagnosis.adapters import execute
from benchmarks.diagnosis.manifest import PROBLEMS
from sm_profiler.report import build_report
from sm_profiler.report.compare import compare
from sm_profiler.source import open_source

pytestmark = [pytest.mark.long, pytest.mark.alone]


def report_of_run(folder, *options):
    folder.mkdir()
    script = shutil.copy(PROBLEMS / "slow_getitem.py", folder / "train.py")
    diary = folder / "diary.json"
    command = [sys.executable, "-m", "sm_profiler", "run", script, *options, "--diary", str(diary)]
    execute(command, folder)
    (profile,) = (folder / "sm-profiler").iterdir()
    return build_report(open_source(profile)), json.loads(diary.read_text())


def test_a_repaired_script_is_compared_with_its_prediction(tmp_path):
    after, diary = report_of_run(tmp_path / "after", "--repaired")
    before, _ = report_of_run(tmp_path / "before", "--share", "0.6", "--usual", str(diary["step"]))
    found = compare(before, after).predictions
    (one,) = [prediction for prediction in found if prediction.repaired]
    assert one.findings == ("INPUT_BOUND",)
    assert one.measured.value > 1.2
    assert one.predicted.low > 1.2
    # other load may double one of two runs; the benchmark judges the intervals
    assert 0.5 < one.measured.value / one.predicted.value < 2, one.sentence
    assert f"measured {one.measured.value:.2f}" in one.sentence
