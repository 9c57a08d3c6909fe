"""Shares of the loop never exceed it: garbage collections have a slice of their own, and overlaps count once."""

import numpy as np
import pytest

from sm_profiler.formats import event_names
from sm_profiler.formatting import percent
from sm_profiler.metrics import parts
from sm_profiler.metrics.parts import not_covered_before
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.report import Class
from tests.support.reports import metrics_of, report_from, training, verdict_of


def collection(start, length):
    return (event_names.GARBAGE_COLLECTION, "generation 2", start, length, "algo-1-0", -1)


def spans(rows, phase):
    return [(row[2], row[3]) for row in rows if row[0].startswith(phase)]


@pytest.mark.parametrize(
    ("phase", "key"),
    [("DataLoaderWait", "wait"), ("Forward", "forward"), ("Backward", "backward"), ("Optimizer", "optimizer")],
)
def test_a_collection_is_taken_from_the_part_that_it_interrupts(phase, key):
    rows = training(400, wait=0.01, forward=0.01, backward=0.01, optimizer=0.01)
    without = metrics_of(rows).ranks[0]
    rows += [collection(start + 0.001, 0.004) for start, _ in spans(rows, phase)[50:]]
    rank = metrics_of(rows).ranks[0]
    assert rank.seconds["gc"] == pytest.approx(350 * 0.004, rel=0.01)
    assert rank.seconds[key] == pytest.approx(without.seconds[key] - 350 * 0.004, rel=0.01)
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop)


def test_what_is_saved_during_an_evaluation_is_no_evaluation():
    rows = training(200)
    held_out = training(100, mode="EVAL", at=rows[-1][2] + rows[-1][3] + 0.001, backward=0, optimizer=0, forward=0.01)
    rows += held_out + training(200, at=held_out[-1][2] + held_out[-1][3] + 0.001, number=200)
    rows += [(event_names.SAVE, "torch.save", row[2] + 0.001, 0.008, *row[4:6], {"calls": 1}) for row in held_out[::3]]
    report = report_from(rows)
    assert report.ledger.share("saving") > 0.02
    text = terminal_summary(report)
    assert f"evaluation {percent(report.ledger.share('evaluation'))}" in text


def test_a_collection_in_evaluation_is_no_evaluation():
    rows = training(200)
    held_out = training(100, mode="EVAL", at=rows[-1][2] + rows[-1][3] + 0.001, backward=0, optimizer=0, forward=0.01)
    rows += held_out + training(200, at=held_out[-1][2] + held_out[-1][3] + 0.001, number=200)
    without = metrics_of(rows).ranks[0]
    rows += [collection(start + 0.001, 0.004) for start, _ in spans(held_out, "Forward")]
    rank = metrics_of(rows).ranks[0]
    assert rank.seconds["gc"] == pytest.approx(0.4, rel=0.01)
    assert rank.seconds["evaluation"] == pytest.approx(without.seconds["evaluation"] - 0.4, rel=0.02)


def test_collections_do_not_explain_an_evaluation_that_costs_more():
    """Both are findings, and the evaluation leads with what it takes besides."""
    rows = training(200)
    at = rows[-1][2] + rows[-1][3] + 0.001
    held_out = training(200, mode="EVAL", at=at, backward=0, optimizer=0, forward=0.01)
    rows += held_out + training(200, at=held_out[-1][2] + held_out[-1][3] + 0.001, number=200)
    rows += [collection(start + 0.0001, 0.0025) for start, _ in spans(rows, "Backward")]
    verdict = verdict_of(rows)
    assert verdict.kind is Class.EVALUATION_BOUND
    assert Class.GC_BOUND in {one.kind for one in verdict.also}


def test_overlapping_phases_count_once():
    """Several threads, or a damaged file, record phases at the same time."""
    rows = training(300)
    for start, length in spans(rows, "Forward"):
        rows += [("Forward", "Forward", start, 20 * length, "algo-1-0", 1)] * 3
    rank = metrics_of(rows).ranks[0]
    iterations = rank.iterations
    assert sum(rank.seconds.values()) == pytest.approx(rank.loop)
    whole = sum(iterations.of(key) for key in parts.iteration_keys())
    assert (whole <= iterations.length * 1.000001).all()
    assert all(0 <= rank.share_of_iterations(key) <= 1 for key in parts.iteration_keys())


def test_overlapping_steps_take_no_longer_than_the_loop():
    rows = training(300)
    rows += [(*row[:2], row[2] + 0.003, 5 * row[3], *row[4:]) for row in rows if row[0].startswith("Step")]
    rank = metrics_of(rows).ranks[0]
    assert rank.iterations.length.sum() <= rank.end - rank.start + 1e-6
    verdict = verdict_of(rows)
    assert all(0 <= one.share_of_time <= 1 for one in (verdict.main, *verdict.also))


def test_overlapping_collections_count_once():
    rows = training(300)
    start, end = rows[0][2], rows[-1][2]
    rows += [collection(start + 0.5, end - start - 1)] * 5
    rank = metrics_of(rows).ranks[0]
    assert rank.gc <= rank.loop
    assert verdict_of(rows).main.share_of_time <= 1


def test_where_a_span_begins_that_earlier_ones_cover():
    start, end = np.asarray([0.0, 1, 2, 8]), np.asarray([5.0, 3, 7, 9])
    assert not_covered_before(start, end).tolist() == [0, 3, 5, 8]
    assert not_covered_before(np.zeros(0), np.zeros(0)).tolist() == []


def test_collections_in_steps_without_phases_do_not_stretch_the_phases_of_others():
    """On a short budget the hook records the phases of every nth step; a collection hits any step."""
    rows = training(400)
    ends = {row[5]: row[2] + row[3] for row in rows if row[0].startswith("Step")}
    sparse = [row for row in rows if row[0].startswith("Step") or row[5] % 2 == 0]
    shift, moved = 0.0, []
    for row in sparse:
        moved.append((*row[:2], row[2] + shift, *row[3:]))
        if row[0].startswith("Step") and row[5] % 50 == 24:
            moved.append(collection(ends[row[5]] + shift + 0.00005, 0.2))
            shift += 0.2
    rank = metrics_of(moved).ranks[0]
    assert rank.gc == pytest.approx(8 * 0.2, rel=0.01)
    assert rank.seconds["gc"] == pytest.approx(rank.gc, rel=0.01)
    assert rank.seconds["backward"] == pytest.approx(400 * 0.005, rel=0.02)
