"""benchmarks/gpu.py without a GPU: what it computes, on made-up traces and with a fake clock."""

import importlib.util
import json
from pathlib import Path

import pytest

from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.kineto_reader import read_kineto
from tests.support.gpu_events import call, event, kernel

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
EPOCH_US = 1.7e15


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace_of(*events):
    found = {"schemaVersion": 1, "baseTimeNanoseconds": int(EPOCH_US * 1000), "traceEvents": list(events)}
    trace, _ = read_kineto([json.dumps(found).encode()])
    return trace


def test_the_truth_of_a_phase_lags_behind_the_host(benchmark):
    """The host launches two kernels from 100 to 200; the device is busy with earlier ones until 500."""
    trace = trace_of(
        call(0, 5, 1), kernel("before", 10, 490, correlation=1), call(110, 5, 2), kernel("a", 500, 50, correlation=2),
        call(190, 5, 3), kernel("b", 560, 40, correlation=3), call(210, 5, 4), kernel("after", 600, 99, correlation=4),
    )  # fmt: skip
    host = EPOCH_US + 100, EPOCH_US + 200
    assert benchmark.truth_of(trace, host) == pytest.approx(100, abs=0.5)
    assert benchmark.truth_of(trace, (EPOCH_US + 300, EPOCH_US + 400)) is None  # launched nothing
    assert benchmark.truth_of(trace, (EPOCH_US, EPOCH_US + 100)) is None  # nothing before it to begin from


def test_a_device_that_waits_for_the_host_begins_with_the_phase(benchmark):
    trace = trace_of(
        call(0, 5, 1), kernel("before", 10, 20, correlation=1), call(150, 5, 2), kernel("a", 160, 90, correlation=2)
    )
    assert benchmark.truth_of(trace, (EPOCH_US + 100, EPOCH_US + 200)) == pytest.approx(150, abs=0.5)


def test_compares_the_steps_that_have_both(benchmark):
    trace = trace_of(
        call(0, 5, 1), kernel("before", 10, 90, correlation=1), call(150, 5, 2), kernel("a", 160, 90, correlation=2)
    )
    host = {("Forward", 3): (EPOCH_US + 100, EPOCH_US + 200), ("Forward", 4): (EPOCH_US + 900, EPOCH_US + 950)}
    by_events = {("gpu", 3): (EPOCH_US + 100, EPOCH_US + 256), ("gpu", 4): (0, 1), ("gpu", 5): (0, 1)}
    found = benchmark.compare_phases(trace, host, by_events, {"gpu": "Forward"})
    ((measured, truth),) = found["Forward"]
    assert (measured, truth) == (pytest.approx(156, abs=0.5), pytest.approx(150, abs=0.5))
    assert "| Forward | 1 | 0.156 | 0.150 | 4.0 % |" in benchmark.phase_table({"Forward": [(156.0, 150.0)]})
    assert "no step has both" in benchmark.phase_table({})


def test_reads_spans_from_a_profile(benchmark):
    rows = [("Forward", 3, 100.0, 20.0), ("Other", 3, 0.0, 1.0)]
    events = made_events(rows)
    assert benchmark.spans_of(events, ["Forward"]) == {("Forward", 3): (100.0, 120.0)}


def made_events(rows):
    import numpy as np

    from sm_profiler.formats.columns import Category

    count = len(rows)
    phases, steps, starts, lengths = zip(*rows, strict=True)
    texts, numbers = Category.of(["x"] * count), np.zeros(count, np.int32)
    columns = dict.fromkeys(EventColumns.__annotations__, numbers)
    columns |= dict.fromkeys(("name", "node", "kind", "args"), texts)
    columns |= {"phase": Category.of(list(phases)), "step": np.array(steps), "start_us": np.array(starts)}
    return EventColumns(**columns | {"duration_us": np.array(lengths)})


def test_pairs_alternate_and_warm_up(benchmark):
    state, order = {"on": None, "warm": 0}, []

    def turn(with_it):
        state.update(on=with_it, warm=0)
        order.append(with_it)

    def run():
        state["warm"] += 1
        cold = 1000 if state["warm"] <= benchmark.WARM_RUNS else 0
        return 100.0 + 7 * state["on"] + cold

    found = benchmark.paired(run, turn, 4)
    assert found == {"step": [100.0] * 3, "added": [7.0] * 3}
    assert order == [True, False, False, True] * 2


def test_the_network_is_resnet_50(benchmark):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = benchmark.resnet50(torch)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(part.numel() for part in model.parameters()) == 25_557_032


def test_without_a_device_nothing_is_measured(benchmark, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark.main([]) == 0
    assert capsys.readouterr().out == "not run: no CUDA device\n"


def test_phases_are_read_from_a_profile_and_its_trace(benchmark, tmp_path):
    """A folder with the trace of a window and no events gives no step, and no error."""
    folder = tmp_path / "framework" / "pytorch" / "detailed_profiling" / "2024010100" / "000000040"
    folder.mkdir(parents=True)
    content = {"schemaVersion": 1, "traceEvents": [event("cpu_op", "aten::mm", 0, 10)]}
    (folder / "1-algo-1.trace.json").write_text(json.dumps(content))
    assert benchmark.measure_phases(tmp_path) == {}
