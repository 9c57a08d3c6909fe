"""GPUs that other programs use: the monitor counts their work, too."""

import pytest

from sm_profiler.diagnosis.classes import Class
from tests.support.reports import gpu_samples, metrics_of, training, verdict_of

UNKNOWN, UNUSED, USED = (
    {"framework": "pytorch", "node": "algo-1", "rank": 0, "uses_gpu": state} for state in (None, False, True)
)
WAITING = training(500, wait=0.02)
BUSY = gpu_samples(97, 16)


def strangers(gpu="gpu0"):
    """Return what the monitor records while another program multiplies matrices in single precision."""
    counters = {"GPUTensorUtilization": 0.0, "GPUFP32Utilization": 74.0, "GPUDRAMBandwidthUtilization": 82.0}
    return [
        *BUSY,
        *((1.0 + tick, value, "algo-1", "gpu", gpu, name) for tick in range(16) for name, value in counters.items()),
    ]


def test_a_training_on_the_cpu_is_not_judged_by_the_gpu_of_another_program():
    verdict = verdict_of(WAITING, strangers(), metadata=(UNKNOWN, UNUSED))
    assert verdict.kind is Class.INPUT_BOUND
    assert ("GPU use", "the training used no GPU; other programs kept gpu0 of algo-1 busy") in verdict.not_judged
    assert verdict_of(training(500), strangers(), metadata=(UNKNOWN, UNUSED)).kind is Class.BALANCED


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (UNKNOWN,),
        (UNUSED, USED),
        (UNUSED, {**UNKNOWN, "rank": 1}),
        (UNUSED, {**USED, "rank": 1}),
        ({**UNUSED, "rank": 1},),
        ({**UNUSED, "uses_gpu": 0},),
    ],
    ids=["no metadata", "not trained yet", "later", "a rank unknown", "another rank", "only another rank", "damaged"],
)
def test_a_gpu_counts_unless_all_processes_of_its_node_recorded_that_they_use_none(metadata):
    assert len(metrics_of(training(500), BUSY, metadata=metadata).gpus) == 1


def test_gpus_of_other_nodes_count():
    rows = [*BUSY, *gpu_samples(97, 16, node="algo-2")]
    other = {**USED, "node": "algo-2", "rank": 1}
    loops = [*training(500), *training(500, node="algo-2-1")]
    metrics = metrics_of(loops, rows, metadata=(UNUSED, other))
    assert [gpu.node for gpu in metrics.gpus] == ["algo-2"]
    assert metrics.others_gpus == (("algo-1", "gpu0"),)


def test_an_idle_gpu_that_the_training_does_not_use_is_reported():
    verdict = verdict_of(training(500), gpu_samples(0, 16), metadata=(UNUSED,))
    assert verdict.main.headline.startswith("The GPU was never used")


def test_a_gpu_without_readable_samples_does_not_hide_that_others_are_unbalanced():
    damaged = (1.0, float("nan"), "algo-1", "gpu", "gpu0", "GPUUtilization")
    rows = [damaged, *gpu_samples(97, 16, name="gpu1"), *gpu_samples(5, 16, name="gpu2")]
    verdict = verdict_of(training(500), rows)
    assert Class.UNBALANCED_GPUS in (verdict.kind, *(one.kind for one in verdict.also))
