"""Verdicts on trainings on a GPU: counters, steps and launches as recorded on an H100 (PyTorch 2.11, driver 580)."""

from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Finding, Gain, Interval, Verdict
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.formats.event_names import OPERATORS
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.report import build
from sm_profiler.report.build import Windows
from tests.support.reports import gpu_samples, metrics_of, report_from, training, verdict_of


def counters(gpu, *, tensor, single, bandwidth, seconds=8):
    """Return the samples of a loop: use of the GPU, and once a second the counters of GPM."""
    means = {"GPUTensorUtilization": tensor, "GPUFP32Utilization": single, "GPUDRAMBandwidthUtilization": bandwidth}
    rows = [
        (1.0 + tick, value, "algo-1", "gpu", "gpu0", name) for tick in range(seconds) for name, value in means.items()
    ]
    return gpu_samples(gpu, seconds, memory=6.0) + rows


def launching(steps, operators, fixed_us, **phases):
    """Return a loop whose operators were counted and calibrated."""
    args = {"operators": operators, "fixed_us": fixed_us, "step_us": 1e6 * sum(phases.values())}
    return [*training(steps, wait=0.0, **phases), (OPERATORS, "operators", 1.5, 0.0, "algo-1-0", 10, args)]


def judged(events, used, rules=None, **metrics):
    return decide(Case(attrs.evolve(metrics_of(events, used), **metrics), rules or {}))


RECORDED = {
    "a transformer in bf16": (counters(99.9, tensor=30.4, single=4.2, bandwidth=49.6), Class.COMPUTE_BOUND),
    "the same in fp16 with a GradScaler": (counters(94, tensor=25.2, single=3.2, bandwidth=40.0), Class.COMPUTE_BOUND),
    "products in single precision": (counters(100, tensor=0.0, single=74.2, bandwidth=7.8), Class.TENSOR_CORES_UNUSED),
    "elementwise chains": (counters(100, tensor=0.5, single=1.8, bandwidth=82.9), Class.MEMORY_BANDWIDTH_BOUND),
}


@pytest.mark.parametrize("what", RECORDED)
def test_counters_show_what_a_busy_gpu_is_slow_at(what):
    samples, kind = RECORDED[what]
    verdict = judged(training(500), samples)
    assert (verdict.kind, verdict.main.confidence) == (kind, "high")


@pytest.mark.parametrize("what", [one for one in RECORDED if "fp16" not in one])
@pytest.mark.parametrize("framework", ["jax", "keras", "tensorflow"])
def test_repairs_of_a_busy_gpu_are_those_of_the_framework(what, framework):
    finding = verdict_of(training(500), RECORDED[what][0], metadata=({"framework": framework},)).main
    assert finding.kind is RECORDED[what][1]
    assert "torch" not in finding.next_step
    assert "torch.autocast" in verdict_of(training(500), RECORDED[what][0]).main.next_step


def test_double_precision_has_a_repair_of_its_own():
    double = [(*row[:5], row[5].replace("FP32", "FP64")) for row in RECORDED["products in single precision"][0]]
    finding = verdict_of(training(500), double).main
    assert finding.kind is Class.TENSOR_CORES_UNUSED
    assert "float64" in finding.next_step


def test_counters_of_an_idle_gpu_give_no_finding():
    """Copies of images from pageable memory: what runs in between uses little of anything."""
    verdict = judged(training(500), counters(42, tensor=0.0, single=60.0, bandwidth=70.0))
    assert verdict.kind not in (Class.TENSOR_CORES_UNUSED, Class.MEMORY_BANDWIDTH_BOUND)


def test_the_use_of_a_gpu_is_judged_without_the_start_of_its_libraries():
    """The first second starts cuBLAS while the GPU is idle; NVML looks back over another one."""
    first = training(3, wait=0.0, forward=0.4, backward=0.0, optimizer=0.0, outside=0.0)
    rest = training(400, at=2.2)
    metrics = metrics_of([*first, *rest], gpu_samples(lambda tick: 0 if tick < 4 else 98, 6))
    assert metrics.gpus[0].mean == 98
    longest = training(3, wait=0.0, forward=4.0, backward=0.0, optimizer=0.0, outside=0.0)  # longer than all others
    metrics = metrics_of([*longest, *training(400, at=13.0)], gpu_samples(lambda tick: 0 if tick < 26 else 98, 17))
    assert metrics.gpus[0].mean == 98


def test_what_the_host_waits_for_while_the_gpu_works_costs_nothing():
    """`print(loss.item())` at each step: 22 % of the host's time, on a GPU that is busy 89 % of it."""
    line = Place("/code/train.py", 22, "main")
    samples = Samples(
        (
            Sampled("algo-1-0", "outside", False, (line,), "", 2.2, 44),
            Sampled("algo-1-0", "forward", False, (Place("/code/train.py", 18, "main"),), "", 7.8, 156),
        ),
        {("/code/train.py", 22): "print(loss.item())"},
    )
    rows = training(500, outside=0.0026)
    assert judged(rows, gpu_samples(89, 6), samples=samples).kind is Class.COMPUTE_BOUND
    assert judged(rows, gpu_samples(30, 6), samples=samples).kind is not Class.COMPUTE_BOUND


def test_lines_that_read_results_leave_the_gpu_idle():
    """The norm of each gradient is read: 31 % of the samples, and the GPU is idle 21 % of the time."""
    line, model = Place("/code/train.py", 21, "main"), Place("/code/train.py", 18, "main")
    samples = Samples(
        (
            Sampled("algo-1-0", "outside", False, (line,), "", 3.1, 60),
            Sampled("algo-1-0", "backward", False, (model,), "", 6.9, 140),
        ),
        {("/code/train.py", 21): "norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}"},
    )
    rows = training(500, outside=0.0019)
    verdict = judged(rows, gpu_samples(79, 6), samples=samples)
    assert verdict.kind is Class.SYNC_BOUND
    assert verdict.main.where[0].line == 21
    assert judged(rows, gpu_samples(93, 6), samples=samples).kind is Class.COMPUTE_BOUND


SMALL_BATCH = {"forward": 0.0048, "backward": 0.0050, "optimizer": 0.0007, "outside": 0.0007}


def test_a_small_batch_is_none_of_the_input_although_the_training_thread_keeps_its_core_busy():
    rows = launching(300, 412, 6.18, **SMALL_BATCH)
    cores = [(1 + tick / 2, 8.0, "algo-1", "cpu", "cpu0", "CPUUtilization") for tick in range(8)]
    rules = {"CPUBottleneck": {"Violations": 70, "Datapoints": 100}}
    verdict = judged(rows, gpu_samples(24, 4, memory=1.6) + cores, rules)
    assert (verdict.kind, verdict.main.confidence) == (Class.BATCH_TOO_SMALL, "high")


def test_a_larger_batch_does_not_help_a_host_that_computes_in_the_phases():
    """cuDNN's attention makes a plan for each new length: 119 ms a step, of which launches take 5 to 30."""
    rows = launching(60, 595, 8.2, forward=0.044, backward=0.068, optimizer=0.004, outside=0.003)
    verdict = judged(rows, gpu_samples(8, 7, memory=7.0))
    assert verdict.kind is Class.HOST_BOUND
    assert "far longer than launching" in verdict.main.headline
    assert Class.BATCH_TOO_SMALL not in {one.kind for one in verdict.also}


def test_launches_ahead_of_a_busy_gpu_cost_nothing():
    """Half of the step is launching, and yet the GPU always has work."""
    rows = launching(300, 599, 9.0, forward=0.004, backward=0.0062, optimizer=0.0005, outside=0.0005)
    verdict = judged(rows, gpu_samples(78, 4))
    assert Class.HOST_BOUND not in {verdict.kind, *(one.kind for one in verdict.also)}


def test_no_repair_of_the_host_saves_more_than_the_gpus_idle_time():
    gain = verdict_of(training(400, wait=0.008, forward=0.004, backward=0.005), gpu_samples(60, 7)).main.gain
    assert 0 < gain.share_of_loop.high < 0.4 + 0.05 + 0.02


def test_a_claim_is_cut_to_what_there_is_to_save():
    claim = Saving(np.full(10, 1.0), 0.5, 1.5)
    assert claim.at_most(20.0) is claim
    cut = claim.at_most(8.0)
    assert cut.seconds.sum() == pytest.approx(8.0)
    assert cut.low * 8 == pytest.approx(5.0)
    assert cut.high == 1.0
    partly = claim.at_most(12.0)
    assert partly.seconds.sum() * partly.high == pytest.approx(12.0)
    assert claim.at_most(0.0).seconds.sum() == 0


@pytest.mark.parametrize(("used", "leads"), [(97, True), (20, False)])
def test_the_kernels_lead_a_loop_that_its_gpu_limits(monkeypatch, used, leads):
    """Products in single precision on an H100: "limited by the GPU" is right, but no advice."""
    gain = Gain(*(Interval(0.1, 0.2, 0.3) for _ in range(2)), Interval(1.1, 1.2, 1.3))
    plain = Finding(Class.TENSOR_CORES_UNUSED, "Products …", (), "Use bf16.", 0.97, confidence="medium", gain=gain)
    kernels = SimpleNamespace(events=SimpleNamespace(on_device=np.ones(1000, bool)))
    found = Windows(SimpleNamespace(ranks={0: kernels}), {})
    monkeypatch.setattr(build, "read_windows", lambda _: found)
    monkeypatch.setattr(build, "measure", lambda *_: ())
    traced = SimpleNamespace(totals=SimpleNamespace(duration=1.0))
    monkeypatch.setattr(build, "Traced", SimpleNamespace(of=lambda *_: traced))
    monkeypatch.setattr(build, "decide_traces", lambda *_: Verdict(plain))
    report = report_from(training(400), gpu_samples(used, 5))
    verdict = build.add_windows(report, None).verdict
    assert (verdict.kind is Class.TENSOR_CORES_UNUSED) == leads
    (shown,) = [one for one in (verdict.main, *verdict.also) if one.kind is Class.TENSOR_CORES_UNUSED]
    assert (shown.gain is not None) == leads
