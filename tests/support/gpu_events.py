"""Made-up traces of torch.profiler."""

import json

from sm_profiler.report import Class

STEPS, STEP_US = 100, 1000.0
# Of `RankTime.us`, those that add up to the total.
PARTS = (
    "compute", "exposed_communication", "exposed_copies", "idle_input", "idle_sync", "idle_once", "idle_allocation", "idle_launch", "idle_queued",
)  # fmt: skip
A100 = {"name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8}


def event(category, name, start, length, *, thread=1, **arguments):
    """Return a whole event."""
    pid = 0 if category in {"kernel", "gpu_memcpy", "gpu_memset"} else 100
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": thread,
        "ts": start,
        "dur": length,
        "args": arguments,
    }


def kernel(name, start, length, *, stream=7, correlation=-1):
    return event("kernel", name, start, length, thread=stream, stream=stream, device=0, correlation=correlation)


def call(start, length, correlation=-1, *, name="cudaLaunchKernel", thread=1):
    return event("cuda_runtime", name, start, length, thread=thread, correlation=correlation)


def write(folder, *ranks, device=A100):
    folder.mkdir(exist_ok=True)
    for rank, events in enumerate(ranks):
        found = {
            "schemaVersion": 1, "distributedInfo": {"rank": rank}, "deviceProperties": [device], "traceEvents": events,
        }  # fmt: skip
        (folder / f"rank{rank}.json").write_text(json.dumps(found))
    return folder


def training(step, steps=STEPS):
    """Return the events of a number of steps; `step(start, number)` returns those of one."""
    return [one for number in range(steps) for one in step(STEP_US * number, number)]


def busy(start, number, *, name="sm80_xmma_gemm_f16f16_tensor16x8x16", kernels=4, queued=True):
    """Return a step whose kernels run without a gap."""
    length = STEP_US / kernels
    found = []
    for index in range(kernels):
        at = start + index * length
        found += [
            call(max(at - (STEP_US if queued else 0), 0), 5, number * kernels + index),
            kernel(name, at + 10, length, correlation=number * kernels + index),
        ]  # fmt: skip
    return found


def late(start, number, *, gap=600.0, doing=()):
    """Return a step in which the GPU idles, and what the host does meanwhile."""
    at = start + gap
    return [*doing, call(at, 5, number), kernel("tensorop_gemm", at + 6, STEP_US - gap - 6, correlation=number)]


def loading(start, number):
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    return late(start, number, doing=[event("user_annotation", name, start + 1, 590)])


def waiting(start, number):
    wait = call(start - 300, 305, name="cudaStreamSynchronize")
    return late(start, number, doing=[
        event("python_function", "train.py(42): log_loss", start - 310, 330), event("cpu_op", "aten::item", start - 305, 315), wait,
    ])  # fmt: skip


def communicating(start, number):
    return [
        call(start, 5, 2 * number), kernel("tensorop_gemm", start + 10, 600, correlation=2 * number),
        call(start + 5, 5, 2 * number + 1),
        kernel("ncclDevKernel_AllReduce", start + 610, 390, stream=20, correlation=2 * number + 1),
    ]  # fmt: skip


def copying(start, number, name="Memcpy HtoD (Pageable -> Device)"):
    copy = event("gpu_memcpy", name, start, 300, thread=7, stream=7, bytes=1000, correlation=2 * number)
    return [
        call(max(start - 500, 0), 5, 2 * number), copy,
        call(max(start - 490, 0), 5, 2 * number + 1), kernel("tensorop_gemm", start + 300, 700, correlation=2 * number + 1),
    ]  # fmt: skip


CASES = {
    "loading": (loading, Class.INPUT_BOUND),
    "waiting": (waiting, Class.SYNC_BOUND),
    "launching": (late, Class.HOST_BOUND),
    "communicating": (communicating, Class.COMMUNICATION_BOUND),
    "copying": (copying, Class.TRANSFER_BOUND),
    "no tensor cores": (
        lambda start, number: busy(start, number, name="ampere_sgemm_32x32_tn"),
        Class.TENSOR_CORES_UNUSED,
    ),
    "elementwise": (
        lambda start, number: busy(start, number, name="vectorized_elementwise_kernel"),
        Class.MEMORY_BANDWIDTH_BOUND,
    ),
    "healthy": (busy, Class.COMPUTE_BOUND),
}
