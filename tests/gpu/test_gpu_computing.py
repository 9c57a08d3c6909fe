"""Tables of `GpuTraces` on made-up traces with expected results."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm_profiler.analysis.gpu import GpuTraces
from sm_profiler.gpu_traces import intervals, kernels
from sm_profiler.gpu_traces.measure import measure
from sm_profiler.gpu_traces.table import Groups
from sm_profiler.gpu_traces.traces import _TABLES
from tests.support.gpu_events import call, event, kernel, write


@pytest.fixture
def traces(tmp_path):
    def of(*ranks, **properties):
        for rank, events in enumerate(ranks):
            found = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, **properties, "traceEvents": events}
            (tmp_path / f"rank{rank}.json").write_text(json.dumps(found))
        return GpuTraces(tmp_path)

    return of


def test_divides_a_gpus_time(traces):
    gpu = traces([kernel("gemm", 0, 10), kernel("ncclDevKernel_AllReduce", 5, 10, stream=20), kernel("relu", 30, 10)])
    (row,) = gpu.temporal_breakdown().to_dict("records")
    assert row == {"rank": 0, "idle_us": 15.0, "compute_us": 20.0, "non_compute_us": 5.0, "total_us": 40.0}
    (row,) = gpu.communication_overlap().to_dict("records")
    assert row == {"rank": 0, "share_hidden": 0.5, "exposed_us": 5.0}
    assert gpu.kinds().set_index("kind")["sum_us"].to_dict() == {
        "computation": 15.0, "computation and communication": 5.0, "communication": 5.0,
    }  # fmt: skip


def test_divides_idle_time_by_reason(traces):
    gpu = traces([
        call(0, 2, 1), kernel("a", 5, 10, correlation=1),
        call(3, 2, 2), kernel("b", 17, 10, correlation=2),  # queued: 2 us
        call(90, 2, 3), kernel("c", 100, 10, correlation=3),  # launched late: 73 us
        call(95, 2, 4), kernel("d", 200, 10, correlation=4),  # queued, and waits for something else: 90 us
    ])  # fmt: skip
    idle = gpu.idle_breakdown().set_index("category")["idle_us"]
    assert idle.to_dict() == {"host_wait": 73.0, "kernel_wait": 2.0, "other": 90.0}


def test_a_step_that_was_cut_off_is_left_out(traces):
    def step(number, start):
        return [
            event("user_annotation", f"ProfilerStep#{number}", start, 100),
            call(start + 1, 2, number), kernel("k", start + 10, 20, correlation=number),
        ]  # fmt: skip

    gpu = traces([*step(1, 0), *step(2, 100), *step(3, 200)])
    assert gpu.temporal_breakdown()["compute_us"].tolist() == [40.0]
    assert gpu.steps()["step"].tolist() == [1, 2]


def test_launches_and_their_queue(traces):
    gpu = traces(
        [call(0, 4, 1), call(4, 4, 2), call(8, 30, 3), *(kernel("k", 10 + 3 * n, 2, correlation=n) for n in (1, 2, 3))]
    )
    launches = gpu.launch_statistics()
    assert launches["delay_us"].tolist() == [9.0, 8.0, 0.0]
    assert launches["shorter_than_launch"].tolist() == [True, True, True]
    (row,) = gpu.queue_length().to_dict("records")
    assert (row["count"], row["max"], row["stream"]) == (6, 3, 7)


def test_operators_have_their_callers(traces):
    gpu = traces([
        event("python_function", "train.py(83): step", 0, 100),
        event("python_function", "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py(114): forward", 5, 80),
        event("python_function", "nn.Module: Linear_0", 6, 70),
        event("user_annotation", "augment", 7, 60),
        event("cpu_op", "aten::linear", 10, 40), event("cpu_op", "aten::addmm", 12, 30),
        call(20, 3, 1), kernel("gemm", 60, 25, correlation=1),
    ])  # fmt: skip
    (row,) = gpu.operators().to_dict("records")
    assert (row["operator"], row["caller"], row["module"], row["annotation"]) == (
        "aten::addmm", "aten::linear", "Linear_0", "augment",
    )  # fmt: skip
    assert (row["file"], row["line"], row["device_us"]) == ("train.py", 83, 25.0)


def test_synchronizations_have_the_idle_time_after_them(traces):
    gpu = traces([
        event("python_function", "train.py(90): log", 0, 200), event("cpu_op", "aten::item", 5, 60),
        call(0, 2, 1), kernel("a", 5, 55, correlation=1),
        call(10, 51, name="cudaStreamSynchronize"),
        call(100, 2, 2), kernel("b", 105, 5, correlation=2),
    ])  # fmt: skip
    (row,) = gpu.synchronizations().to_dict("records")
    assert (row["operator"], row["file"], row["line"], row["host_us"], row["idle_after_us"]) == (
        "aten::item", "train.py", 90, 51.0, 45.0,
    )  # fmt: skip


def test_copies_by_direction(traces):
    def copy(name, start, length, size):
        return event("gpu_memcpy", name, start, length, thread=7, stream=7, bytes=size)

    gpu = traces([
        copy("Memcpy HtoD (Pageable -> Device)", 0, 10, 100_000), copy("Memcpy HtoD (Pageable -> Device)", 20, 10, 300_000),
        copy("Memcpy DtoH (Device -> Pinned)", 40, 5, 1000),
    ])  # fmt: skip
    table = gpu.memory_bandwidth().set_index("direction")
    assert table.loc["Memcpy HtoD", ["pageable", "count", "bytes", "gbps", "max_gbps"]].tolist() == [
        True,
        2,
        4e5,
        20.0,
        30.0,
    ]
    assert not table.loc["Memcpy DtoH", "pageable"]


def test_collectives_have_a_bus_bandwidth(traces):
    arguments = {"Collective name": "allreduce", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000, "Group size": 4,
                 "dtype": "Float", "Process Group Name": "data"}  # fmt: skip
    one = kernel("ncclDevKernel_AllReduce_Sum_f32", 0, 100, stream=20)
    one["args"] |= arguments
    (row,) = traces([one, kernel("gemm", 0, 60)]).communication().to_dict("records")
    assert (row["operation"], row["group"], row["group_size"], row["exposed_us"]) == ("allreduce", "data", 4, 40.0)
    assert row["bus_gbps"] == pytest.approx(4e6 / 100 / 1e3 * 1.5)


def test_the_rank_that_comes_last_is_the_one_that_waits_least(traces):
    def rank(length):
        return [kernel("ncclDevKernel_AllReduce", 100.0 * n, length, stream=20) for n in range(10)]

    table = traces(rank(50), rank(10), rank(48)).stragglers().set_index("rank")
    assert table["last"].to_dict() == {0: 0, 1: 10, 2: 0}
    assert table.loc[1, "late_us"] == pytest.approx(390.0)


def test_the_critical_path_of_a_gpu_that_waits_for_the_host(traces):
    events = []
    for number in range(5):
        at = 100.0 * number
        events += [
            event("cpu_op", f"op {number}", at, 90),
            call(at + 80, 5, number),
            kernel("k", at + 90, 5, correlation=number),
        ]
    path = traces(events).critical_path()
    spent = path.groupby("kind")["duration_us"].sum()
    assert spent["host"] > 400
    assert spent.get("computation", 0) == 5.0
    assert path["start_us"].is_monotonic_increasing


def test_the_critical_path_of_a_gpu_that_is_never_idle(traces):
    events = [event("cpu_op", "op", 0, 30)]
    for number in range(10):
        events += [call(1 + number, 1, number), kernel("k", 20 + 50.0 * number, 50, correlation=number)]
    spent = traces(events).critical_path().groupby("kind")["duration_us"].sum()
    assert spent["computation"] == 500.0


def test_the_critical_path_goes_through_a_wait_for_the_device(traces):
    path = traces([
        event("cpu_op", "first", 0, 10), call(2, 2, 1), kernel("long", 5, 200, correlation=1),
        event("cpu_op", "aten::item", 12, 200), call(15, 195, name="cudaStreamSynchronize"),
        event("cpu_op", "second", 215, 10), call(218, 2, 2), kernel("last", 222, 10, correlation=2),
    ]).critical_path()  # fmt: skip
    assert "long" in path["name"].tolist()
    assert path.groupby("kind")["duration_us"].sum()["computation"] == pytest.approx(210.0)


def test_arithmetic_from_shapes(traces):
    multiply = event("cpu_op", "aten::mm", 0, 10)
    multiply["args"] = {"Input Dims": [[1000, 500], [500, 2000]], "Input type": ["c10::Half", "c10::Half"]}
    gpu = traces(
        [multiply, call(1, 1, 1), kernel("hgemm", 5, 20, correlation=1)],
        deviceProperties=[{"name": "NVIDIA A100-SXM4-40GB"}],
    )
    (row,) = gpu.flops().to_dict("records")
    assert (row["flops"], row["half_share"], row["peak_tflops"]) == (2e9, 1.0, 312.0)
    assert row["mfu"] == pytest.approx(2e9 / 20e-6 / 312e12)


@pytest.mark.parametrize(("name", "tensor"), [
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage3_tensor16x8x16", True),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", True),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>", True),
    ("volta_sgemm_128x64_tn", False),
    ("ampere_sgemm_32x32_sliced1x4_tn", False),
    ("void at::native::vectorized_elementwise_kernel<4>", False),
])  # fmt: skip
def test_recognizes_tensor_cores_by_the_kernels_name(name, tensor):
    assert kernels.uses_tensor_cores(name) is tensor


@pytest.mark.parametrize(("name", "kind"), [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"), ("ncclKernel_SendRecv", "communication"),
    ("Memcpy HtoD (Pinned -> Device)", "memory"), ("Memset (Device)", "memory"), ("triton_poi_fused_add_0", "computation"),
    ("void rccl_main", "communication"),
])  # fmt: skip
def test_kinds_of_kernels(name, kind):
    assert kernels.kind_of(name) == kind


spans = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=20)


@given(spans, spans)
def test_unions_and_intersections_count_each_moment_once(one, other):
    def moments(pairs):
        return {moment for start, length in pairs for moment in range(start, start + length)}

    def union(pairs):
        start = np.array([pair[0] for pair in pairs], float)
        return intervals.union(start, start + np.array([pair[1] for pair in pairs], float))

    assert float(np.subtract(*union(one)[::-1]).sum()) == len(moments(one))
    assert intervals.intersection(union(one), union(other)) == len(moments(one) & moments(other))
    start = np.array([pair[0] for pair in one], float)
    end = start + np.array([pair[1] for pair in one], float)
    covered = [len(moments([pair]) & moments(other)) for pair in one]
    assert intervals.covered(start, end, union(other)).tolist() == covered


@given(st.integers(0, 2**32 - 1))
def test_finds_the_innermost_interval(seed):
    rng = np.random.default_rng(seed)
    found = []

    def fill(start, end, depth):
        while start + 1 < end and depth < 4:
            stop = start + rng.integers(1, end - start + 1)
            found.append((start, stop))
            fill(start, stop, depth + 1)
            start = stop + rng.integers(1, 4)

    fill(0, 60, 0)
    found.sort(key=lambda pair: (pair[0], -pair[1]))
    start, end = (np.array([pair[side] for pair in found], float) for side in (0, 1))
    thread, moments = np.zeros(len(start), np.intp), np.arange(0, 62) + 0.5
    rows = intervals.Nest(thread, start, end).around(np.zeros(len(moments), np.intp), moments)
    for moment, row in zip(moments, rows, strict=True):
        around = [number for number, pair in enumerate(found) if pair[0] <= moment <= pair[1]]
        assert (row == -1) if not around else (end[row] - start[row] == min(end[n] - start[n] for n in around))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 20)), max_size=30), st.booleans())
def test_nests_are_those_of_a_plain_search(found, stack):
    """Of any intervals, properly nested or not: the last one before that does not end earlier."""
    found = sorted((thread, start, -length) for thread, start, length in found)
    thread, start = (np.array([one[side] for one in found], np.intp) for side in (0, 1))
    end = start - np.array([one[2] for one in found], np.intp)
    with pytest.MonkeyPatch.context() as patch:
        if stack:
            patch.setattr(intervals, "_ROUNDS", 0)
        nest = intervals.Nest(thread, start.astype(float), end.astype(float))

    def last(own, until, before):
        return max((at for at in range(before) if thread[at] == own and end[at] >= until), default=-1)

    assert nest.parent.tolist() == [last(thread[at], end[at], at) for at in range(len(found))]
    roots = []
    for at, parent in enumerate(nest.parent.tolist()):
        roots.append(at if parent < 0 else roots[parent])
    assert nest.outermost.tolist() == roots
    threads, moments = (one.ravel() for one in np.meshgrid(np.arange(4), np.arange(45)))
    begun = [max((at + 1 for at in range(len(found)) if thread[at] == own and start[at] <= moment), default=0)
             for own, moment in zip(threads, moments, strict=True)]  # fmt: skip
    around = [last(own, moment, before) for own, moment, before in zip(threads, moments, begun, strict=True)]
    assert nest.around(threads, moments.astype(float)).tolist() == around


@pytest.mark.parametrize("kind", ["nested", "left nest", "threads", "streams"])
@pytest.mark.timeout(60)
def test_traces_of_any_form_take_linear_time(tmp_path, kind):
    """20,000 nested operators took seconds, five times as many did not end; so did as many threads or streams."""
    count, events = 20_000, []
    for number in range(count):
        at, thread, stream = 10.0 * number, number if kind == "threads" else 1, number if kind == "streams" else 7
        if kind == "nested":
            events.append(event("cpu_op", "aten::mm", number / count, 20.0 * count - number))
        elif kind == "left nest":
            events += [
                event("cpu_op", "aten::mm", (number - count) / count, 1 - number / count),
                event("cpu_op", "aten::mm", at, 6),
            ]
        events += [call(at + 1, 2, number, thread=thread), kernel("gemm", at + 4, 5, stream=stream, correlation=number)]
    gpu = GpuTraces(write(tmp_path / "traces", events))
    (measured,) = measure(gpu)
    assert len(gpu.columns("idle_breakdown")) == 3 * (count if kind == "streams" else 1)
    assert measured.launches == count


def test_columns_need_no_pandas(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel("gemm", 0, 10)]}))
    code = (
        "import sys\nfrom sm_profiler.analysis.gpu import GpuTraces\n"
        "rows = list(GpuTraces(sys.argv[1]).columns('kernels').rows())\n"
        "print(rows[0]['name'], 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gemm", "False"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(-1e6, 1e6) | st.just(float("nan"))), max_size=40)
)
def test_groups_compute_what_pandas_does(rows):
    frame = pd.DataFrame(rows, columns=["a", "b", "x"]).astype({"a": int, "b": int, "x": float})
    groups, x = Groups(frame["a"].to_numpy(), frame["b"].to_numpy()), frame["x"].to_numpy()
    expected = frame.groupby(["a", "b"])["x"]
    assert groups.count.tolist() == expected.size().tolist()
    assert np.allclose(groups.sum(x), expected.sum(), equal_nan=True)
    for name in ("mean", "min", "max", "median"):
        assert np.allclose(getattr(groups, name)(x), getattr(expected, name)(), equal_nan=True), name
    whole = frame["a"].to_numpy()
    assert groups.cumsum(whole).tolist() == frame.groupby(["a", "b"])["a"].cumsum().tolist()


def test_events_that_a_trace_holds_twice_make_no_more_busy_time(traces):
    events = [
        call(0, 4, 1),
        kernel("gemm", 5, 10, correlation=1),
        call(20, 4, 2),
        kernel("relu", 30, 10, correlation=2),
    ]
    gpu = traces([*events, *events])
    (row,) = gpu.temporal_breakdown().to_dict("records")
    assert (row["compute_us"], row["total_us"]) == (20.0, 35.0)
    for table in _TABLES:
        gpu.columns(table)
    assert len(gpu.launch_statistics()) == 4


def test_every_table_is_there_without_any_kernel(traces):
    gpu = traces([event("cpu_op", "aten::mm", 0, 5)])
    for table in (*_TABLES, "stragglers"):
        assert gpu.columns(table).columns, table


@pytest.mark.parametrize(("name", "avoids"), [
    ("volta_sgemm_128x64_nn", True),
    ("ampere_sgemm_32x128_tn", True),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(T1::Params)", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas", True),
    ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_1LDSB0_APM1", True),
    ("Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1_SN", False),
    ("triton_tem_fused_mm_0", False),  # a product in Triton has no type in its name
    ("_matmul_kernel_bf16", False),
    ("ampere_igemm_int8_128x128_ldg4_nn", False),
    ("turing_igemm_int8_128x128_ldg4_nn", False),
    ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8", False),
    ("my_gemm_kernel", False),
])  # fmt: skip
def test_only_a_documented_name_proves_that_tensor_cores_are_unused(name, avoids):
    assert kernels.avoids_tensor_cores(name) is avoids
