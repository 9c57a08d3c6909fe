"""Evaluations between training steps neither keep the hook from resting, nor end a rest."""

from itertools import pairwise

import pytest

from sm_profiler.formats.event_names import FORWARD
from sm_profiler.hook.modes import STEP, ModeKeys
from sm_profiler.hook.rest import LONGEST_EVALUATION_NS
from sm_profiler.hook.sampler import phase_of
from sm_profiler.hook.steps import REGULAR, StepTracker, Stream

TRAIN, EVAL = STEP[ModeKeys.TRAIN], STEP[ModeKeys.EVAL]
MODEL, OPTIMIZER = 7, 9
EVERY, PASSES = 5, 3


class Training:
    """Reports of the PyTorch adapter for a loop that evaluates after every fifth step, by a clock that ticks."""

    def __init__(self, every: int, *, loader: bool = False, second: bool = False) -> None:
        self.now, self.records = 0, []
        self.tracker = tracker = StepTracker(self.records.append)
        tracker.every, tracker.settled = every, ModeKeys.TRAIN
        self.loader = Stream("train", lambda: self) if loader else None
        self.second, self.steps, self.evaluated, self.ended = second, 0, [], []

    def tick(self, ns: int = 10) -> int:
        self.now += ns
        return self.now

    def fetch(self, stream: Stream, *, got: bool = True) -> None:
        tracker, rest = self.tracker, self.tracker.rest
        self.tick()
        if rest is not None and stream is rest.stream and not rest.evaluates:
            rest.arrivals.append(self.now)
        elif rest is None or stream is rest.stream or not rest.evaluates:
            tracker.fetch_begins()
            tracker.fetch_ends(stream, self.now, self.tick(), got=got, gradients=not tracker.evaluates_after >= 0)

    def forward(self, *, gradients: bool) -> None:
        if self.tracker.rest is None:
            self.tracker.forward_begins(MODEL, self.tick(), gradients=gradients)
            self.tracker.forward_ends("Net", self.tick())
        else:
            self.tick(20)

    def step(self) -> None:
        tracker = self.tracker
        if self.loader is not None:
            self.fetch(self.loader)
        self.forward(gradients=True)
        if tracker.rest is None:
            tracker.backward_begins(self.tick())
            tracker.backward_ends(self.tick())
            tracker.optimizer_begins(OPTIMIZER, self.tick())
            tracker.optimizer_ends(OPTIMIZER, "SGD", self.tick())
            tracker.settled = ModeKeys.TRAIN
            if tracker.may_rest():
                tracker.begin_rest(lambda: None, lambda _stack: "")
        else:
            rest = tracker.rest
            rest.ends.append(self.tick(40))
            if len(rest.ends) > rest.steps:
                tracker.end_rest(regular=True)
        self.ended.append(self.now)
        self.steps += 1

    def evaluate(self, *, back: bool = True, switches: bool = True) -> None:
        began = self.tick()
        self.tracker.evaluation_begins(began, switches=switches)
        batches = Stream("validation", lambda: self)
        for _ in range(PASSES):
            if self.second:
                self.fetch(batches)
            self.forward(gradients=False)
        if self.second:
            self.fetch(batches, got=False)
        if back:
            self.tracker.evaluation_ends(self.tick())
        self.evaluated.append((began, self.now))

    def run(self, count: int = 200, **options: bool) -> "Training":
        for _ in range(count):
            self.step()
            if self.steps % EVERY == 0:
                self.evaluate(**options)
        self.tracker.end_step()
        return self

    def of(self, name: str) -> list[tuple]:
        return [record for record in self.records if record[0] == name]

    def runs(self) -> list[tuple[int, int, int]]:
        """Return the evaluations as the records have them: the number of the training step before, start and end."""
        found, last = [], -1
        for name, _, start, end, number, _ in self.records:
            if name == TRAIN:
                last = number
            elif name == EVAL:
                same = found and found[-1][0] == last
                found[-1:] = [(last, found[-1][1], end)] if same else [*found[-1:], (last, start, end)]
        return found


SEEN = [{}, {"loader": True, "second": True}, {"second": True}]
# With a loader for training only, forwards of an evaluation that is observed begin no step.
KINDS = [*SEEN, {"loader": True}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_evaluates_often_rests(kind):
    observed, rested = Training(1, **kind).run(), Training(63, **kind).run()
    assert observed.tracker.rested == 0
    assert rested.tracker.rested > 150
    assert len(rested.of(FORWARD)) < 0.1 * len(observed.of(FORWARD))


@pytest.mark.parametrize("kind", SEEN)
def test_steps_and_evaluations_are_those_of_a_loop_that_is_observed(kind):
    observed, rested = Training(1, **kind).run(), Training(63, **kind).run()
    assert [record[4] for record in rested.of(TRAIN)] == [record[4] for record in observed.of(TRAIN)] == [*range(200)]
    assert [record[3] for record in rested.of(TRAIN)] == rested.ended
    assert [run[0] for run in rested.runs()] == [run[0] for run in observed.runs()]
    numbers = [record[4] for record in rested.of(EVAL)]
    assert numbers == [*range(len(numbers))]
    for (_, start, end), (began, ended) in zip(rested.runs(), rested.evaluated, strict=True):
        assert began <= start < end <= ended
        assert end - start >= ended - began - 70  # a wait before the first and after the last forward


@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_evaluations_do_not_overlap(kind):
    records = [record for record in Training(63, **kind).run().records if record[0] in (TRAIN, EVAL)]
    assert all(before[3] <= after[2] for before, after in pairwise(records))


def test_a_model_that_acts_before_each_step_rests_as_well():
    training = Training(63)
    for _ in range(60):
        training.evaluate()
        training.evaluate()
        training.step()
    training.tracker.end_step()
    assert training.tracker.rested > 40
    assert len(training.of(TRAIN)) == 60


def test_forwards_without_gradients_in_training_mode_keep_a_loop_observed():
    training = Training(63)
    for _ in range(60):
        training.step()
        training.step()
        for _ in range(PASSES):
            training.forward(gradients=False)
    assert training.tracker.rested == 0


def resting(**kind: bool) -> Training:
    training = Training(1 << 20, **kind)
    training.run(EVERY)
    for _ in range(REGULAR):
        training.step()
    assert training.tracker.rest is not None
    return training


def test_an_evaluation_after_which_nothing_was_switched_back_ends_the_rest():
    training = Training(1 << 20)
    for _ in range(REGULAR + 3):
        training.step()
    assert training.tracker.rest is not None
    training.evaluate(back=False)
    assert training.tracker.rest is None
    training.step()
    assert len(training.of(EVAL)) == PASSES


def test_a_model_that_is_in_eval_mode_already_ends_the_rest():
    training = resting()
    training.evaluate(switches=False)
    assert training.tracker.rest is None


def test_another_model_in_eval_mode_is_evaluated_with_the_first():
    training = resting()
    tracker = training.tracker
    tracker.evaluation_begins(began := training.tick(), switches=True)
    tracker.evaluation_begins(training.tick(), switches=True)
    tracker.evaluation_begins(training.tick(), switches=False)
    tracker.evaluation_ends(ended := training.tick())
    training.step()
    tracker.end_rest()
    assert [record[2:4] for record in training.of(EVAL)[PASSES:]] == [(began, ended)]
    assert training.of(TRAIN)[-1][2] == ended


def test_what_trains_in_eval_mode_is_no_evaluation():
    training = resting()
    training.evaluate(back=False)
    training.step()
    training.tracker.evaluation_ends(training.tick())
    training.step()
    training.evaluate()
    assert training.tracker.rest is None  # the next one may not be switched back either
    assert len(training.of(TRAIN)) == EVERY + REGULAR + 2


def test_long_evaluations_are_observed():
    """The hang watch would miss their progress."""
    training = Training(1 << 20)
    training.run(EVERY - 1)
    training.tracker.evaluation_begins(training.tick(), switches=True)
    training.tracker.evaluation_ends(training.tick(LONGEST_EVALUATION_NS))
    for _ in range(REGULAR + 3):
        training.step()
    assert training.tracker.rest is not None
    training.evaluate()
    assert training.tracker.rest is None


def test_an_evaluation_in_which_the_rest_ends():
    training = resting()
    tracker = training.tracker
    step = tracker.train_number
    tracker.evaluation_begins(training.tick(), switches=True)
    assert phase_of(tracker) == "evaluation"
    tracker.end_rest()
    assert phase_of(tracker) == "evaluation"
    assert (tracker.train_number, tracker.evaluates_after) == (step, step)
    training.forward(gradients=False)
    tracker.evaluation_ends(training.tick())
    training.step()
    tracker.end_step()
    assert [record[4] for record in training.of(EVAL)] == [*range(PASSES + 2)]
    assert training.of(TRAIN)[-1][4] == step + 1


def test_an_evaluation_within_a_step_is_part_of_it():
    training = resting(loader=True)
    before = len(training.of(EVAL))
    training.fetch(training.loader)
    arrived = training.now
    training.evaluate()
    rest = training.tracker.rest
    rest.ends.append(ended := training.tick())
    training.tracker.end_rest()
    assert training.of(TRAIN)[-1][2:4] == (arrived, ended)
    assert len(training.of(EVAL)) == before


def test_other_threads_see_a_step_begin_after_the_evaluation():
    training = resting()
    training.evaluate()
    assert training.tracker.latest[1] == training.tracker.progress[1] == training.now


def test_a_batch_of_the_loop_that_is_evaluated_ends_the_rest():
    training = resting(loader=True)
    training.tracker.evaluation_begins(training.tick(), switches=True)
    training.fetch(training.loader)
    assert training.tracker.rest is None
