"""Suggested loader workers: cores for each rank of a node, and whether they suffice."""

from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from sm_profiler.cli.try_loader import batches_needed
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.inputs import Workers, left_after, workers_of
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.metrics.step_fold import LoaderSettings
from tests.support.reports import metrics_of, training


def context_of(cores, ranks, *, wait, num_workers=0):
    rows = [row for rank in range(ranks) for row in training(200, wait=wait, node=f"algo-1-{rank}")]
    samples = [
        (second, 20.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization")
        for second in range(1, 5)
        for core in range(cores)
    ]
    return Case(attrs.evolve(metrics_of(rows, samples), loader=LoaderSettings(num_workers, 0)), {})


@pytest.mark.parametrize(("cores", "ranks", "per_rank"), [(16, 4, 4), (16, 1, 16), (2, 4, 1), (0, 1, 0)])
def test_ranks_share_the_cores_of_their_node(cores, ranks, per_rank):
    assert workers_of(context_of(cores, ranks, wait=0.02)).cores == per_rank


def test_suggests_no_more_workers_than_cores():
    advice = decide(context_of(16, 4, wait=0.02)).main.next_step
    assert "num_workers=4," in advice
    assert "About 3 workers are needed to load a batch in the other 9.2 ms of a step" in advice  # 20 / 9.2


def pinned(cores, *, wait=0.02):
    """Return a job of one process on a machine of 16 cores, of which it may use some."""
    rows = training(200, wait=wait)
    args = {"threads": 4, "library_threads": 1, "cores": cores, "waited_ns": 0, "switches": 0}
    rows.append(("sm_profiler/threads", "threads", 1.0, 5.0, "algo-1-0", -1, args))
    samples = [(s, 20.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for s in range(1, 5) for core in range(16)]
    return Case(attrs.evolve(metrics_of(rows, samples), loader=LoaderSettings(0, 0)), {})


@pytest.mark.parametrize(("cores", "found"), [(1.0, 1), (2.5, 2), (4.0, 4), (16.0, 16)])
def test_a_process_has_the_cores_that_it_may_use(cores, found):
    """With taskset -c 0, the workers that would have had the other cores were advised, and counted in the gain."""
    assert workers_of(pinned(cores)).cores == found


def test_one_core_is_not_shared_with_workers():
    main = decide(pinned(1.0)).main
    assert "the training keeps all of its cores busy, and worker processes would share them" in main.next_step
    assert "num_workers=1" not in main.next_step
    assert main.gain.speedup.value < decide(pinned(16.0)).main.gain.speedup.value


@pytest.mark.parametrize(("cores", "shared"), [(1.0, True), (16.0, False)])
def test_a_trial_has_the_same_advice(monkeypatch, cores, shared):
    report = SimpleNamespace(metrics=pinned(cores).metrics, verdict=decide(pinned(cores)))
    monkeypatch.setattr("sm_profiler.report.build_report", lambda _source: report)
    monkeypatch.setattr("sm_profiler.source.open_source", lambda _where: None)
    *_, instead = batches_needed("s3://bucket/job")
    assert ("keeps all of its cores busy" in instead) is shared


@pytest.mark.parametrize(("busy", "shared"), [(1.0, False), (1.9, True)])
def test_workers_share_the_cores_that_the_training_keeps_busy(monkeypatch, busy, shared):
    """Two workers were advised where torch's threads used both cores: the loop became no faster, or slower."""
    monkeypatch.setattr(Case, "own_cores", [busy])
    main = decide(pinned(2.0)).main
    assert ("worker processes would share them" in main.next_step) is shared
    assert ("num_workers=2" in main.next_step) is not shared


def test_advises_less_preprocessing_if_cores_do_not_suffice():
    advice = decide(context_of(16, 4, wait=0.08)).main.next_step
    assert "num_workers=4," in advice
    assert "About 9 workers are needed" in advice
    assert "each training process has 4 cores" in advice
    assert "does not show whether it waits or computes" in advice  # others may keep the cores busy
    assert "reduce preprocessing" in advice.lower()
    assert "about 9 would be needed" in Workers(0, 4, 9, 0.08, 0.0092, idle=False).advice()  # it computes


def test_which_end_of_the_gain_belongs_to_which_step_is_stated():
    """The next step named workers, and the gain above it was that of cheaper loading."""
    for idle in (False, None):
        advice = Workers(0, 2, 9, 0.009, 0.001, idle=idle).advice()
        assert advice.index("workers alone reach only the lower end") < advice.index("or the upper end, also reduce")
    few = Workers(0, 16, 9, 0.009, 0.001, idle=False)
    assert "end of the gain" not in few.advice()
    wait, compute = np.full(200, 0.009), np.full(200, 0.001)
    least, _, most = left_after(attrs.evolve(few, cores=2), wait, compute, 1.0, [])
    assert 0.010 / (0.001 + least) < 2 < 0.010 / (0.001 + most)  # two cores, and loading that is done once


def test_counts_existing_workers():
    found = workers_of(context_of(16, 1, wait=0.0092, num_workers=2))
    assert found.needed == 4  # two deliver a batch in 18.4 ms, twice the time available
    assert "num_workers=8 instead of 2" in decide(context_of(16, 1, wait=0.0092, num_workers=2)).main.next_step


@pytest.mark.parametrize(
    ("cpu", "num_workers", "idle"),
    [(4.0, 0, True), (45.0, 0, None), (4.0, 2, True), (90.0, 2, False), (None, 0, False)],
)
def test_suggests_more_workers_than_cores_if_loading_waits(cpu, num_workers, idle):
    samples = [
        (second, cpu, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for second in range(1, 9) for core in (0, 1)
    ]
    metrics = metrics_of(training(200, wait=0.08), samples if cpu is not None else ())
    context = Case(attrs.evolve(metrics, loader=LoaderSettings(num_workers, 0)), {})
    found = workers_of(context)
    assert found.idle is idle
    step = decide(context).main.next_step
    if idle:
        assert f"num_workers={min(found.needed, 8 * 2)}" in step  # no more than eight workers for each core
        assert found.needed > 2
        assert "More workers than the 2 cores are fine" in step
        assert "reduce preprocessing" not in step
    elif cpu is not None:
        assert "reduce preprocessing" in step.lower()
