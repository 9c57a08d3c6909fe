"""Detailed windows of the hook: raw traces joined by time with steps, phases, modules and samples."""

import gzip
import json
import os
import subprocess
import sys

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis.classes import MOSTLY_IDLE, Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.model import Finding, Verdict
from sm_profiler.formats.columns import Category, EventColumns
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.formats.kineto_reader import PHASE, read_kineto
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.gpu_traces.callers import Callers, PythonFrame
from sm_profiler.gpu_traces.measure import CauseLines
from sm_profiler.gpu_traces.traces import GpuTraces
from sm_profiler.hook.convert import write_events
from sm_profiler.report.build import add_windows, build_report, join, read_windows
from sm_profiler.report.write import write_report
from sm_profiler.source import open_source
from tests.support.gpu_events import call, event, kernel

LENGTH_US = 15_000.0  # of a kernel: five of them take most of a step
EPOCH_US = 1_700_000_000_000_000
PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def loss_of(x):
    y = model(x)
    time.sleep(0.03)
    return y.sum()

for step in range(60):
    loss = loss_of(torch.randn(8, 64))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def hook_events(*rows):
    """Return what the hook recorded: phase, name, start in µs of the trace, length, step."""
    phase, name, start, length, step = zip(*rows, strict=True)
    none = np.full(len(rows), -1, np.int64)
    text, small = Category.of([""] * len(rows)), none.astype(np.int32)
    return EventColumns(
        np.array(start, float) + EPOCH_US, np.array(length, float), Category.of(name), Category.of(phase),
        Category.of(["algo-1-0"] * len(rows)), Category.of(["pythontimeline"] * len(rows)), np.array(step, np.int64), none,
        none, small, small, none.astype(np.int8), text,
    )  # fmt: skip


def trace_of(*events):
    document = {"schemaVersion": 1, "baseTimeNanoseconds": EPOCH_US * 1000, "traceEvents": list(events)}
    return read_kineto([json.dumps(document).encode()])[0]


@pytest.fixture
def joined():
    trace = trace_of(
        event("cpu_op", "aten::linear", 100, 50), call(110, 5, 1), kernel("gemm", 130, 40, correlation=1),
        event("cpu_op", "MmBackward0", 300, 50, thread=2), call(310, 5, 2, thread=2), kernel("gemm", 330, 60, correlation=2),
        call(420, 5, 3), kernel("sgd", 440, 10, correlation=3),
    )  # fmt: skip
    rows = hook_events(
        ("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", 90, 400, 7), ("Forward", "Forward", 95, 100, 7),
        ("Forward-SubModuleInternal", "layers.0.fc", 98, 60, 7), ("Backward(post-forward)", "Backward(post-forward)", 290, 100, 7),
        ("Forward", "Forward", 90_000, 100, 8),
    )  # fmt: skip
    return join(trace, rows)


def test_kernels_have_the_phase_module_and_step_of_the_hook(joined):
    gpu = GpuTraces.of({0: [joined]})
    rows = {row["operator"]: row for row in gpu.columns("operators").rows()}
    assert {name: (row["phase"], row["module"]) for name, row in rows.items()} == {
        "aten::linear": ("forward", "layers.0.fc"), "MmBackward0": ("backward", ""), "": ("between", ""),
    }  # fmt: skip
    assert gpu.steps()["step"].tolist() == [7]
    assert int((joined.events.category == PHASE).sum()) == 3


def test_phases_hold_for_all_threads(joined):
    callers = Callers(joined.events)
    on_other = np.flatnonzero(joined.events.name.mask("MmBackward0"))
    assert joined.events.name.values[joined.events.name.codes[callers.phases(on_other)[0]]] == "backward"


def test_sampled_lines_share_the_time_of_their_phase(joined):
    line = PythonFrame("train.py", 12, "step"), PythonFrame("model.py", 3, "forward")
    lines = CauseLines(Callers(joined.events), {"forward": ((line[0], 0.25), (line[1], 0.5))})
    rows = np.flatnonzero(joined.events.name.mask("aten::linear"))
    found = {(one.file, one.sampled): one.us for one in lines.of(rows, rows, np.array([100.0]))}
    assert found == {("model.py", True): 50.0, ("train.py", True): 25.0, ("", False): 25.0}


def with_gpu(raw):
    """Add launches and kernels to a real trace of the host, as a GPU would have left them: one for each matrix product."""
    with gzip.open(raw) as file:
        document = json.load(file)
    number, at, added = 0, 0.0, []
    for one in sorted((one for one in document["traceEvents"] if one.get("ph") == "X"), key=lambda one: one["ts"]):
        if one.get("cat") == "cpu_op" and one["name"] in {"aten::addmm", "aten::mm", "aten::_foreach_add_"}:
            number, at = number + 1, max(at, one["ts"] + 10)
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": one["pid"], "tid": one["tid"],
                      "ts": one["ts"] + one["dur"] / 2, "dur": 1, "args": {"correlation": number}}  # fmt: skip
            added += [launch, kernel(f"sgemm_{one['name']}", at, LENGTH_US, correlation=number)]
            at += LENGTH_US
    document["traceEvents"] += added
    document["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8}]
    raw.write_bytes(gzip.compress(json.dumps(document).encode()))
    return number


def add_samples(root, raw):
    """Write samples of the window: on a busy machine the sampler itself may take none in so short a time."""
    with gzip.open(raw) as file:
        document = json.load(file)
    start_us = int(
        document["baseTimeNanoseconds"] / 1e3 + min(one["ts"] for one in document["traceEvents"] if "ts" in one)
    )
    stacks = [
        [phase, 0, 1000.0, 10, "", [0]] for phase in ("forward", "backward", "optimizer", "between", "outside", "wait")
    ]
    args = json.dumps({"frames": [["train.py", 11, "loss_of"]], "lines": [""], "stacks": stacks})
    writer = TraceWriter(root, raw.name.partition(".")[0], close_seconds=float("inf"))
    write_events(writer, [TraceEvent(SAMPLES, SAMPLES, start_us + 100_000, 1_000_000, args)], {})


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windowed")
    script = folder / "train.py"
    script.write_text(PROGRAM)
    out = folder / "out"
    config = {
        "ProfilingParameters": {"LocalPath": str(out), "DetailedProfilingConfig": '{"StartStep": 5, "NumSteps": 40, }'}
    }
    environment = {**os.environ, "SM_PROFILER_CONFIG": json.dumps(config)}
    command = [
        sys.executable,
        "-c",
        f"import sm_profiler.hook as h; h.get_hook(); exec(compile(open({str(script)!r}).read(), {str(script)!r}, 'exec'))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return out


def test_the_report_of_a_window_with_a_gpu_joins_the_always_on_recording(profile, tmp_path):
    (raw,) = profile.rglob("*.trace.json.gz")
    assert build_report(open_source(str(profile))).gpu_traces == ()  # a CPU's window has no kernels
    kernels = with_gpu(raw)
    add_samples(profile, raw)
    windows = read_windows(open_source(str(profile)))
    rows = list(windows.gpu.columns("operators").rows())
    assert {row["phase"] for row in rows if row["caller"] == "aten::linear"} == {"forward"}
    assert {row["phase"] for row in rows if "AddmmBackward0" in row["caller"]} == {"backward"}
    assert {row["module"] for row in rows if row["caller"] == "aten::linear"} == {"0", "2"}
    assert {row["module"] for row in rows if "AddmmBackward0" in row["caller"]} == {"0", "2"}
    assert len(windows.gpu.steps()) >= 38
    report = build_report(open_source(str(profile)))
    (found,) = report.gpu_traces
    assert found["launches"] >= kernels - 8  # the last step is left out
    sampled = [line for line in found["lines"]["compute"] + found["lines"]["launch"] if line["sampled"]]
    assert any(line["file"].endswith("train.py") for line in sampled)
    assert {row["phase"] for row in found["phases"]} >= {"forward", "backward"}
    added = [one for one in report.verdict.also if one.headline.startswith("In the detailed windows")]
    assert [(one.kind.name, one.gain) for one in added] == [("TENSOR_CORES_UNUSED", None)]
    write_report(report, tmp_path)
    page = (tmp_path / "profiler-report.html").read_text()
    assert "train.py" in page
    assert "Phases on the GPU" in page


@pytest.mark.parametrize(
    ("label", "kind", "leads"),
    [
        (MOSTLY_IDLE, Class.HOST_BOUND, True),
        ("", Class.HOST_BOUND, False),
        ("", Class.ALLOCATOR, True),
        (MOSTLY_IDLE, Class.COMPUTE_BOUND, False),
    ],
)
def test_a_window_leads_where_the_loop_does_not_show_the_cause(profile, monkeypatch, label, kind, leads):
    (raw,) = profile.rglob("*.trace.json.gz")
    with_gpu(raw)

    def finding(kind, label):
        return Finding(kind, "found", (), "", 0.0, confidence=Confidence("high"), label=label)

    source = open_source(str(profile))
    report = attrs.evolve(build_report(source), verdict=Verdict(finding(Class.BALANCED, label)))
    monkeypatch.setattr("sm_profiler.report.build.decide_traces", lambda _: Verdict(finding(kind, "")))
    main = add_windows(report, source).verdict.main
    assert main.kind is (kind if leads else Class.BALANCED)
    if kind is Class.HOST_BOUND and leads:
        assert (main.confidence, main.headline) == ("medium", "In the detailed windows: found")


def test_a_broken_window_costs_no_report(profile, monkeypatch):
    monkeypatch.setattr("sm_profiler.report.build.read_trace", lambda *_: 1 / 0)
    report = build_report(open_source(str(profile)))
    assert report.gpu_traces == ()
    assert "division" in report.broken["detailed windows"]


def test_the_traces_of_a_profile_are_read_alone_too(profile):
    assert sum(len(trace.events) for trace in GpuTraces(profile).ranks.values()) > 100
