"""Operators of TensorFlow's and JAX's traces as events: which, in which step, in which phase."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from sm_profiler.formats.xplane_reader import Origin, read_xplane
from sm_profiler.hook import convert
from sm_profiler.hook.convert_xplane import compiled_work, operators, phase_of
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from tests.support.xplane import Plane, program, space

DATA = Path(__file__).parents[1] / "data" / "xplane"


def sample(name):
    return gzip.decompress((DATA / f"{name}.xplane.pb.gz").read_bytes())


def events_of(name):
    trace, _ = read_xplane(sample(name))
    start = trace.base_ns // 1000
    framework = name.partition("_")[0]
    steps = [(4, start), (5, start + 10**7), (-1, start + 10**8)]
    return [(event, json.loads(event.args)) for event in operators(trace, steps, 7, framework)]


@pytest.mark.parametrize("name", ["jax", "tensorflow", "tensorflow_xla"])
def test_operators_carry_step_phase_and_name(name):
    found = events_of(name)
    assert found
    assert {event.phase for event, _ in found} == {"cpu_functions"}
    assert {args["pid"] for _, args in found} == {7}
    assert {args.get("step_num") for _, args in found} == {4}
    assert not any(event.name.startswith(("end: ", "Threadpool", "Executor")) for event, _ in found)
    phases = Counter(args.get("phase") for _, args in found)
    assert {"forward", "backward", "optimizer"} <= set(phases)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("jax", {"jit(train_step)/transpose(jvp(model))/transpose", "jit(train_step)/wrapped_reduce-window"}),
        ("tensorflow_xla", {"sequential_1/out_1/MatMul", "adam/AssignAddVariableOp_2", "copy.1"}),
        ("tensorflow", {"adam/Add_2:AddV2"}),
    ],
)
def test_operators_of_the_host_have_the_names_of_functions_and_layers(name, expected):
    found = events_of(name)
    assert expected <= {event.name for event, _ in found}
    compiled = [args["hlo_op"] for _, args in found if "hlo_op" in args]
    assert bool(compiled) is (name != "tensorflow")


def test_kernels_keep_their_names():
    kernel = {"hlo_op": "dot", "hlo_module": "jit_f", "tf_op": "jit(f)/dot"}
    device = Plane("/device:GPU:1").line("Stream #13(Compute)", [("gemm", 0, 10, kernel)])
    device.line("XLA Modules", [("jit_f", 0, 10, {})])
    trace, _ = read_xplane(space(device, Plane("/device:GPU:0").line("Steps", [("other", 0, 10, {})])))
    found = [(event.phase, event.name) for event in operators(trace, [(4, 0), (-1, 10**9)], 7, "jax")]
    assert found == [("gpu_functions-dev:1", "gemm"), ("gpu_functions-dev:0", "other")]


@pytest.mark.parametrize("has_start", [True, False])
def test_events_beyond_the_steps_are_left_out_and_a_trace_without_a_start_began_with_them(has_start):
    work = {"hlo_op": "dot", "hlo_module": "jit_f"}
    far = 2**62
    host = Plane("/host:CPU").line(
        "Eigen", [("dot", 3 * 10**9, 10**6, work), ("long", 0, far, work), ("late", far, 5, work)]
    )
    host.line("other", [("early", -far, 5, work)])
    first = 1_700_000_000_000_000
    planes = (Plane("Task Environment").argument("profile_start_time", first * 1000),) if has_start else ()
    trace, _ = read_xplane(space(host, *planes))
    found = list(operators(trace, [(4, first), (5, first + 2_000), (-1, first + 10_000)], 7, "jax"))
    assert [(event.name, event.start_us, event.duration_us) for event in found] == [("jit(f)/dot", first + 3_000, 1)]
    assert json.loads(found[0].args)["step_num"] == 5


@pytest.mark.parametrize(
    ("name", "tensorflow", "phase"),
    [
        ("StatefulPartitionedCall/gradient_tape/sequential_1/out_1/MatMul/MatMul_1", True, "backward"),
        ("StatefulPartitionedCall/adam/Sub_7/ReadVariableOp", True, "optimizer"),
        ("adam/AssignAddVariableOp", True, "optimizer"),
        ("StatefulPartitionedCall/sequential_1/wide_1/Relu", True, "forward"),
        ("StatefulPartitionedCall/Add_1", True, ""),
        ("jit(train_step)/transpose(jvp(model))/dot_general", False, "backward"),
        ("jit(train_step)/jvp(model)/tanh", False, "forward"),
        ("jit(train_step)/jvp()/tanh", False, "forward"),
        ("jit(train_step)/mul", False, ""),
        ("", False, ""),
    ],
)
def test_phases_follow_from_names(name, tensorflow, phase):
    assert phase_of(Origin(name), tensorflow=tensorflow) == phase


OPTAX = ("/env/site-packages/optax/_src/transform.py", 77, "update_fn")
LINE = ("/job/train.py", 9, "step")


@pytest.mark.parametrize(
    ("name", "calls", "phase"),
    [
        ("jit(step)/mul", (OPTAX, LINE), "optimizer"),
        ("jit(step)/mul", (LINE,), ""),
        ("jit(step)/jvp()/log", (OPTAX, LINE), "forward"),  # one of its losses
        ("jit(step)/transpose(jvp())/mul", (OPTAX, LINE), "backward"),
        (
            "jit(step)/sub",
            (("/env/site-packages/flax/training/train_state.py", 5, "apply_gradients"), LINE),
            "optimizer",
        ),
        ("jit(step)/sub", (("/job/my_optax_helpers.py", 5, "update"), LINE), ""),
    ],
)
def test_phases_follow_from_the_code_that_an_operation_was_traced_in(name, calls, phase):
    assert phase_of(Origin(name, calls), tensorflow=False) == phase


def work_of(name):
    trace, _ = read_xplane(sample(name))
    start = trace.base_ns // 1000
    return compiled_work(trace, [(4, start), (-1, start + 10**8)], name.partition("_")[0])


@pytest.mark.parametrize(("name", "share"), [("jax", 0.224), ("tensorflow", 0.2548), ("tensorflow_xla", 0.1634)])
def test_the_optimizers_share_of_compiled_functions(name, share):
    assert work_of(name).optimizer == pytest.approx(share, abs=1e-4)


def test_lines_of_the_optimizer_within_a_compiled_function():
    """JAX keeps the stack in which an operation was traced."""
    stacks = work_of("jax").stacks
    assert [one.frames[-1][1:] for one in stacks if one.updates][:1] == [(13, "train_step")]
    assert {one.frames[-1][1:] for one in stacks if one.updates} == {(13, "train_step"), (14, "train_step")}
    assert (stacks[0].frames[-1][2], stacks[0].operation, stacks[0].updates) == ("loss", "transpose", None)
    assert sum(one.us for one in stacks if one.updates) == pytest.approx(0.224 * sum(one.us for one in stacks), rel=0.3)


def test_time_counts_once_where_operations_contain_others_and_functions_without_gradients_do_not_count():
    names = {"while": "jit(f)/while", "adam": "jit(f)/adam/mul", "dot": "jit(f)/transpose(jvp())/dot"}
    ran = [("while", 0, 100), ("adam", 10, 60), ("dot", 70, 20)]
    other = {"hlo_op": "adam", "hlo_module": "jit_predict", "program_id": 2}
    host = Plane("/host:CPU").line(
        "Eigen", [(op, at, spent, {"hlo_op": op, "hlo_module": "jit_f", "program_id": 1}) for op, at, spent in ran]
    )
    host.line("other", [("adam", 0, 500, other)])
    host.program("jit_f(1)", program("jit_f", names)).program("jit_predict(2)", program("jit_predict", names))
    trace, _ = read_xplane(space(host))
    assert compiled_work(trace, [(4, 0), (-1, 10**9)], "jax").optimizer == pytest.approx(0.6)


def test_functions_without_gradients_are_no_step():
    host = Plane("/host:CPU").line("Eigen", [("dot", 0, 10, {"hlo_op": "dot", "hlo_module": "jit_f"})])
    trace, _ = read_xplane(space(host.program("jit_f(1)", program("jit_f", {"dot": "jit(f)/dot"}))))
    assert compiled_work(trace, [(4, 0), (-1, 10**9)], "jax") is None


def converted(tmp_path, raw, carry_out=convert.convert_trace):
    """Convert a trace of JAX's; return the folder with the results."""
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "raw.xplane.pb").write_bytes(raw)
    start = read_xplane(raw)[0].base_ns // 1000
    order = {
        "kind": "xplane", "trace": str(folder / "raw.xplane.pb"), "framework": "jax", "root": str(tmp_path / "out"), "source": "0-algo-1", "pid": 7,
        "first_step": 3, "steps": [[3, start], [-1, start + 10**6]], "collector": "detailed",
        "process": {"pid": 7, "rank": 0, "node": "algo-1", "collectors": {"detailed": "done"}},
    }  # fmt: skip
    carry_out(order)
    assert not folder.exists()
    return tmp_path / "out"


def test_the_trace_is_kept_and_its_folder_removed(tmp_path):
    out = converted(tmp_path, sample("jax"))
    (kept,) = out.glob("framework/jax/detailed_profiling/*/000000003/0-algo-1.xplane.pb")
    assert kept.read_bytes() == sample("jax")
    (written,) = out.glob("framework/pevents/*/*.json")
    rows = json.loads(written.read_text())
    assert any(row.get("args", {}).get("phase") == "backward" for row in rows)
    (work,) = [row["args"] for row in rows if row["name"] == "compiled functions"]
    assert 0 < work["optimizer"] < 1
    assert build_report(open_source(out)).quality.collectors == ()


def test_a_process_records_how_long_it_ran_and_for_how_much_of_that_it_had_a_core(tmp_path):
    out = converted(tmp_path, sample("jax"), lambda order: convert.finish(convert.start(convert.XPLANE, order)))
    rows = [row for file in out.glob("framework/pevents/*/*.json") for row in json.loads(file.read_text())]
    (own,) = [row for row in rows if row["name"] == "detailed window is converted"]
    assert own["args"]["pid"] == 7
    assert own["args"]["kind"] == "background"
    assert 0 < own["args"]["cpu_s"] < 30
    assert own["dur"] > 10_000


def test_a_window_is_kept_if_the_working_folder_is_removed(tmp_path, monkeypatch):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    monkeypatch.setenv("PYTHONPATH", "here")
    removed.rmdir()
    out = converted(tmp_path, sample("jax"), lambda order: convert.finish(convert.start(convert.XPLANE, order)))
    assert list(out.glob("framework/pevents/*/*.json"))


def test_a_conversion_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    out = converted(tmp_path, sample("jax"), lambda order: convert.finish(convert.start(convert.XPLANE, order)))
    assert list(out.glob("framework/pevents/*/*.json"))


def test_operators_beyond_the_limit_are_counted_in_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "MAX_EVENTS", 10)
    whole = len(events_of("jax"))
    report = build_report(open_source(converted(tmp_path, sample("jax"))))
    assert report.quality.collectors == (f"detailed: only the first 10 of the window's {whole} events are kept",)
