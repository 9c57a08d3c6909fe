"""Damaged jobs through the command line: no traceback, no hang, and no loss that is not counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import make_job

TOOLS = Path(__file__).parents[1] / "tools"
FORMATS = Path(__file__).parents[1] / "data" / "formats"
SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"
GENERATED = {
    "pytorch": ("--minutes", "2", "--gpus", "1", "--cpus", "2"),
    "two-nodes": ("--minutes", "2", "--gpus", "1", "--cpus", "2", "--nodes", "2", "--tensorflow", "--horovod"),
    "cpu-only": ("--minutes", "2", "--cpus", "2", "--scenario", "cpu-only"),
}
REAL = ("test_traces", "horovod_timeline_traces", "merge_traces", "tfprofiler_timeline_traces", "pytorch_kineto")
BASES = (*GENERATED, *REAL)
START_S = 120  # beyond the time of the jobs


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


def report_damaged(base, folder, first, count):
    job = make_job(folder / "base", *GENERATED[base]) if base in GENERATED else FORMATS / base
    command = [sys.executable, str(TOOLS / "report_damaged.py"), str(job), str(folder), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S + 60 * count, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    last = results[-1]["seed"] if results else first - 1
    assert done.returncode == 0, f"{base}: ended with {done.returncode} at seed {last + 1}: {done.stderr[-3000:]}"
    assert len(results) == count
    return results


def check(base, result, validator):
    job = f"{base}, seed {result['seed']} ({result['command']})"
    assert not result["trouble"], f"{job}: {result['trouble']}"
    assert result["code"] in (0, 2), job
    assert "Traceback" not in result["err"], f"{job}: {result['err']}"
    assert all(line.isprintable() for line in (result["out"] + result["err"]).splitlines()), job
    if result["code"] == 2:
        lines = [line for line in result["err"].splitlines() if line.startswith("sm-profiler: ")]
        assert len(lines) == 1, f"{job}: {result['err']}"
        return
    if "after" not in result:  # no profile any more: what is left was read as a folder of traces
        assert base == "pytorch_kineto", job
        return
    if result["command"] == "report":
        validator.validate(result["report"])
        assert result["report"]["broken_rules"] == {}, job
        quality = result["report"]["data_quality"]
        assert bool(quality["lost"] or set(quality["states"]) - {"read"}) == result["loss_reported"], job
    if result["visible"] and result["after"] < result["before"]:
        assert result["loss_reported"], f"{job}: {result['before'] - result['after']} records lost, none reported"


@pytest.mark.first(4)
@pytest.mark.parametrize("base", BASES)
def test_damaged_jobs_are_reported(base, tmp_path, validator):
    for result in report_damaged(base, tmp_path, 0, 3):
        check(base, result, validator)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("base", BASES)
def test_a_thousand_damaged_jobs_are_reported(base, part, tmp_path, validator):
    for result in report_damaged(base, tmp_path, 1000 + 25 * part, 25):
        check(base, result, validator)
