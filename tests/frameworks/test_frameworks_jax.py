"""Trainings with JAX: the records agree with the scripts' own counts, and results are identical to the bit with the hook
off, on, and failing at every call."""

import json
import os
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from sm_profiler.formats.recorded import Compile, names
from tests.support.frameworks import PYTHON
from tests.support.profiles import events

ROOT = Path(__file__).parents[2]
LOOPS = Path(__file__).with_name("jax_loops.py")
QUICK = ("with_evaluation", "annotated", "changing_shapes", "resting")
LONG = (
    "unlogged", "gradients_only", "two_functions", "marked", "torch_loader", "flax_linen", "flax_nnx", "errors",
    "nothing_compiled", "two_networks", "rollouts", "ahead_of_time", "several_devices",
)  # fmt: skip
PHASES = {"train": "Step:ModeKeys.TRAIN", "eval": "Step:ModeKeys.EVAL", "wait": "DataLoaderWait"}
WINDOW = 3  # steps


@pytest.fixture(scope="module")
def python():
    if not PYTHON.exists():
        message = "no environment with JAX: `make test` creates it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return PYTHON


def run(python, folder, scenarios):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SM_PROFILER", "SMPROFILER"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    environment["TRAINING_JOB_NAME"] = "loops"  # the runs with a hook write into the same folders
    children = {
        mode: subprocess.Popen(
            [python, LOOPS, mode, folder, *scenarios], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        for mode in ("off", "on", "raising")
    }
    runs, logs = {}, {}
    for mode, child in children.items():
        out, error = child.communicate(timeout=280)
        assert child.returncode == 0, error.decode()
        runs[mode] = {row["scenario"]: row for row in map(json.loads, out.decode().splitlines())}
        logs[mode] = error.decode()
    return folder, runs, logs


@pytest.fixture(scope="module")
def quick(python, tmp_path_factory):
    return run(python, tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def thorough(python, tmp_path_factory):
    return run(python, tmp_path_factory.mktemp("long"), LONG)


def agree(done, name):
    folder, runs, _ = done
    assert runs["on"][name]["failures"] == {}
    assert runs["raising"][name]["failures"]
    assert runs["on"][name]["digest"] == runs["off"][name]["digest"] == runs["raising"][name]["digest"]
    seen = Counter(event["phase"] for event in events(folder / name))
    assert {key: seen[phase] for key, phase in PHASES.items()} == {key: runs["off"][name][key] for key in PHASES}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_results_and_steps_are_those_of_the_script(quick, name):
    agree(quick, name)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_results_and_steps_are_those_of_the_script_in_other_loops(thorough, name):
    agree(thorough, name)


def test_a_working_hook_logs_nothing_and_a_broken_one_a_line(quick):
    _, runs, logs = quick
    assert "sm-profiler" not in logs["on"]
    lines = [line for line in logs["raising"].splitlines() if "sm-profiler" in line]
    assert 0 < len(lines) <= len(runs["raising"])


def test_the_detailed_window_holds_whole_steps(quick):
    folder, _, _ = quick
    rows = [row for row in events(folder / "with_evaluation") if row["phase"] == "cpu_functions"]
    assert any("transpose(jvp(" in row["name"] for row in rows)
    by_name = Counter(row["args"]["hlo_op"] for row in rows)
    assert set(by_name.values()) == {WINDOW}  # each operator of the compiled step ran once in each of its steps
    assert any("transpose(jvp(" in row["args"].get("op_name", "") for row in rows)
    found = sorted((folder / "with_evaluation").glob("framework/jax/detailed_profiling/*/000000002/*"))
    assert sorted(file.name.rpartition(".")[2] for file in found) == ["metadata", "pb"]


def test_recompilations_name_the_argument_and_the_line(quick):
    folder, _, _ = quick
    rows = [row for row in events(folder / "changing_shapes") if row["phase"] == "sm_profiler/compile"]
    again = [row["args"] for row in rows if row["name"] == "train_step" and row["args"]["again"]]
    assert len(again) == 5
    assert again[0]["reason"].startswith("argument 2: float32[3,8] → float32[4,8], argument 3: int")
    assert "argument 4: 2.0 → 1.0" in again[0]["reason"]
    assert {args["function"] for args in again} == {"changing_shapes"}
    assert again[0].keys() - {"pid", "step_num"} <= set(names(Compile))


def test_a_step_that_begins_with_fetching_its_batch_is_one_step(quick):
    folder, _, _ = quick
    rows = events(folder / "annotated")
    steps = [row for row in rows if row["phase"] == PHASES["train"]]
    calls = [row for row in rows if row["phase"] == "sm_profiler/compiled_step" and row["name"] == "update"]
    assert [row["args"]["step_num"] for row in steps] == [str(number) for number in range(8)]
    assert len(calls) == 8


def test_steps_of_a_rest_follow_each_other_and_only_calls_of_the_others_are_recorded(quick):
    folder, runs, _ = quick
    rows = events(folder / "resting")
    steps = [row for row in rows if row["phase"] == PHASES["train"]]
    assert 45 < runs["on"]["resting"]["rested"] < 75
    assert [row["args"]["step_num"] for row in steps] == [str(number) for number in range(80)]
    assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(steps))
    called = Counter(row["args"]["step_num"] for row in rows if row["phase"] == "sm_profiler/compiled_step")
    assert called["32"] == called["48"] == 2
    assert not {str(number) for number in range(17, 32)} & set(called)


def test_a_compilation_during_a_rest_is_that_of_its_step_and_has_its_reason(quick):
    folder, _, _ = quick
    rows = [row for row in events(folder / "resting") if row["phase"] == "sm_profiler/compile"]
    again = [row for row in rows if row["args"]["again"]]
    assert [row["name"] for row in again] == ["loss_of"]
    assert again[0]["args"]["reason"].startswith("argument 1: float32[8,8] → float32[12,8]")
    assert again[0]["args"]["step_num"] == "50"


def test_the_trace_is_read_as_jax_reads_it(quick, python, tmp_path):
    folder, _, _ = quick
    (file,) = (folder / "with_evaluation").glob("framework/jax/**/*.xplane.pb")
    code = (
        "import json, sys\nfrom jax.profiler import ProfileData\n"
        "rows = [[plane.name, line.name, one.name, one.start_ns, one.duration_ns] for plane in"
        " ProfileData.from_file(sys.argv[1]).planes for line in plane.lines for one in line.events]\n"
        "json.dump(rows, open(sys.argv[2], 'w'))"
    )
    subprocess.run([python, "-c", code, file, tmp_path / "rows.json"], check=True, capture_output=True, timeout=120)
    expected = json.loads((tmp_path / "rows.json").read_text())

    from sm_profiler.formats.xplane_reader import read_xplane

    trace, outcome = read_xplane(file.read_bytes())
    columns = (trace.events.line, trace.events.name.decode(), trace.events.start_ns, trace.events.duration_ns)
    found = [
        [trace.lines[line].plane, trace.lines[line].name, name, start, duration]
        for line, name, start, duration in zip(*columns, strict=True)
    ]
    assert outcome.status == "read"
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert [row[3:] for row in found] == [pytest.approx(row[3:], abs=0.01) for row in expected]
