"""Traces of an H100 with recent PyTorch: the tables give what torch's own `key_averages()` gives."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.report import Class
from sm_profiler.report.recordings import report_traces

TRACES = Path(__file__).parents[1] / "data" / "gpu_traces_h100"


@pytest.fixture(scope="module", params=["small_steps", "cuda_graph"])
def recorded(request):
    name = request.param
    traces = GpuTraces(TRACES / f"{name}.json.gz", last_step=True)
    return name, traces, json.loads((TRACES / f"{name}.torch.json").read_text())


def test_kernels_have_the_counts_and_times_of_torch(recorded):
    _, traces, truth = recorded
    found = {row["name"]: (row["count"], row["sum_us"]) for row in traces.columns("kernels").rows()}
    assert found.keys() == truth["kernels"].keys()
    for name, (count, spent) in truth["kernels"].items():
        assert found[name] == (count, pytest.approx(spent, abs=0.01))


def test_operators_have_the_times_of_torch(recorded):
    name, traces, truth = recorded
    found = defaultdict(float)
    for row in traces.columns("operators").rows():
        found[row["operator"]] += row["device_us"]
    if name == "cuda_graph":  # its kernels belong to no operator
        assert found.pop("") > 0.99 * sum(found.values())
    assert found == {operator: pytest.approx(spent, abs=0.01) for operator, spent in truth["operators"].items()}


def test_launches_limit_small_steps_and_not_those_of_a_graph():
    kinds = {path: report_traces(TRACES / f"{path}.json.gz").verdict.kind for path in ("small_steps", "cuda_graph")}
    assert kinds == {"small_steps": Class.HOST_BOUND, "cuda_graph": Class.DOMINANT_KERNEL}
