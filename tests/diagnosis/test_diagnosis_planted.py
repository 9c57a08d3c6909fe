"""Verdicts on real training scripts with one planted problem each, compared with the scripts' own measurements."""

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from sm_profiler.report import Class, build_report
from sm_profiler.source import open_source

pytestmark = pytest.mark.alone

MAX_RETRIED = 2  # of the planted problems, on a machine that does other work too
SCRIPTS = Path(__file__).parent / "scripts"


@attrs.frozen
class Case:
    script: str
    arguments: str
    expected: tuple[Class, ...]
    evidence: str = ""  # part of the name of the metric to compare
    diary: str = ""  # the script's own measurement of it


CASES = [
    Case("healthy", "384 64 500", (Class.BALANCED,)),
    Case("healthy", "768 128 120", (Class.BALANCED,)),
    Case("slow_dataset", "2 8 150", (Class.INPUT_BOUND,), "waiting for data", "wait"),
    Case("slow_dataset", "0.4 32 200", (Class.INPUT_BOUND,), "waiting for data", "wait"),
    Case("heavy_workers", "3 1 100", (Class.INPUT_BOUND,), "waiting for data", "wait"),
    Case("logging_each_step", "20 250", (Class.SYNC_BOUND,), "outside every phase", "logging"),
    Case("garbage", "300000 8 160", (Class.GC_BOUND,), "collections", "collecting"),
    Case("checkpoints", "25 150 250", (Class.PERIODIC_STALL,), "time lost in long steps", "saving"),
    Case("checkpoints", "7 60 200", (Class.PERIODIC_STALL,), "time lost in long steps", "saving"),
    Case("outliers", "0.02 200 300", (Class.STEP_OUTLIERS,), "time lost in long steps", "long"),
    Case("slow_start", "12 150", (Class.INITIALIZATION_BOUND,)),
    Case("much_evaluation", "3 60 120", (Class.EVALUATION_BOUND,), "evaluation", "evaluating"),
    Case("slow_optimizer", "6 150", (Class.OPTIMIZER_BOUND,), "optimizer.step", "optimizing"),
    Case("leak", "2 450", (Class.MEMORY_GROWTH,)),
    Case("tiny_steps", "16 8 3000", (Class.HOST_BOUND,)),
    Case("straggler", "1 20 forward 100", (Class.STRAGGLER,)),
    Case("straggler", "0 25 wait 100", (Class.STRAGGLER,)),
]


def profile(case: Case, folder: Path) -> tuple[Path, dict]:
    """Run the script under `sm-profiler run`; return its profile and its diary."""
    diary = folder / "diary.json"
    environment = os.environ | {"DIARY": str(diary), "PYTHONPATH": str(SCRIPTS), "OMP_NUM_THREADS": "1"}
    environment.pop("SM_PROFILER_CONFIG", None)
    command = [sys.executable, "-m", "sm_profiler", "run", str(SCRIPTS / f"{case.script}.py"), *case.arguments.split()]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (root,) = (folder / "sm-profiler").iterdir()
    return root, json.loads(diary.read_text())


def check(case: Case, folder: Path) -> None:
    root, diary = profile(case, folder)
    report = build_report(open_source(root))
    main = report.verdict.main
    assert main.kind in case.expected, (main.headline, [found.headline for found in report.verdict.also])
    if case.script == "straggler":
        assert main.evidence[0].where == f"algo-1-{diary['rank']}"
    if case.evidence:
        (found,) = [one for one in main.evidence if case.evidence in one.metric and one.unit == "share"][:1]
        loop = sum(rank.loop for rank in report.metrics.ranks)
        measured = diary["seconds"][case.diary]
        # both clocks time the same work, except for their own calls and the first steps
        if case.evidence == "time lost in long steps":  # long steps caused by other load count, too
            assert 0.75 * measured - 0.1 <= found.value * loop <= 2 * measured + 0.5
        else:
            assert found.value * loop == pytest.approx(measured, rel=0.25, abs=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.script}-{case.arguments.replace(' ', '-')}")
def test_names_the_planted_problem(case, tmp_path, retried):
    """Judge a second run if the first fails, because on a shared machine another problem may dominate some seconds."""
    for attempt in ("first", "second"):
        (folder := tmp_path / attempt).mkdir()
        try:
            check(case, folder)
        except AssertionError as error:
            if attempt == "second":
                raise
            retried.append(f"{case.script} {case.arguments}: {str(error).splitlines()[0]}")
        else:
            return


def test_few_verdicts_need_a_second_run(retried):
    assert len(retried) <= MAX_RETRIED, retried
