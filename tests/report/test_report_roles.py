"""Forwards without gradients: part of a training step by their pattern, or evaluation."""

import numpy as np
import pytest

from sm_profiler.diagnosis.confidence import MAY_BE_NEEDED
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.metrics import step_fold, step_sample
from sm_profiler.report import Class
from tests.support.reports import metrics_of, sampled, training, verdict_of

FORWARD = {"backward": 0, "optimizer": 0}
SWITCH = 20e-6


def turns(count, *, ahead=1, each=0.004, learn=1, every=1, wait=0.0, between=0.0, switch=0, mode="EVAL", rows=()):
    """Return rounds of `learn` training steps, before every nth of which a model runs `ahead` times without gradients.

    Args:
        count: rounds.
        ahead: forwards without gradients.
        each: seconds of such a forward.
        learn: training steps of a round.
        every: rounds from one to the next with such forwards.
        wait: seconds for which such a forward waits for its batch.
        between: seconds of the script's own code after the forwards.
        switch: how often the model is put into eval() mode before them.
        mode: of the steps of these forwards.
        rows: further events.
    """
    rows, now, evaluated, trained = list(rows), 1.0, 0, 0
    for number in range(count):
        if number % every == 0:
            for _ in range(switch):
                rows.append((event_names.EVAL_MODE, "Net", now, SWITCH, "algo-1-0", -1))
                now += SWITCH
            step = {"wait": wait, "forward": each, "outside": 0, "mode": mode, **FORWARD}
            rows += training(ahead, at=now, number=evaluated, **step)
            now += ahead * (wait + each) + between
            evaluated += ahead
        rows += training(learn, at=now, number=trained, wait=0)
        now += learn * 0.0092
        trained += learn
    return rows


def roles(rows):
    """Return the training steps, those of evaluation, and the forwards inside training steps."""
    (rank,) = metrics_of(rows).ranks
    return rank.train_steps, int((~rank.train).sum()), rank.within_steps


PART_OF_STEP = {
    "target network or teacher": turns(200),
    "acts four times, learns once": turns(200, ahead=4),
    "generator of each second step of a GAN": turns(200, learn=2),
    "acts many times, a state at a time": turns(200, ahead=20, each=0.0004),
    "acts in eval() mode, and leaves it each time": turns(200, ahead=4, each=0.0004, switch=4),
    "predictions of Keras": turns(200, ahead=12, wait=0.0001, mode="PREDICT"),
    "teacher in eval() mode since before the loop": turns(200, between=0.001),
}
EVALUATION = {
    "every 20 steps": turns(200, ahead=30, every=20),
    "every 20 steps, one batch": turns(200, every=20, each=0.1),
    "every 20 steps, in eval() mode": turns(200, every=20, each=0.1, switch=1),
    "each step, in eval() mode": turns(200, switch=1),
    "each step, many batches": turns(200, ahead=10),
    "each step, batches of a loader": turns(200, ahead=2, wait=0.001),
    "after each epoch": turns(10, ahead=3, learn=40),
}


@pytest.mark.parametrize("name", PART_OF_STEP)
def test_forwards_of_each_step_are_part_of_it(name):
    steps, evaluated, within = roles(PART_OF_STEP[name])
    assert steps in (200, 400)
    assert (evaluated, within > 0) == (0, True)
    verdict = verdict_of(PART_OF_STEP[name])
    assert verdict.kind is Class.BALANCED, verdict.main.headline


@pytest.mark.parametrize("name", EVALUATION)
def test_evaluation_stays_evaluation(name):
    _, evaluated, within = roles(EVALUATION[name])
    assert evaluated > 0
    assert within == 0


@pytest.mark.parametrize("name", ["each step, in eval() mode", "every 20 steps, in eval() mode"])
def test_expensive_evaluation_is_found(name):
    assert verdict_of(EVALUATION[name]).kind is Class.EVALUATION_BOUND


def test_how_much_evaluation_a_training_needs_is_not_known():
    main = verdict_of(EVALUATION["each step, in eval() mode"]).main
    assert (main.kind, main.confidence, main.doubt) == (Class.EVALUATION_BOUND, "medium", MAY_BE_NEEDED)


def test_what_a_model_generates_for_each_step_is_no_evaluation():
    each = verdict_of(EVALUATION["each step, many batches"]).main
    assert (each.kind, each.confidence, each.doubt) == (Class.USER_PHASE, "medium", MAY_BE_NEEDED)
    assert each.headline.startswith("The model runs without gradients before each training step: 81")
    second = verdict_of(turns(200, ahead=10, learn=2)).main
    assert second.headline.startswith("The model runs without gradients before every second training step")
    assert verdict_of(turns(200, ahead=10, learn=4)).kind is Class.EVALUATION_BOUND


def test_what_an_agent_does_between_its_forward_and_the_step_is_code_of_the_step():
    stack = ("evaluation", False, 1.0, 31)
    metrics = metrics_of(turns(200, between=0.02, rows=[sampled(stack)]))
    main = decide(Case(metrics, {})).main
    assert main.kind is Class.SYNC_BOUND
    assert main.share_of_time == pytest.approx(0.02 / 0.0332, abs=0.03)
    assert main.where[0].line == 31


@pytest.mark.parametrize(("recorded", "forward"), [("EVAL", None), ("TRAIN", 0.003), ("both, in turns", 0.007)])
def test_the_phases_of_either_step_may_not_be_recorded(recorded, forward):
    rows, mode, number = [], "", 0
    for row in reversed(turns(200)):  # a step's record comes after those of its phases
        if row[0].startswith("Step"):
            mode, number = row[0].rpartition(".")[2], row[5]
        if row[0].startswith("Step") or mode == recorded or (len(recorded) > 5 and number % 2 == (mode == "EVAL")):
            rows.append(row)
    (rank,) = metrics_of(rows[::-1]).ranks
    assert rank.within_steps == 200
    if forward is not None:
        assert rank.median("forward") == pytest.approx(forward)
        assert rank.loop == pytest.approx(200 * 0.0132, rel=0.02)


def test_a_sample_of_the_steps_has_the_same_roles(monkeypatch):
    rows = turns(6000, between=0.005)
    (whole,) = metrics_of(rows).ranks
    monkeypatch.setattr(step_sample, "MAX_STEPS", 4096)
    monkeypatch.setattr(step_fold, "MAX_STEPS", 4096)
    (found,) = metrics_of(rows).ranks
    assert whole.judged is None
    assert found.judged is not None
    assert found.train_steps == 6000
    assert (found.all_steps, found.within_steps) == pytest.approx((6000, 6000), rel=0.01)  # a sample cuts some apart
    assert {key: found.share(key) for key in found.seconds} == pytest.approx(
        {key: whole.share(key) for key in whole.seconds}, abs=0.02
    )
    assert np.median(found.iterations.length) == pytest.approx(np.median(whole.iterations.length), rel=0.01)
    assert found.median("forward") == pytest.approx(whole.median("forward"), rel=0.01)


def evaluated(rounds=10, *, learn=40, spent=0.4, back=None, rest=0.0, node="algo-1-0"):
    """Return rounds of training, each followed by an evaluation of which no forward is seen: a model's other methods run.

    Args:
        rounds: their number.
        learn: training steps of a round.
        spent: seconds of the evaluation.
        back: seconds after eval() at which train() is called; None: it is not recorded.
        rest: seconds of other code after the evaluation.
        node: process.
    """
    rows, now = [], 1.0
    for number in range(rounds):
        rows += training(learn, at=now, number=number * learn, wait=0, node=node)
        now += learn * 0.0092
        rows.append((event_names.EVAL_MODE, "Net", now, SWITCH, node, -1))
        if back is not None:
            rows.append((event_names.TRAIN_MODE, "Net", now + back, 0.0, node, -1))
        now += spent + rest
    return [*rows, *training(5, at=now, number=rounds * learn, wait=0, node=node)]


@pytest.mark.parametrize("back", [None, 0.4])
def test_a_model_in_eval_mode_between_two_training_steps_is_evaluated(back):
    rows = evaluated(back=back)
    (rank,) = metrics_of(rows).ranks
    assert rank.seconds["evaluation"] == pytest.approx(10 * 0.4, rel=0.01)
    assert rank.train_steps == 405
    verdict = verdict_of(rows)
    assert (verdict.kind, verdict.also) == (Class.EVALUATION_BOUND, ())


def test_an_evaluation_ends_where_the_model_is_switched_back():
    rows = evaluated(back=0.01, spent=0.01, rest=0.4)
    (rank,) = metrics_of(rows).ranks
    assert rank.seconds["evaluation"] == pytest.approx(10 * 0.01, rel=0.01)
    assert verdict_of(rows).kind is Class.PERIODIC_STALL


def test_a_model_that_trains_in_eval_mode_is_not_evaluated():
    first = training(40, wait=0)
    rows = [*first, (event_names.EVAL_MODE, "Net", 1.0 + 40 * 0.0092, SWITCH, "algo-1-0", -1)]
    rows += training(300, at=1.0 + 40 * 0.0092 + SWITCH, number=40, wait=0)
    (rank,) = metrics_of(rows).ranks
    assert rank.seconds["evaluation"] < 0.01
    assert len(rank.iterations) >= 338


def test_known_evaluations_are_as_long_as_their_forwards():
    """Most scripts call train() before the next epoch, after other code that follows the evaluation."""
    (known,) = metrics_of(turns(100, every=20, each=0.1, between=0.3)).ranks
    (rank,) = metrics_of(turns(100, every=20, each=0.1, between=0.3, switch=1)).ranks
    assert rank.seconds["evaluation"] == pytest.approx(known.seconds["evaluation"])
