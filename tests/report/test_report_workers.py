"""The number of loader workers: cores of the node for each of its ranks, and whether they can suffice."""

import attrs
import pytest
from report_helpers import facts_of, training

from sm_profiler.report.judges import Case
from sm_profiler.report.judges.workers import workers_of
from sm_profiler.report.step_fold import Loader
from sm_profiler.report.verdict import decide


def case_of(cores, ranks, *, wait, num_workers=0):
    rows = [row for rank in range(ranks) for row in training(200, wait=wait, node=f"algo-1-{rank}")]
    samples = [
        (second, 20.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization")
        for second in range(1, 5)
        for core in range(cores)
    ]
    return Case(attrs.evolve(facts_of(rows, samples), loader=Loader(num_workers, 0)), {})


@pytest.mark.parametrize(("cores", "ranks", "room"), [(16, 4, 4), (16, 1, 16), (2, 4, 1), (0, 1, 0)])
def test_the_cores_of_a_node_are_shared_by_its_ranks(cores, ranks, room):
    assert workers_of(case_of(cores, ranks, wait=0.02)).room == room


def test_the_next_step_asks_for_no_more_than_that():
    advice = decide(case_of(16, 4, wait=0.02)).main.next_step
    assert "num_workers=4," in advice
    assert "About 3 are needed to hide 20 ms of waiting behind 9.2 ms" in advice  # 20 / 9.2


def test_where_cores_cannot_suffice_preprocessing_must_get_cheaper():
    advice = decide(case_of(16, 4, wait=0.08)).main.next_step
    assert "num_workers=4," in advice
    assert "about 9 would be needed" in advice
    assert "4 cores for each training process" in advice
    assert "cheaper" in advice


def test_workers_that_there_are_count():
    found = workers_of(case_of(16, 1, wait=0.0092, num_workers=2))
    assert found.needed == 4  # two bring a batch in 18.4 ms: twice what is needed
    assert "num_workers=8 instead of 2" in decide(case_of(16, 1, wait=0.0092, num_workers=2)).main.next_step


@pytest.mark.parametrize(
    ("cpu", "num_workers", "idle"),
    [(4.0, 0, True), (45.0, 0, False), (4.0, 2, True), (90.0, 2, False), (None, 0, False)],
)
def test_loading_that_only_waits_may_have_more_workers_than_cores(cpu, num_workers, idle):
    samples = [
        (second, cpu, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for second in range(1, 9) for core in (0, 1)
    ]
    facts = facts_of(training(200, wait=0.08), samples if cpu is not None else ())
    case = Case(attrs.evolve(facts, loader=Loader(num_workers, 0)), {})
    found = workers_of(case)
    assert found.idle is idle
    step = decide(case).main.next_step
    if idle:
        assert f"num_workers={found.needed}" in step
        assert found.needed > 2
        assert "2 cores is no matter" in step
        assert "cheaper" not in step
    elif cpu is not None:
        assert "cheaper" in step
