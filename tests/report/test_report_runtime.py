"""Compilations, threads, copies to the device and its allocator as causes, from made-up records and samples."""

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis.profile import machine
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.metrics.step_fold import LoaderSettings
from sm_profiler.report import Class
from tests.support.reports import START_S, gpu_samples, metrics_of, training

LINE = {"file": "/code/model.py", "line": 12, "function": "forward"}


def judged(rows, system_rows=(), **changes):
    return decide(Case(attrs.evolve(metrics_of(rows, system_rows), **changes), {}))


def with_compilations(again, every=20, length=0.3):
    """Return a loop in which a forward every `every` steps contains a compilation."""
    rows = training(400, every=every, stall=length)
    ends = [row[2] + row[3] for row in rows if row[0].startswith("Step")]
    args = {"again": again, "reason": "tensor 'x' size mismatch at index 0", **LINE}
    for step in range(0, 399, every):
        rows.append((event_names.COMPILE, "forward", ends[step] + 0.0001, length, "algo-1-0", step, args))
    return rows


def test_names_recompilations_and_their_reason():
    rows = with_compilations(again=True)
    rows.append((event_names.COMPILE, "graph break", 2.0, 0.0, "algo-1-0", -1, {"reason": "call to print", **LINE}))
    verdict = judged(rows)
    assert verdict.kind is Class.RECOMPILATION
    assert "forward again 20 times, 300 ms each" in verdict.main.headline
    shown = {one.metric: one.value for one in verdict.main.evidence}
    assert shown["reason of the last"] == "tensor 'x' size mismatch at index 0"
    assert shown["reason of the first graph break"] == "call to print"
    assert verdict.main.where[0].line == 12
    assert verdict.also == ()


def test_recompilations_at_the_start_of_a_loop_are_certain_if_they_are_many():
    rows, now = [], 1.0
    for step in range(400):
        length = 0.3 if step < 40 else 0.0
        rows += training(1, forward=0.003 + length, at=now, number=step)
        if length:
            args = {"again": True, **LINE}
            rows.append((event_names.COMPILE, "forward", now + 0.0012, length, "algo-1-0", step, args))
        now += 0.0102 + length
    verdict = judged(rows)
    assert (verdict.kind, verdict.main.confidence) == (Class.RECOMPILATION, "high")


def test_first_compilations_belong_to_the_start():
    rows = [
        *training(400),
        (event_names.COMPILE, "forward", 1.5, 2.0, "algo-1-0", 0, {"again": False}),
        (event_names.COMPILE, "graph break", 2.0, 0.0, "algo-1-0", -1, {"reason": "call to print"}),
    ]
    assert judged(rows).kind is Class.BALANCED


@pytest.mark.parametrize(("steps", "kind"), [((1,), Class.BALANCED), ((1, 2, 40), Class.RECOMPILATION)])
def test_a_second_compilation_in_the_first_steps_belongs_to_the_start(steps, kind):
    rows, now = [], 1.0
    for step in range(60):
        forward = 0.003 + (0.6 if step in steps else 0.0)
        rows += training(1, forward=forward, at=now, number=step)
        if step in steps:
            rows.append(
                (
                    event_names.COMPILE,
                    "train",
                    now + 0.001,
                    0.6,
                    "algo-1-0",
                    step,
                    {"again": True, "reason": "a sharding"},
                )
            )
        now += forward + 0.0072
    assert judged(rows).kind is kind


@pytest.mark.parametrize("again", [False, True])
def test_a_step_that_compiles_a_function_is_no_outlier(again):
    rows = training(100)
    end = rows[-1][2] + rows[-1][3]
    rows += training(1, forward=0.5, at=end + 0.0002, number=100)
    rows += training(200, at=end + 0.512, number=101)
    assert judged(rows).kind is Class.STEP_OUTLIERS
    compiled = (event_names.COMPILE, "evaluate", end + 0.0015, 0.49, "algo-1-0", 100, {"again": again, **LINE})
    verdict = judged([*rows, compiled])
    assert (verdict.kind, verdict.also) == (Class.BALANCED, ())


def threads(count, *, switches, waited):
    """Return a loop with an event about threads on four cores."""
    args = {"threads": count + 3, "library_threads": count, "cores": 4.0, "switches": switches * 5 * 4}
    args["waited_ns"] = int(waited * 5e9)
    return [*training(600), (event_names.THREADS, "threads", 1.0, 5.0, "algo-1-0", -1, args)]


def test_finds_threads_that_keep_each_other_waiting():
    verdict = judged(threads(32, switches=4000, waited=0.5))
    assert verdict.kind is Class.OVERSUBSCRIBED
    assert "32 library and worker threads compete for 4 cores" in verdict.main.headline
    assert "OMP_NUM_THREADS=4" in verdict.main.next_step
    assert verdict.main.confidence == "medium"


def test_ranks_with_one_thread_each_need_no_fewer_threads():
    """Two ranks on one core were advised OMP_NUM_THREADS=1, which they had, and their waits for each other were those for other programs."""
    rows = []
    for node in ("algo-1-0", "algo-1-1"):
        args = {"threads": 4, "library_threads": 1, "cores": 1.0, "switches": 4000 * 5, "waited_ns": int(0.5 * 5e9)}
        rows += [*training(600, node=node), (event_names.THREADS, "threads", 1.0, 5.0, node, -1, args)]
    verdict = judged(rows)
    assert verdict.kind is Class.OVERSUBSCRIBED
    assert verdict.main.headline.startswith("2 ranks compete for 1 core: ")
    assert (
        verdict.main.next_step
        == "Each rank computes with one thread already: give the job more cores, or start fewer ranks."
    )


def test_ranks_that_other_programs_keep_waiting_do_not_compete():
    """32 ranks on two cores, all of whose waits were the machine's, ended the report with a division by zero."""
    rows = []
    for node in ("algo-1-0", "algo-1-1"):
        args = {"threads": 4, "library_threads": 1, "cores": 1.0, "switches": 4000 * 5, "waited_ns": 0}
        rows += [*training(600, node=node), (event_names.THREADS, "threads", 1.0, 5.0, node, -1, args)]
    assert judged(rows).kind is Class.BALANCED


def test_a_cause_whose_saving_raises_is_left_out_and_named(monkeypatch):
    case = Case(metrics_of(threads(32, switches=4000, waited=0.5)), {})
    assert decide(case).kind is Class.OVERSUBSCRIBED

    def fails(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(machine, "_fitting", fails)
    broken = {}
    assert decide(case, broken).kind is Class.BALANCED
    assert list(broken) == ["threads"]
    assert broken["threads"].startswith("ZeroDivisionError: division by zero")
    with pytest.raises(ZeroDivisionError):
        decide(case)


def test_workers_count_as_threads():
    rows = threads(4, switches=4000, waited=0.5)
    assert judged(rows).kind is Class.BALANCED
    assert judged(rows, loader=LoaderSettings(12, 0)).kind is Class.OVERSUBSCRIBED


@pytest.mark.parametrize(("count", "switches", "waited"), [(4, 4000, 0.5), (32, 40, 0.5), (32, 4000, 0.02)])
def test_a_configuration_alone_or_a_busy_machine_is_no_finding(count, switches, waited):
    assert judged(threads(count, switches=switches, waited=waited)).kind is Class.BALANCED


def copies(seconds, source="batch = batch.to(device)"):
    """Return samples of a loop, `seconds` of ten in one line."""
    line, model = Place("/code/train.py", 20, "main"), Place("/code/train.py", 22, "main")
    return Samples(
        (
            Sampled("algo-1-0", "outside", False, (line,), "", seconds, int(seconds * 15)),
            Sampled("algo-1-0", "forward", False, (model,), "", 10 - seconds, 100),
            Sampled("algo-1-0", "start", False, (line,), "", 30.0, 400),
        ),
        {("/code/train.py", 20): source},
    )


def test_finds_copies_from_pageable_memory():
    verdict = judged(training(400, outside=0.004), gpu_samples(60, 8), samples=copies(3.0), loader=LoaderSettings(2, 0))
    assert verdict.kind is Class.TRANSFER_BOUND
    assert "30 % of the loop copying to the device from pageable memory" in verdict.main.headline
    assert (verdict.main.where[0].line, verdict.main.where[0].source) == (20, "batch = batch.to(device)")
    assert verdict.also == ()


@pytest.mark.parametrize(
    ("gpus", "samples"),
    [([], copies(3.0)), (gpu_samples(60, 8), copies(0.5)), (gpu_samples(60, 8), copies(3.0, "loss = model(batch)"))],
)
def test_no_copies_to_a_device_without_one_or_without_copying_lines(gpus, samples):
    verdict = judged(training(400), gpus, samples=samples)
    assert Class.TRANSFER_BOUND not in {verdict.kind, *(finding.kind for finding in verdict.also)}


def test_copies_beside_a_busy_device_cost_nothing():
    assert judged(training(400), gpu_samples(95, 5), samples=copies(3.0)).kind is Class.COMPUTE_BOUND


def allocations(retries):
    """Return a loop of some four seconds in which the allocator retries."""
    counters = [(1.1, 2), (3.0, 2 + retries // 2), (4.5, 2 + retries)]
    return training(400) + [
        (
            event_names.ALLOCATOR, "allocator", at, 0.0, "algo-1-0", -1,
            {"device": 0, "retries": count, "ooms": 1, "reserved_bytes": 80_000_000_000, "split_bytes": 30_000_000_000},
        )
        for at, count in counters
    ]  # fmt: skip


def test_finds_retried_allocations():
    verdict = judged(allocations(40))
    assert verdict.kind is Class.ALLOCATOR
    assert "40 times to serve a request; 30 GB of 80 GB reserved is fragmented" in verdict.main.headline
    assert verdict.main.confidence == "medium"


def test_a_few_retries_are_no_finding():
    assert judged(allocations(3)).kind is Class.BALANCED


@pytest.mark.parametrize("phase", [event_names.COMPILE, event_names.THREADS, event_names.ALLOCATOR])
@pytest.mark.parametrize("args", [{}, {"again": True, "cores": "x", "retries": None, "library_threads": -3}])
def test_damaged_arguments_do_no_harm(phase, args):
    rows = training(400) + [(phase, "x", second + 0.2, 0.3, "algo-1-0", -1, args) for second in range(1, 5)]
    assert judged(rows).main.headline


def test_growing_memory_names_the_objects():
    seconds = np.arange(60.0) + START_S + 1
    memory = {"algo-1-0": (seconds, 1e9 + 20e6 * np.arange(60.0))}
    args = {
        "types": {"Tensor": 900, "tuple": 3},
        "tensor_bytes": 800_000_000,
        "container": "list losses in __main__: 100 → 1,000 elements of Tensor",
    }
    rows = [*training(5900), (event_names.OBJECTS, "objects", 30.0, 0.02, "algo-1-0", -1, args)]
    verdict = decide(Case(metrics_of(rows, memory=memory), {}))
    (found,) = [one for one in (verdict.main, *verdict.also) if one.kind is Class.MEMORY_GROWTH]
    shown = {one.metric: one.value for one in found.evidence}
    assert shown["container that grows most"].startswith("list losses in __main__")
    assert shown["tensors gained"] == 800_000_000
    assert shown["objects gained"] == "Tensor +900"


@pytest.mark.parametrize("kept", [0, 900])
def test_caches_of_libraries_that_fill_are_no_leak(kept):
    """Kernels for each new length of a batch: memory grows more and more slowly, and no object of the script is kept."""
    seconds = np.arange(60.0) + START_S + 1
    memory = {"algo-1-0": (seconds, 1e9 + 8e8 * (1 - np.exp(-np.arange(60.0) / 45)))}
    args = {"types": {"Tensor": kept, "dict": 2}, "tensor_bytes": -2_000_000}
    rows = [*training(5900), (event_names.OBJECTS, "objects", 30.0, 0.02, "algo-1-0", -1, args)]
    verdict = decide(Case(metrics_of(rows, memory=memory), {}))
    assert (Class.MEMORY_GROWTH in {one.kind for one in (verdict.main, *verdict.also)}) is bool(kept)
