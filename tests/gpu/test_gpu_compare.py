"""Comparison of two recordings: what appeared, vanished, became slower; devices of two kinds; the command."""

import json
import os
from pathlib import Path

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.cli import main
from sm_profiler.report.compare import RegressionLimit
from sm_profiler.report.trace_compare import (
    compare_traces,
    kernel_differences,
    operator_differences,
    render_trace_comparison,
    terminal_trace_comparison,
)
from tests.support.gpu_events import call, event, kernel

REAL = os.environ.get("SM_PROFILER_GPU_TRACES", "").partition(os.pathsep)[0]


def recording(
    folder, *kernels, steps=6, step_us=1000.0, device="NVIDIA A100", world=1, marked=True
):  # all but the first are options
    """Write a trace whose steps launch the same kernels: (name, length, operator, count)."""
    folder.mkdir(parents=True)
    events, number = [], 0
    for step in range(steps):
        at = step * step_us
        if marked:
            events.append(event("user_annotation", f"ProfilerStep#{step}", at, step_us - 1 + step % 2))
        for name, length, operator, count in kernels:
            for _ in range(count):
                number += 1
                events += [
                    event("cpu_op", operator, at, 9), call(at + 2, 5, number), kernel(name, at + 10, length, correlation=number),
                ]  # fmt: skip
                at += length + 10
    found = {
        "schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": world}, "deviceProperties": [{"name": device}],
        "traceEvents": events,
    }  # fmt: skip
    (folder / "rank0.json").write_text(json.dumps(found))
    return folder


BEFORE = (("gemm_a", 100, "aten::mm", 2), ("old", 50, "aten::tanh", 1), ("vectorized_elementwise", 10, "aten::add", 3))
AFTER = (("gemm_a", 150, "aten::mm", 2), ("new", 30, "fused::op", 1), ("vectorized_elementwise", 10, "aten::add", 6))


def pair(tmp_path, **kwargs):
    return recording(tmp_path / "a", *BEFORE, **kwargs), recording(tmp_path / "b", *AFTER, **kwargs)


def test_names_what_changed(tmp_path):
    table = kernel_differences(*map(GpuTraces, pair(tmp_path))).set_index("name")
    assert dict(table["change"]) == {
        "gemm_a": "slower", "old": "vanished", "new": "appeared", "vectorized_elementwise": "more often",
    }  # fmt: skip
    row = table.loc["gemm_a"]
    assert (row["count_before"], row["count_after"], row["us_before"], row["us_after"]) == (2, 2, 200, 300)
    assert (table.loc["old", "us_before"], table.loc["old", "us_after"]) == (50, 0)


def test_operators_have_their_own_kernels_and_host_time(tmp_path):
    table = operator_differences(*map(GpuTraces, pair(tmp_path))).set_index("name")
    assert dict(table["change"]) == {
        "aten::mm": "slower", "aten::tanh": "vanished", "fused::op": "appeared", "aten::add": "more often",
    }  # fmt: skip
    assert table.loc["aten::add", "host_us_before"] == pytest.approx(27)
    assert table.loc["aten::add", "us_after"] == pytest.approx(60)


def test_chance_is_no_change(tmp_path):
    """Means that differ by less than their own spread count as equal."""
    folders = []
    for name, lengths in (("a", (10, 100, 10, 100, 10, 100)), ("b", (100, 10, 100, 10, 100, 30))):
        folder = tmp_path / name
        folder.mkdir()
        events = [kernel("gemm", 1000 * at, length, correlation=at) for at, length in enumerate(lengths)]
        events += [call(1000 * at, 1, at) for at in range(6)]
        (folder / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
        folders.append(GpuTraces(folder))
    assert list(kernel_differences(*folders)["change"]) == ["unchanged"]


def test_a_kernel_with_other_template_arguments_is_the_same(tmp_path):
    a = recording(tmp_path / "a", ("void reduce<float, 4>(float*)", 10, "aten::sum", 1))
    b = recording(tmp_path / "b", ("void reduce<double, 2>(double*)", 30, "aten::sum", 1))
    (row,) = kernel_differences(GpuTraces(a), GpuTraces(b)).to_dict("records")
    assert (row["change"], row["name_before"]) == ("slower", "void reduce<float, 4>(float*)")


def test_states_the_slower_steps_and_why(tmp_path):
    a = recording(tmp_path / "a", *BEFORE)
    b = recording(tmp_path / "b", *AFTER, step_us=2000.0, device="Tesla V100", world=4)
    found = compare_traces(a, b)
    assert found.step.change == pytest.approx(1, abs=0.01)
    assert found.sentence.startswith("Steps take 2.0 times as long (")
    assert "matrix products" in found.sentence
    assert "GPUs differ" in found.notes[0]
    assert "1 rank before, 4 after" in found.notes[1]
    assert RegressionLimit.parse("regression>5%").is_exceeded_by(found)
    assert not RegressionLimit.parse("regression>5%").is_exceeded_by(compare_traces(a, a))
    assert "No significant difference" in compare_traces(a, a).sentence


def test_without_marked_steps_whole_recordings_are_compared(tmp_path):
    found = compare_traces(*pair(tmp_path, marked=False))
    assert found.unit == "recording"
    assert found.step is None
    assert "do not mark steps" in found.sentence
    assert found.kernels.set_index("name").loc["gemm_a", "count_before"] == 12


def test_two_steps_are_too_few(tmp_path):
    assert "Too few" in compare_traces(*pair(tmp_path, steps=3)).sentence


def test_traces_of_the_host_alone_compare_by_its_time(tmp_path):
    for name, length in (("a", 10), ("b", 30)):
        (tmp_path / name).mkdir()
        events = [event("cpu_op", "aten::mm", 100 * at, length) for at in range(9)]
        (tmp_path / name / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert "Host time" in terminal_trace_comparison(found)
    assert found.operators.loc[0, "change"] == "slower"


def test_the_command_compares_and_writes_files(tmp_path, capsys):
    a, b = recording(tmp_path / "a", *BEFORE), recording(tmp_path / "b", *AFTER, step_us=2000.0)
    out = tmp_path / "out"
    assert main(["compare", str(a), str(b), "--out", str(out), "--fail-on", "regression>5%"]) == 1
    assert "aten::tanh" in capsys.readouterr().out
    assert main(["compare", str(b), str(a), "--fail-on", "regression>5%"]) == 0
    found = json.loads((out / "compare.json").read_text())
    assert {row["change"] for row in found["kernels"]} == {"slower", "vanished", "appeared", "more often"}
    assert "fused::op" in (out / "compare.html").read_text()


def test_a_profile_and_a_trace_do_not_compare(tmp_path, capsys):
    a = recording(tmp_path / "a", *BEFORE)
    (tmp_path / "b" / "system").mkdir(parents=True)
    assert main(["compare", str(a), str(tmp_path / "b")]) == 2
    assert "not comparable" in capsys.readouterr().err


def test_hostile_names_are_escaped(tmp_path):
    hostile = "<script>alert(1)</script>\x1b[31m"
    found = compare_traces(
        recording(tmp_path / "a", *BEFORE), recording(tmp_path / "b", (hostile, 10, hostile, 1), device=hostile)
    )
    assert "<script>alert" not in render_trace_comparison(found)
    assert "\x1b" not in terminal_trace_comparison(found)


@pytest.mark.skipif(not REAL, reason="SM_PROFILER_GPU_TRACES names no folder")
def test_what_an_expert_would_sign_of_the_real_pair():
    found = compare_traces(Path(REAL) / "diff_control", Path(REAL) / "diff_test")
    assert "matrix products, no tensor cores" in found.sentence
    assert any("A100" in note and "V100" in note for note in found.notes)
    assert any("76 % of the matrix products' time before, 0 % after" in note for note in found.notes)
    operators = found.operators.set_index("name")["change"]
    assert operators["CompiledFunction"] == operators["CompiledFunctionBackward"] == "appeared"  # torch.compile
    assert operators["aten::bmm"] == "vanished"
    copies = found.kernels.set_index("name").loc["Memcpy DtoD (Device -> Device)"]
    assert (copies["count_before"], copies["count_after"]) == (3, 768)
