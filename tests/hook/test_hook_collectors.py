"""Collectors on real trainings: detailed, Python, garbage collections; also beside a profiler of the script."""

import gzip
import json
import pstats
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sm_profiler.formats.layout import DetailedTrace, PythonStats, TraceMetadata, parse_path
from sm_profiler.hook.clock import KernelClock, Timebase, judge
from sm_profiler.hook.convert import operators
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.memory import GarbageCollector
from sm_profiler.hook.own_work import OwnWork
from tests.support.hook import environment
from tests.support.profiles import events

PROGRAM = """
import json, sys, time
import torch
from sm_profiler.hook import ModeKeys, get_hook
what = sys.argv[1]
hook = get_hook()
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
mine = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
for step in range(12):
    if step == (1 if what == "before" else 3) and what in ("before", "within"):
        mine.start()
    optimizer.zero_grad()
    if what == "annotated":
        with hook.step():
            with hook.phase("augment"):
                x = torch.randn(2, 8)
            hook.set_mode(ModeKeys.PREDICT if step == 11 else ModeKeys.TRAIN)
            model(x)
            model(x).sum().backward()
            optimizer.step()
        hook.record_trace_events(training_phase="Mine", op_name="mark", timestamp=time.time() - 86400, duration=0.25, colour="red")
    else:
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
    if step == 6 and what in ("before", "within"):
        mine.stop()
        assert any(event.key == "aten::linear" for event in mine.key_averages()), "the script's own profile is empty"
print(json.dumps({"failures": hook.session.guard.failures, "notes": hook.session.notes}))
"""
WINDOWS = {
    "DetailedProfilingConfig": '{"StartStep": 2, "NumSteps": 2, }',
    "PythonProfilingConfig": '{"StartStep": 6, "NumSteps": 3, "ProfilerName": "cprofile", "cProfileTimer": "default", }',
}


def run(what: str, folder: Path, **windows: str) -> dict:
    profile = json.dumps({"ProfilingParameters": {"LocalPath": str(folder), **windows}})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what],
        capture_output=True, text=True, check=False, timeout=200, env=environment(SM_PROFILER_CONFIG=profile),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def parsed(folder: Path) -> list:
    paths = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [found for found in map(parse_path, paths) if found is not None]


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    assert run("plain", folder, **WINDOWS) == {"failures": {}, "notes": {}}
    return folder


def test_the_detailed_window_writes_a_trace_and_its_operators_as_events(profile):
    traces = [found for found in parsed(profile) if isinstance(found, DetailedTrace)]
    assert [trace.step for trace in traces] == [2]
    with gzip.open(profile / traces[0].path) as file:
        assert json.load(file)["traceEvents"]
    assert sum(isinstance(found, TraceMetadata) for found in parsed(profile)) == 1
    rows = [event for event in events(profile) if event["phase"] == "cpu_functions"]
    assert {row["args"]["step_num"] for row in rows if row["name"] == "aten::linear"} == {2, 3}
    assert Counter(row["name"] for row in rows)["aten::linear"] == 4


def test_operators_are_counted_to_the_steps_that_contain_them(profile):
    def absolute(kind: str) -> list[tuple[float, float]]:
        found = []
        for file in profile.glob("framework/pevents/*/*.json"):
            records = json.loads(file.read_text())
            base = next(
                r["args"]["start_time_since_epoch_in_micros"] for r in records if "start_time" in str(r["args"])
            )
            phases = {
                r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name" and "name" in r["args"]
            }
            found += [
                (base + r["ts"], base + r["ts"] + r["dur"])
                for r in records
                if r["ph"] == "X" and phases[r["pid"]] == kind and r["name"] != "aten::zero_"
            ]
        return sorted(found)

    forwards = absolute("Forward")
    linear = absolute("cpu_functions")
    assert any(start - 50 <= linear[len(linear) // 2][0] <= end + 20_000 for start, end in forwards[2:4])


def test_submodules_are_spans_in_the_detailed_window(profile):
    rows = [event for event in events(profile) if event["phase"] == "Forward-SubModuleInternal"]
    assert Counter(row["name"] for row in rows) == {"0": 2, "1": 2, "2": 2}
    assert {row["args"]["step_num"] for row in rows} == {"2", "3"}


def test_the_python_window_splits_steps_at_the_end_of_the_forward(profile):
    found = [stats.window for stats in parsed(profile) if isinstance(stats, PythonStats)]
    spans = [(w.start_mode, w.start_step, w.start_phase, w.end_step, w.end_phase) for w in found]
    assert sorted(spans, key=str) == sorted(
        [
            ("prestepzero", None, "start", 0, "stepstart"),
            *[("train", step, "stepstart", step, "forwardpassend") for step in (6, 7, 8)],
            *[("train", step, "forwardpassend", step + 1, "stepstart") for step in (6, 7, 8)],
        ],
        key=str,
    )
    assert all(window.start_us <= window.end_us for window in found)
    for file in profile.glob("framework/pytorch/cprofile/*/*/python_stats"):
        assert pstats.Stats(str(file)).total_calls > 0


@pytest.mark.first(1)
@pytest.mark.parametrize("when", ["before", "within"])
def test_the_detailed_window_gives_way_to_a_profiler_of_the_script(tmp_path, when):
    shown = run(when, tmp_path, **{name: text for name, text in WINDOWS.items() if name.startswith("Detailed")})
    assert shown["failures"] == {}
    assert "detailed" in shown["notes"]


def test_pyinstrument_writes_a_session_and_a_page(tmp_path):
    pytest.importorskip("pyinstrument")
    run("plain", tmp_path, PythonProfilingConfig='{"StartStep": 3, "NumSteps": 1, "ProfilerName": "pyinstrument", }')
    names = Counter(stats.name for stats in parsed(tmp_path) if isinstance(stats, PythonStats))
    assert names == {"python_stats.json": 3, "python_stats.html": 3}
    for file in tmp_path.glob("framework/pytorch/pyinstrument/*/*/python_stats.json"):
        assert json.loads(file.read_text())["duration"] >= 0


def test_a_script_may_mark_its_own_steps_phases_and_events(tmp_path):
    run("annotated", tmp_path)
    rows = events(tmp_path)
    seen = Counter(row["phase"] for row in rows if not row["phase"].startswith("sm_profiler/"))
    seen.pop("GC", None)  # a collection that takes a millisecond on a busy machine
    assert seen == {
        "Step:ModeKeys.TRAIN": 12, "Forward": 24, "Backward(post-forward)": 12, "Optimizer": 12, "augment": 12, "Mine": 12,
    }  # fmt: skip
    mine = next(row for row in rows if row["phase"] == "Mine")
    assert (mine["name"], mine["dur"], mine["args"]) == ("mark", 250_000, {"colour": "red"})


def test_kernels_and_copies_are_events_of_their_device():
    trace = {
        "baseTimeNanoseconds": 1_000_000_000_000,
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10.5, "dur": 4.4, "tid": 7, "args": {}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "ts": 20.0,
                "dur": 9.0,
                "tid": 3,
                "args": {"device": 1, "stream": 3},
            },
            {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "ts": 5.0, "dur": 1.0, "tid": 3, "args": {"device": 0}},
            {"ph": "X", "cat": "python_function", "name": "no", "ts": 5.0, "dur": 1.0, "tid": 3},
            {"ph": "f", "cat": "fwdbwd", "name": "no", "ts": 5.0},
        ],
    }
    found = list(operators(trace, [(4, 1_000_000_006), (-1, 1_000_000_025)], 99))
    assert [(e.phase, e.name, e.start_us, e.duration_us) for e in found] == [
        ("cpu_functions", "aten::mm", 1_000_000_010, 4),
        ("gpu_functions-dev:1", "gemm", 1_000_000_020, 9),
        ("gpu_functions-dev:0", "copy", 1_000_000_005, 1),
    ]
    assert json.loads(found[0].args) == {"pid": 99, "tid": 7, "device": "cpu", "step_num": 4}
    assert "step_num" not in json.loads(found[2].args)


def test_only_long_garbage_collections_are_recorded():
    recorded, now = [], [5]
    watch = GarbageCollector(recorded.append, OwnWork(recorded.append), lambda: now[0])
    for nanoseconds, generation in ((999_999, 0), (1_000_000, 2)):
        watch._callback("start", {"generation": generation})
        now[0] += nanoseconds
        watch._callback("stop", {"generation": generation, "collected": 5})
    assert [(row[0], row[5]) for row in recorded] == [("GC", {"generation": 2, "collected": 5})]


def test_interprets_the_state_of_the_kernel_clock():
    assert judge(0, 0, 120, 900) == KernelClock(120.0, 900.0)
    assert judge(0, 0x2000, 120_000, 900) == KernelClock(120.0, 900.0)
    assert judge(5, 0, 0, 0) is None
    assert judge(0, 0x40, 0, 16_000_000) is None
    assert judge(-1, 0, 0, 0) is None


def test_a_wall_clock_adjustment_shifts_times_but_not_durations():
    wall = [1_000_000_000_000]
    base = Timebase(wall_ns=lambda: wall[0], monotonic_ns=lambda: 5_000)
    before = base.to_us(9_000) - base.to_us(5_000)
    assert not base.has_jumped()
    wall[0] += 3_600_000_000_000
    assert base.has_jumped()
    assert base.to_us(5_000) == wall[0] // 1000
    assert base.to_us(9_000) - base.to_us(5_000) == before
    assert not base.has_jumped()


def test_only_the_first_failure_is_logged_as_a_warning(caplog):
    guard = Guard()
    for name in ("dataloader", "dataloader", "python"):
        guard.failed(name, ValueError("no\nmore than a line"))
    assert guard.failures == {"dataloader": "ValueError: no", "python": "ValueError: no"}
    assert guard.count == 3
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1
