"""The longest step's timeline: what is drawn adds up to what ran; the page stays readable and accessible."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.gpu_traces.step_view import COLUMNS, MAX_STREAMS, longest_step
from sm_profiler.render.gpu_section import MAX_STEPS
from sm_profiler.render.page import render_html
from sm_profiler.report import write_report
from sm_profiler.report.recordings import report_traces
from sm_profiler.report.write import render_notebook
from tests.support.gpu_events import call, event, kernel

ROOT = Path(__file__).parents[2]
REAL = ROOT / "tests" / "data" / "gpu_traces"
LENGTHS = (1000.0, 3000.0, 1000.0, 1000.0)


def steps(extra=(), streams=1):
    """Return marked steps; each launches a kernel of half its length on every stream."""
    found, at, number = list(extra), 0.0, 0
    for step, length in enumerate(LENGTHS):
        found.append(event("user_annotation", f"ProfilerStep#{step + 5}", at, length - 1))
        for stream in range(streams):
            number += 1
            found += [
                event("python_function", "train.py(42): forward", at + 5, 30), event("cpu_op", "aten::mm", at + 8, 20),
                call(at + 10, 5, number),
                kernel("gemm", at + length / 4, length / 2 - stream, stream=stream + 7, correlation=number),
            ]  # fmt: skip
        at += length
    return found


def write(folder, *ranks):
    folder.mkdir(exist_ok=True)
    for rank, events in enumerate(ranks):
        found = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(found))
    return folder


def longest(folder, rank=0, **options):
    gpu = GpuTraces(folder, **options)
    return longest_step(gpu.ranks[rank], gpu.callers(rank))


def lanes_of(found):
    return {lane["name"]: lane["kinds"] for lane in found["lanes"]}


def test_finds_the_longest_step_and_its_gap(tmp_path):
    found = longest(write(tmp_path, steps()))
    assert (found["step"], found["steps"], found["kernels"]) == (6, 3, 1)
    assert (found["length_us"], found["usual_us"], found["busy_us"]) == (2999, 999, 1500)
    assert (found["gap_us"], found["gap_at_us"]) == (750, 0)
    assert (found["gap_before"], found["gap_file"], found["gap_line"]) == ("aten::mm", "train.py", 42)


def test_columns_add_up_to_the_time_of_the_kernels(tmp_path):
    for name in ("sampled2", "alexnet"):
        gpu = GpuTraces(REAL / name)
        for rank, trace in gpu.ranks.items():
            found = longest_step(trace, gpu.callers(rank))
            start, end = found["start_us"], found["start_us"] + found["length_us"]
            device = trace.events[trace.events.on_device]
            inside = np.clip(device.end_us, start, end) - np.clip(device.start_us, start, end)
            for lane, kinds in lanes_of(found).items():
                if lane.startswith("Stream"):
                    drawn = sum(sum(values) for values in kinds.values()) / 100 * found["length_us"] / COLUMNS
                    ran = float(inside[device.stream == int(lane.split()[1])].sum())
                    assert drawn == pytest.approx(ran, abs=found["length_us"] * 0.006), lane


def test_what_ran_briefly_is_still_drawn(tmp_path):
    found = longest(
        write(tmp_path, [*steps(), call(1090, 1, 99), kernel("tiny", 1100, 0.01, stream=9, correlation=99)])
    )
    (values,) = lanes_of(found)["Stream 9"].values()
    assert sum(values) == 1


def test_the_host_loads_waits_and_works(tmp_path):
    extra = [
        event("user_annotation", "enumerate(DataLoader)#next", 1100, 600), call(3000, 600, name="cudaStreamSynchronize"),
    ]  # fmt: skip
    kinds = lanes_of(longest(write(tmp_path, steps(extra))))["Host"]
    shares = {kind: sum(values) / 100 / COLUMNS for kind, values in kinds.items()}
    assert shares["loading data"] == pytest.approx(0.2, abs=0.01)
    assert shares["waiting for the GPU"] == pytest.approx(0.2, abs=0.01)
    assert shares["working"] > 0


def test_without_marks_the_whole_recording_is_drawn(tmp_path):
    found = longest(write(tmp_path, [one for one in steps() if "ProfilerStep" not in one["name"]]))
    assert (found["step"], found["steps"], found["kernels"]) == (None, 0, 4)


def test_few_streams_are_drawn_and_the_rest_counted(tmp_path):
    found = longest(write(tmp_path, steps(streams=MAX_STREAMS + 3)))
    assert found["streams_left_out"] == 3
    assert len(found["lanes"]) == MAX_STREAMS + 1


def test_the_page_draws_a_few_ranks_and_counts_the_others(tmp_path):
    page = render_html(report_traces(write(tmp_path, *[steps() for _ in range(MAX_STEPS + 2)])))
    assert page.count("<figcaption>Rank") >= MAX_STEPS
    assert "2 other ranks are in report.json" in page
    assert "No kernel is left out" in page


def test_the_files_follow_the_schema(tmp_path):
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    for name in ("sampled2", "alexnet", "amd"):
        write_report(report_traces(REAL / name), tmp_path)
        jsonschema.validate(json.loads((tmp_path / "report.json").read_text()), schema)


def test_the_notebook_runs():
    cells = json.loads(render_notebook(report_traces(REAL / "sampled2")))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - our own cells
    assert any("Longest steps" in "".join(cell["source"]) for cell in cells)
