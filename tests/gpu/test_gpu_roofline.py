"""Arithmetic, roofline classes, and backward operators led back to the forward pass."""

import json

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.formats.kineto_reader import OperatorInputs
from sm_profiler.gpu_traces.kernels import peaks_of
from sm_profiler.gpu_traces.roofline import bytes_of, flops_of
from tests.support.gpu_events import call, event, kernel

CONVOLUTION = [[8, 3, 32, 32], [16, 3, 3, 3], [16], [], [], [], [], [], []]
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8}


def inputs(shapes, kind="float", values=()):
    return OperatorInputs(
        json.dumps(shapes), json.dumps([kind] * len(shapes)), json.dumps(list(values)) if values else ""
    )


def settings(stride, padding, dilation="[1, 1]", transposed="False"):
    return ["", "", "", stride, padding, dilation, transposed, "[0, 0]", "1"]


@pytest.mark.parametrize(("operator", "found", "expected"), [
    ("aten::mm", inputs([[4, 8], [8, 2]]), 2 * 4 * 8 * 2),
    ("aten::addmm", inputs([[2], [4, 8], [8, 2], [], []]), 2 * 4 * 8 * 2),
    ("aten::bmm", inputs([[5, 4, 8], [5, 8, 2]]), 2 * 5 * 4 * 8 * 2),
    ("aten::convolution", inputs(CONVOLUTION, values=settings("[1, 1]", "[1, 1]")), 2 * 8 * 16 * 32 * 32 * 3 * 9),
    ("aten::convolution", inputs(CONVOLUTION, values=settings("[2]", "[0]", "[2]")), 2 * 8 * 16 * 14 * 14 * 3 * 9),
    ("aten::convolution", inputs([[2, 4, 5, 5], [4, 6, 2, 2]], values=settings("[2, 2]", "[0, 0]", transposed="True")),
     2 * 2 * 4 * 25 * 6 * 4),
    ("aten::convolution_backward", inputs([[8, 16, 32, 32], [8, 3, 32, 32], [16, 3, 3, 3]]), 4 * 8 * 16 * 32 * 32 * 3 * 9),
    ("aten::_scaled_dot_product_flash_attention", inputs([[2, 4, 128, 64]] * 3), 4 * 2 * 4 * 128 * 128 * 64),
    ("aten::_scaled_dot_product_flash_attention_backward", inputs([[2, 4, 128, 64]] * 4), 10 * 2 * 4 * 128 * 128 * 64),
    ("aten::relu", inputs([[4, 8]]), 0),
    ("aten::convolution", inputs(CONVOLUTION), 0),  # stride unknown
])  # fmt: skip
def test_arithmetic_of_operators(operator, found, expected):
    assert flops_of(operator, found) == expected


@pytest.mark.parametrize("shapes", ["", "{}", "[[], []]", "[[1]]", '[["a"], ["b"]]', "[[1e400, 2], [2, 3]]", "[3, 4]"])
def test_arithmetic_of_odd_shapes_is_none(shapes):
    for operator in ("aten::mm", "aten::convolution", "aten::_scaled_dot_product_flash_attention"):
        assert flops_of(operator, OperatorInputs(shapes, "[]", '["", "", "", "[0]", "[0]", "[0]", "False"]')) == 0
    assert bytes_of("aten::add", OperatorInputs(shapes, "[3]")) >= 0


def test_bytes_of_operators():
    assert bytes_of("aten::mm", inputs([[4, 8], [8, 2]], "c10::Half")) == 2 * (32 + 16 + 8)
    assert bytes_of("aten::_foreach_add_", inputs([[[3, 4], [5]], [[3, 4], [5]], []])) == 4 * 34
    assert bytes_of("aten::embedding", inputs([[1_000_000, 64], [8]])) == 0


def test_what_limits_each_operator(tmp_path):
    def operator(name, start, length, number, shapes):
        described = {"Input Dims": shapes, "Input type": ["c10::BFloat16"] * len(shapes)}
        return [event("cpu_op", name, start, 40, **described), call(start + 5, 10, number),
                kernel(name, start + 50, length, correlation=number)]  # fmt: skip

    events = [
        *operator("aten::mm", 0, 600, 1, [[4096, 4096], [4096, 4096]]),
        *operator("aten::add", 1000, 60, 2, [[4096, 4096], [4096, 4096], []]),
        *operator("aten::mul", 2000, 2, 3, [[16], [16]]),
        kernel("ncclDevKernel_AllReduce", 3000, 10),
    ]
    document = {"schemaVersion": 1, "deviceProperties": [A100], "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(document))
    gpu = GpuTraces(tmp_path)
    rows = {row["operator"]: row for row in gpu.columns("roofline").rows()}
    assert {name: row["bound"] for name, row in rows.items()} == {
        "aten::mm": "compute", "aten::add": "memory", "aten::mul": "launch",
    }  # fmt: skip
    product = 2 * 4096**3
    assert rows["aten::mm"]["tflops"] == pytest.approx(product / 600e6)
    assert rows["aten::mm"]["share_of_peak"] == pytest.approx(product / 600e6 / 312)
    assert rows["aten::add"]["gbps"] == pytest.approx(2 * 4096**2 * 2 / 60e3)
    (arithmetic,) = gpu.columns("flops").rows()
    assert arithmetic["mfu"] == pytest.approx(product / (3010 - 50) / 1e6 / 312)


def test_an_unknown_device_has_no_bounds():
    assert peaks_of("Voodoo 2") is None
    assert peaks_of("NVIDIA A100-SXM4-40GB").gbps < peaks_of("NVIDIA A100-SXM4-80GB").gbps


def test_backward_operators_have_the_module_and_line_of_their_forward(tmp_path):
    def sequence(number, thread=0):
        return {"Sequence number": number, "Fwd thread id": thread}

    events = [
        event("python_function", "train.py(83): step", 0, 100),
        event("python_function", "nn.Module: Linear_0", 6, 70),
        event("cpu_op", "aten::linear", 10, 40, **sequence(5)), event("cpu_op", "aten::addmm", 12, 30, **sequence(5)),
        event("cpu_op", "aten::sum", 80, 10, **sequence(6)),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 200, 50, thread=2, **sequence(5, 1)),
        event("cpu_op", "AddmmBackward0", 205, 40, thread=2, **sequence(5, 1)),
        event("cpu_op", "aten::mm", 210, 20, thread=2),
        call(215, 3, 1, thread=2), kernel("gemm", 240, 25, correlation=1),
        event("cpu_op", "MulBackward0", 300, 40, thread=2, **sequence(99, 1)),
        call(305, 3, 2, thread=2), kernel("mul", 340, 5, correlation=2),
    ]  # fmt: skip
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    product, other = GpuTraces(tmp_path).columns("operators").rows()
    assert (product["operator"], product["forward"], product["module"]) == ("aten::mm", "aten::addmm", "Linear_0")
    assert (product["file"], product["line"]) == ("train.py", 83)
    assert (other["operator"], other["forward"], other["module"], other["file"]) == ("MulBackward0", "", "", "")


def test_a_librarys_operator_is_the_forward_one_not_a_part_of_it(tmp_path):
    sequence = {"Sequence number": 5, "Fwd thread id": 0}
    events = [
        event("cpu_op", "lib::lookup", 10, 40), event("cpu_op", "aten::zero_", 12, 10, **sequence),
        event("cpu_op", "CppNode<Lookup>", 200, 50, thread=2, **{**sequence, "Fwd thread id": 1}),
        call(215, 3, 1, thread=2), kernel("scatter", 240, 25, correlation=1),
    ]  # fmt: skip
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (row,) = GpuTraces(tmp_path).columns("operators").rows()
    assert (row["operator"], row["forward"]) == ("CppNode<Lookup>", "lib::lookup")
