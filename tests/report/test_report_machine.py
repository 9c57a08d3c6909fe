"""Swapping, shared file systems, GPU clocks and batch sizes, from made-up samples."""

import attrs
import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.report import Class
from tests.support.reports import gpu_samples, metrics_of, training, verdict_of

NEW = {Class.SWAPPING, Class.SLOW_STORAGE, Class.GPU_THROTTLED, Class.BATCH_TOO_SMALL}


def samples(seconds, **metrics):
    """Return samples of a node's metrics, by their names in the files."""
    kinds = {"Swap": "swap", "Maj": "swap", "Mem": "pressure", "IOP": "pressure", "NFS": "nfs", "Rea": "i/o"}
    return [
        (at / 2, value, "algo-1", kinds.get(name[:3], "swap"), name, "")
        for at in range(2, 2 * seconds)
        for name, value in metrics.items()
    ]


def test_finds_swapping():
    main = verdict_of(training(400), samples(6, SwapInBytesPerSecond=3e7, MemoryPressurePercent=40)).main
    assert main.kind is Class.SWAPPING
    assert main.share_of_time == pytest.approx(0.4)


def test_page_faults_replace_the_pressure_on_old_kernels():
    found = verdict_of(training(400), samples(6, SwapInBytesPerSecond=3e7, MajorFaultsPerSecond=3000)).main
    assert found.kind is Class.SWAPPING
    assert found.share_of_time == pytest.approx(0.3)


@pytest.mark.parametrize(
    "values",
    [
        {"SwapInBytesPerSecond": 0.9 * limits.TRICKLE, "MemoryPressurePercent": 40},
        {"SwapInBytesPerSecond": 3e7, "MemoryPressurePercent": 100 * 0.9 * limits.FLOOR},
        {"MajorFaultsPerSecond": 5000, "IOPressurePercent": 90},  # a memory-mapped dataset is read
    ],
)
def test_little_swapping_and_mapped_files_are_no_problem(values):
    assert verdict_of(training(400), samples(6, **values)).kind is Class.BALANCED


def mounted(metrics, kind="lustre"):
    return attrs.evolve(metrics, metadata=({"name": "algo-1-0", "shared_mounts": {"/fsx": kind}},))


def test_finds_a_slow_nfs():
    rows = samples(8, NFSOperationsInProgress=1.4, NFSLatencyMilliseconds=12.0)
    verdict = verdict_of(training(300, wait=0.02), rows)
    assert verdict.kind is Class.SLOW_STORAGE
    assert "12 ms" in verdict.main.headline
    assert verdict.also == ()  # the same waits under another name


def test_finds_another_shared_file_system():
    rows = samples(8, IOPressurePercent=60, ReadThroughputInBytesPerSecond=1e4)
    metrics = metrics_of(training(300, wait=0.02), rows)
    assert decide(Case(mounted(metrics), {})).kind is Class.SLOW_STORAGE
    assert decide(Case(metrics, {})).kind is Class.INPUT_BOUND


@pytest.mark.parametrize(
    "values",
    [
        {"NFSOperationsInProgress": 0.05},
        {"IOPressurePercent": 60, "ReadThroughputInBytesPerSecond": 1e8},
        {"IOPressurePercent": 5},
    ],
)
def test_waiting_for_something_else_is_input_bound(values):
    metrics = mounted(metrics_of(training(300, wait=0.02), samples(8, **values)))
    assert decide(Case(metrics, {})).kind is Class.INPUT_BOUND


def test_a_busy_nfs_without_waits_is_no_problem():
    assert verdict_of(training(300), samples(4, NFSOperationsInProgress=3.0)).kind is Class.BALANCED


@pytest.mark.parametrize("mounts", ["x", ["/fsx"], {"/a" * 9999: {"b": 1}}, {"\x1b[31m": None}])
def test_damaged_mounts_do_no_harm(mounts):
    metrics = metrics_of(training(300, wait=0.02), samples(8, IOPressurePercent=60))
    decide(Case(attrs.evolve(metrics, metadata=({"shared_mounts": mounts},)), {}))


def gpu(use=95.0, name="gpu0", memory=70.0, **metrics):
    """Return samples of a GPU: its use and memory in percent, and further metrics by their names in the files."""
    rows = gpu_samples(use, 6, name=name, memory=memory)
    return rows + [(at / 2, value, "algo-1", "gpu", name, key) for at in range(2, 12) for key, value in metrics.items()]


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"GPUThrottledByHeat": 90, "GPUTemperatureCelsius": 91}, "too hot"),
        ({"GPUThrottledByHardware": 90}, "hardware"),
        ({"GPUThrottledByPower": 100}, "power limit"),
        ({}, "setting"),
    ],
)
def test_names_why_a_gpu_is_below_its_clock(metrics, why):
    main = verdict_of(training(400), gpu(GPUSMClockMHz=900, GPUSMClockMaxMHz=1980, **metrics)).main
    assert main.kind is Class.GPU_THROTTLED
    assert why in main.headline


def test_compares_a_gpu_with_its_peers():
    fast = [row for name in ("gpu0", "gpu1", "gpu2") for row in gpu(name=name, GPUSMClockMHz=1700)]
    main = verdict_of(training(400), fast + gpu(name="gpu3", GPUSMClockMHz=1000)).main
    assert main.kind is Class.GPU_THROTTLED
    assert main.headline.startswith("gpu3 ")


@pytest.mark.parametrize(
    "metrics",
    [
        {"GPUSMClockMHz": 1500, "GPUSMClockMaxMHz": 1980, "GPUThrottledByPower": 100},  # full load
        {"GPUSMClockMHz": 1700, "GPUSMClockMaxMHz": 1980, "GPUThrottledByHeat": 30},
        {"GPUSMClockMHz": 1700},
        {"GPUThrottledByHeat": 100},
    ],
)
def test_gpus_at_their_usual_clock_are_healthy(metrics):
    assert verdict_of(training(400), gpu(**metrics)).kind is Class.COMPUTE_BOUND


def test_a_gpu_without_work_may_lower_its_clock():
    verdict = verdict_of(training(400), gpu(use=20, GPUSMClockMHz=300, GPUSMClockMaxMHz=1980))
    assert Class.GPU_THROTTLED not in {verdict.kind, *(finding.kind for finding in verdict.also)}


def test_a_small_batch_leaves_the_gpu_idle_and_its_memory_free():
    metrics = attrs.evolve(metrics_of(training(400), gpu(use=25, memory=11)), batch_size=8)
    main = decide(Case(metrics, {})).main
    assert main.kind is Class.BATCH_TOO_SMALL
    assert "8 times as large fits" in main.headline
    assert any(one.metric == "batch size" and one.value == 8 for one in main.evidence)


def test_a_batch_that_memory_limits_has_to_shrink_first():
    main = verdict_of(training(400), gpu(use=25, memory=96)).main
    assert main.kind is Class.BATCH_TOO_SMALL
    assert "activation checkpointing" in main.next_step


@pytest.mark.parametrize(
    ("use", "memory", "kind"), [(25, 60, Class.HOST_BOUND), (95, 11, Class.COMPUTE_BOUND), (0, 1, Class.HOST_BOUND)]
)
def test_otherwise_the_batch_is_not_to_blame(use, memory, kind):
    verdict = verdict_of(training(400), gpu(use=use, memory=memory))
    assert verdict.kind is kind
    assert Class.BATCH_TOO_SMALL not in {finding.kind for finding in verdict.also}


def test_input_leads_over_a_small_batch():
    assert verdict_of(training(400, wait=0.05), gpu(use=25, memory=11)).kind is Class.INPUT_BOUND


def test_no_finding_without_these_metrics():
    verdict = verdict_of(training(400))
    assert not {verdict.kind, *(finding.kind for finding in verdict.also)} & NEW
