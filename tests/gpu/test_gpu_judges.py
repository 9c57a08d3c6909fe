"""Findings on made-up traces, each with its line and its gain; healthy neighbours stay unnamed."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.diagnosis.classes import NO_CAUSE
from sm_profiler.diagnosis.gpu import Traced, decide_traces
from sm_profiler.gpu_traces.kernels import MatrixUnits
from sm_profiler.gpu_traces.measure import ELSEWHERE_US, RankTime, measure
from sm_profiler.report import Class
from sm_profiler.report.recordings import report_traces
from tests.support.gpu_events import (
    CASES,
    PARTS,
    STEP_US,
    busy,
    call,
    communicating,
    copying,
    event,
    kernel,
    training,
    write,
)

V100 = {"name": "Tesla V100-SXM2-16GB", "computeMajor": 7}


def findings(folder):
    verdict = report_traces(folder).verdict
    return {finding.kind: finding for finding in (verdict.main, *verdict.also)}


def in_line(step, line=7):
    """Return a step whose launches are inside a Python function of the user's and an operator."""

    def with_line(start, number):
        events = step(start, number)
        inside = [
            {**one, "name": name, "cat": kind, "ts": one["ts"] - 0.2, "dur": one["dur"] + 0.4, "args": {}}
            for one in events if one["cat"] in {"cuda_runtime", "user_annotation"}
            for name, kind in (("aten::op", "cpu_op"), (f"train.py({line}): work", "python_function"))
        ]  # fmt: skip
        return [*events, *inside]

    return with_line


def boundary(start, number):
    """Return a step at whose start the host runs nothing for 600 µs."""
    at = start + 600
    return [
        event("user_annotation", f"ProfilerStep#{number}", start, STEP_US), call(at, 5, number),
        kernel("tensorop_gemm", at + 6, STEP_US - 606, correlation=number),
    ]  # fmt: skip


def elsewhere(start, number):
    """Return a step, four times as long, in the middle of which the host runs no operator for most of the time."""
    at = 4 * start
    return [
        call(at, 5, 2 * number), kernel("tensorop_gemm", at + 6, 1000, correlation=2 * number),
        call(at + 3900, 5, 2 * number + 1), kernel("tensorop_gemm", at + 3906, 90, correlation=2 * number + 1),
    ]  # fmt: skip


within = partial(copying, name="Memcpy DtoD (Device -> Device)")


def sorting(start, number):
    """Return a step of which one kernel takes half; products take the rest."""
    return [
        call(max(start - 500, 0), 5, 2 * number), kernel("radixSortKVInPlace", start, 500, correlation=2 * number),
        call(max(start - 490, 0), 5, 2 * number + 1), kernel("tensorop_gemm", start + 500, 500, correlation=2 * number + 1),
    ]  # fmt: skip


def test_one_kernel_dominates(tmp_path):
    found = findings(write(tmp_path, training(in_line(sorting), 300)))
    one = found[Class.DOMINANT_KERNEL]
    assert "radixSortKVInPlace" in one.headline
    assert one.share_of_time == pytest.approx(0.5, abs=0.01)
    assert one.gain is not None
    assert (one.where[0].file, one.where[0].line) == ("train.py", 7)


@pytest.mark.parametrize(
    "name", ["sm80_xmma_gemm_f16f16_tensor16x8x16", "vectorized_elementwise_kernel", "ampere_sgemm"]
)
def test_products_and_elementwise_kernels_have_their_own_judges(name, tmp_path):
    found = findings(write(tmp_path, training(lambda start, number: busy(start, number, name=name), 300)))
    assert Class.DOMINANT_KERNEL not in found


def test_idle_between_steps_is_a_wait_for_data(tmp_path):
    main = report_traces(write(tmp_path, training(boundary, 300))).verdict.main
    assert main.kind is Class.INPUT_BOUND
    assert "between steps" in main.headline
    assert main.gain is not None


def test_idle_between_steps_names_the_line_that_ran(tmp_path):
    def step(start, number):
        return [*boundary(start, number), event("python_function", "data.py(12): read_batch", start + 20, 500)]

    main = report_traces(write(tmp_path, training(step, 300))).verdict.main
    assert [(one.file, one.line, one.function) for one in main.where] == [("data.py", 12, "read_batch")]


def test_operators_between_steps_are_no_wait_for_data(tmp_path):
    def step(start, number):
        return [*boundary(start, number), event("cpu_op", "aten::slow", start + 10, 580)]

    assert report_traces(write(tmp_path, training(step, 300))).verdict.kind is Class.HOST_BOUND


def test_a_host_that_does_something_else_gets_other_advice(tmp_path):
    main = report_traces(write(tmp_path, training(elsewhere, 300))).verdict.main
    assert main.kind is Class.HOST_BOUND
    assert "something other" in main.headline
    assert "CUDA graphs" not in main.next_step
    launching = report_traces(write(tmp_path, training(CASES["launching"][0], 300))).verdict.main
    assert "CUDA graphs" in launching.next_step
    assert STEP_US < 2 * ELSEWHERE_US


def test_copies_within_the_device_need_no_pinned_memory_first(tmp_path):
    one = findings(write(tmp_path, training(within, 300)))[Class.TRANSFER_BOUND]
    assert one.next_step.startswith("Look for .clone()")
    assert one.label == "Copies within the device"
    other = findings(write(tmp_path, training(CASES["copying"][0], 300)))[Class.TRANSFER_BOUND]
    assert other.next_step.startswith("Pin the host's memory")


def test_advice_follows_what_the_tensor_cores_can_do(tmp_path):
    events = training(lambda start, number: busy(start, number, name="volta_sgemm_128x64_nn"), 300)
    old = findings(write(tmp_path / "old", events, device=V100))[Class.TENSOR_CORES_UNUSED]
    assert "float16 and a GradScaler" in old.next_step
    assert "set_float32_matmul_precision" not in old.next_step
    new = findings(write(tmp_path / "new", events))[Class.TENSOR_CORES_UNUSED]
    assert "set_float32_matmul_precision" in new.next_step


@pytest.mark.parametrize(("name", "word"), [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "bucket_cap_mb"), ("ncclDevKernel_AllGather_RING_LL", "backward_prefetch"),
    ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "HYBRID_SHARD"), ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "experts"),
])  # fmt: skip
def test_exposed_communication_names_the_collective_and_what_helps(name, word, tmp_path):
    def step(start, number):
        described = {
            "Collective name": name.partition("_")[2], "dtype": "Float", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000,
            "Group size": 8, "Process Group Name": "dp",
        }  # fmt: skip
        return [
            {**one, "name": name, "args": {**one["args"], **described}} if "nccl" in one["name"] else one
            for one in communicating(start, number)
        ]

    one = findings(write(tmp_path, training(step, 300)))[Class.COMMUNICATION_BOUND]
    assert word in one.next_step
    values = {evidence.metric: str(evidence.value) for evidence in one.evidence}
    assert values["most exposed"].endswith(", group dp of 8 ranks: 100 % of it")
    assert "GB/s" in values["its bus bandwidth"]
    assert one.gain is not None


def test_a_late_rank_is_named_with_what_it_does_longer(tmp_path):
    def rank(length, line):
        def step(start, number):
            at = start + STEP_US - length
            return [
                call(start, 5, 2 * number), kernel("tensorop_gemm", start + 1, STEP_US - length - 1, correlation=2 * number),
                call(start + 6, 5, 2 * number + 1),
                kernel("ncclDevKernel_AllReduce", at, length, stream=20, correlation=2 * number + 1),
            ]  # fmt: skip

        return training(in_line(step, line), 300)

    one = findings(write(tmp_path, rank(400.0, 1), rank(20.0, 99), rank(400.0, 1)))[Class.STRAGGLER]
    assert one.evidence[-1].metric == "longer than the others: computing"
    assert [(where.file, where.line) for where in one.where] == [("train.py", 99)]
    assert one.gain is not None


def test_all_parts_still_add_up(tmp_path):
    for name, step in {"boundary": boundary, "elsewhere": elsewhere, "within": within, "sorting": sorting}.items():
        (rank,) = measure(GpuTraces(write(tmp_path / name, training(step))))
        parts = sum(rank.us[key] for key in PARTS)
        assert parts == pytest.approx(rank.us["total"]), name
        assert rank.us["idle_boundary"] <= rank.us["idle_input"]
        assert rank.us["idle_unrecorded"] <= rank.us["idle_launch"]
        assert min(rank.us.values()) >= 0, name


@pytest.mark.parametrize("case", [name for name in CASES if name != "healthy"])
def test_every_finding_has_a_gain_and_its_line(case, tmp_path):
    step, kind = CASES[case]
    one = findings(write(tmp_path, training(in_line(step), 300)))[kind]
    assert one.gain is not None
    assert one.where, case


REAL = [Path(one) for one in os.environ.get("SM_PROFILER_GPU_TRACES", "").split(os.pathsep) if one]
SIGNED = {
    "alexnet": (Class.INITIALIZATION_BOUND, set(), "low"), "nccl": (Class.HOST_BOUND, set(), "high"),
    "diff_control": (Class.COMMUNICATION_BOUND, set(), "medium"),
    "diff_test": (Class.TENSOR_CORES_UNUSED, {Class.TRANSFER_BOUND}, "high"),
    "sampled2": (Class.HOST_BOUND, {Class.COMMUNICATION_BOUND}, "medium"),
    "amd": (Class.INCONCLUSIVE, set(), "low"), "triton": (Class.INCONCLUSIVE, set(), "low"),
    "h100_qwen": (Class.MEMORY_BANDWIDTH_BOUND, set(), "high"), "mi300_qwen": (Class.MEMORY_BANDWIDTH_BOUND, set(), "high"),
    "h100_vit": (Class.HOST_BOUND, set(), "low"), "mi300_bert": (Class.HOST_BOUND, set(), "low"),
    "mi300_resnet_ddp_rank0": (Class.COMMUNICATION_BOUND, set(), "medium"),
}  # fmt: skip


@pytest.mark.skipif(not REAL, reason="SM_PROFILER_GPU_TRACES names no folders")
@pytest.mark.parametrize("name", SIGNED)
def test_the_verdicts_of_the_documents(name):
    folder = next((one / name for one in REAL if (one / name).is_dir()), None)
    if folder is None:
        pytest.skip("not among the folders")
    verdict = report_traces(folder).verdict
    kind, also, confidence = SIGNED[name]
    assert (verdict.kind, {one.kind for one in verdict.also}, verdict.main.confidence) == (kind, also, confidence)
    if name == "sampled2":
        assert "something other" in verdict.main.headline
    if name == "diff_control":
        assert "sendrecv: 95 %" in str(verdict.main.evidence)
    if name == "diff_test":
        assert "float16" in verdict.main.next_step


def rank_time(**us):
    """Return a rank whose other times are nothing."""
    names = (*PARTS, "idle_unrecorded", "idle_boundary", "matmul", "matmul_plain", "elementwise", "pageable", "within")
    return RankTime(
        rank=0, device="", us={**dict.fromkeys(names, 0.0), "total": 100.0, **us}, dominant="", dominant_us=0.0, kernels_us=0.0,
        units=MatrixUnits(known=True), copies=0, launches=1000, steps=10, short=0.0, signs=frozenset(), lines={},
    )  # fmt: skip


def test_a_gpu_that_is_idle_most_of_the_time_is_not_healthy_even_without_a_leading_cause():
    gpu = SimpleNamespace(ranks={}, columns=lambda _: ())
    idle = {"idle_launch": 14.0, "idle_queued": 29.0, "exposed_communication": 15.0, "idle_sync": 9.0}
    found = decide_traces(Traced.of([rank_time(compute=33.0, **idle)], gpu)).main
    assert found.is_open
    assert "computes only 33 %" in found.headline
    assert "idle with work queued 29 %, communication 15 %, idle before a late launch 14 %" in found.headline.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    healthy = decide_traces(Traced.of([rank_time(compute=90.0)], gpu)).main
    assert healthy.kind.is_healthy
    assert not healthy.is_open


def test_a_gpu_that_is_idle_a_third_of_the_time_without_a_cause_is_not_called_healthy():
    gpu = SimpleNamespace(ranks={}, columns=lambda _: ())
    found = decide_traces(Traced.of([rank_time(compute=67.0, idle_launch=15.0, exposed_communication=15.0)], gpu)).main
    assert (found.is_open, found.label) == (True, NO_CAUSE)


def test_all_findings_rank_by_what_their_repair_certainly_saves():
    """Waiting for data takes less than elementwise kernels do, but its repair certainly saves more."""
    gpu = SimpleNamespace(ranks={}, columns=lambda _: ())
    verdict = decide_traces(Traced.of([rank_time(compute=75.0, elementwise=40.0, idle_input=25.0)], gpu))
    assert [one.kind for one in verdict.findings] == [Class.INPUT_BOUND, Class.MEMORY_BANDWIDTH_BOUND]
    assert verdict.main.share_of_time < verdict.also[0].share_of_time


@pytest.mark.parametrize(("device", "known", "bfloat16", "tf32"), [
    ({"name": "NVIDIA H100", "computeMajor": 9}, True, True, True), (V100, True, False, False),
    ({"name": "Tesla P100", "computeMajor": 6}, False, False, False), ({"name": "AMD Instinct MI300X", "computeMajor": 9}, True, True, False),
    ({"name": "AMD Radeon RX 5700", "computeMajor": 10}, False, True, False), ({"name": "Intel(R) Data Center GPU Max"}, False, False, False),
])  # fmt: skip
def test_matrix_units_need_a_positive_sign(device, known, bfloat16, tf32):
    units = MatrixUnits.of([device])
    assert (units.known, units.bfloat16, units.tf32) == (known, bfloat16, tf32)


def test_two_ranks_that_are_late_in_turn_are_no_straggler(tmp_path):
    def rank(number):
        def step(start, at):
            length = 400.0 if at % 2 == number else 20.0
            return [
                call(start, 5, 2 * at), kernel("tensorop_gemm", start, STEP_US - length, correlation=2 * at),
                call(start + 6, 5, 2 * at + 1),
                kernel("ncclDevKernel_AllReduce", start + STEP_US - length, length, stream=20, correlation=2 * at + 1),
            ]  # fmt: skip

        return training(step, 300)

    found = findings(write(tmp_path, rank(0), rank(1)))
    assert Class.STRAGGLER not in found
    assert Class.COMMUNICATION_BOUND in found


def test_what_others_wait_for_a_late_rank_is_no_communication(tmp_path):
    def rank(length):
        def step(start, at):
            return [
                call(start, 5, 2 * at), kernel("tensorop_gemm", start, STEP_US - length, correlation=2 * at),
                call(start + 6, 5, 2 * at + 1),
                kernel("ncclDevKernel_AllReduce", start + STEP_US - length, length, stream=20, correlation=2 * at + 1),
            ]  # fmt: skip

        return training(step, 300)

    report = report_traces(write(tmp_path, rank(400.0), rank(20.0), rank(400.0)))
    assert [one.kind for one in report.verdict.findings] == [Class.STRAGGLER]
    assert report.ledger.share("waiting for other ranks") == pytest.approx(0.253, abs=0.01)
    assert report.ledger.share("communication") == pytest.approx(0.02, abs=0.001)


def test_advice_leaves_out_what_the_trace_shows_to_be_in_use(tmp_path):
    name = "vectorized_elementwise_kernel"
    plain = findings(write(tmp_path / "a", training(lambda start, at: busy(start, at, name=name), 300)))
    advice = plain[Class.MEMORY_BANDWIDTH_BOUND].next_step
    assert "scaled_dot_product_attention" in advice
    assert "half precision" in advice
    assert "optimizers" not in advice  # nothing shows that it trains

    def step(start, at):
        used = "flash_fwd_kernel_bf16" if at % 4 == 0 else name
        return [*busy(start, at, name=used), event("cpu_op", "CompiledFunctionBackward", start, 5)]

    advice = findings(write(tmp_path / "b", training(step, 300)))[Class.MEMORY_BANDWIDTH_BOUND].next_step
    assert "scaled_dot_product_attention" not in advice
    assert "half precision" not in advice
    assert "fused norms and optimizers" in advice
    assert "what torch.compile left out" in advice
