"""Detection of steps without a framework: loops are sequences of letters."""

import pytest

from sm_profiler.formats.event_names import BACKWARD, DATALOADER_WAIT, FORWARD, OPTIMIZER
from sm_profiler.hook.steps import StepTracker, Stream

MODEL, GENERATOR, OPTIMIZER_ID = 11, 22, 33


class Loop:
    """f forward, u one with changed parameters, g another model's forward, b backward, o optimizer, n fetch, x end of data, e eval forward, t another model's."""

    def __init__(self, compiles: bool = False, has_optimizer: bool = True) -> None:
        self.now = 0
        self.records = []
        self.tracker = StepTracker(self.records.append)
        self.tracker.compiles = compiles
        self.tracker.has_optimizer = has_optimizer
        self.stream = Stream("loader", lambda: self)
        self.starts = []

    def tick(self) -> int:
        self.now += 10
        return self.now

    def run(self, actions: str) -> "Loop":
        tracker = self.tracker
        for letter in actions.replace(" ", ""):
            before = tracker.global_step
            if letter in "nxm":
                tracker.fetch_begins()
                stream = self.stream
                tracker.fetch_ends(stream, self.tick(), self.tick(), got=letter != "x", gradients=True)
            elif letter in "fuget":
                tracker.updated = letter == "u"
                tracker.forward_begins(
                    GENERATOR if letter in "gt" else MODEL, self.tick(), gradients=letter not in "et"
                )
                tracker.forward_ends("net", self.tick())
            elif letter == "b":
                tracker.backward_begins(self.tick())
                tracker.backward_ends(self.tick())
            elif letter == "o":
                tracker.optimizer_begins(OPTIMIZER_ID, self.tick())
                tracker.optimizer_ends(OPTIMIZER_ID, "SGD", self.tick())
            if tracker.global_step != before:
                self.starts.append(letter)
        return self

    def steps(self) -> list[tuple]:
        self.tracker.end_step()
        return [record for record in self.records if record[0].startswith("Step:")]

    def count(self, phase: str) -> int:
        return sum(record[0] == phase for record in self.records)


@pytest.mark.parametrize(
    ("name", "actions", "steps"),
    [
        ("plain loop", "nfbo nfbo nfbo x", 3),
        ("no loader", "fbo fbo fbo", 3),
        ("accumulation", "nfb nfb nfbo nfb nfb nfbo x", 6),
        ("accumulation without a loader: the optimizer decides", "fbfbo fbfbo", 2),
        ("GAN", "nffb o gfb o nffbo gfbo x", 2),
        ("GAN without a loader: each optimizer ends a step", "ffbo gfbo", 2),
        ("RNN: many forwards, one backward", "n ffff bo n ffff bo x", 2),
        ("GradScaler skips an update", "nfbo nfb nfbo x", 3),
        ("optimizer per parameter", "nfb ooo nfb ooo x", 2),
        ("fetch ahead by one", "nn fbo n fbo n fbo x fbo", 4),
        ("fetch ahead, GAN", "nn ffbo gfbo n ffbo gfbo x ffbo gfbo", 3),
        ("several batches fetched, then accumulated", "nnnn fb fb fb fbo nnnn fb fb fb fbo x", 8),
        ("the same with one ahead", "nnn fb fbo nn fb fbo x", 4),
        ("batches skipped at a resume", "nnnnnn nfbo nfbo x", 2),
        ("evaluation without a loader", "eee", 3),
        ("two models evaluated without a loader, one by one", "et et et", 3),
        ("meta-learning: inner loops of functions, one optimizer step", "fuuufuuubo fuuufuuubo", 2),
        ("a target network without a loader", "ftbo ftbo ftbo", 3),
        ("the same, and actions between the updates", "e ftbo e ftbo e ftbo", 6),
        ("a double network without a loader", "e fetbo e fetbo", 4),
        ("evaluation without a loader after an update", "fbo eee fbo eee", 8),
        ("a try of the model, then evaluation without a loader", "f eee fbo", 3),
        ("early break, another epoch", "nfbo nfbo", 2),
        ("one batch, many inner steps", "n fbo fbo fbo x", 1),
    ],
)
def test_counts_steps(name, actions, steps):
    assert len(Loop().run(actions).steps()) == steps, name


@pytest.mark.parametrize(
    ("name", "actions", "steps"),
    [
        ("updated by hand after each backward", "fb fb fb", 3),
        ("two losses of one forward", "fbb fbb", 2),
        ("RNN: many forwards, one backward", "fffb fffb", 2),
        ("functions of tensors, without a module", "b b b", 3),
        ("evaluation in between", "fb fb ee fb", 5),
        ("with a loader", "nfb nfb x", 2),
        ("accumulation over a loader", "nfb nfb nfb x", 3),
        ("gradients as functions", "f u u u", 4),
        ("gradients as functions, several forwards a step", "ff uf uf", 3),
        ("two models, gradients as functions", "fg ug ug", 3),
        ("only forwards for long", "f" * 70, 7),
    ],
)
def test_counts_steps_of_loops_without_an_optimizer(name, actions, steps):
    assert len(Loop(has_optimizer=False).run(actions).steps()) == steps, name


def test_an_optimizer_that_never_steps_is_no_optimizer():
    loop = Loop().run("fb" * 100)
    assert 30 < len(loop.steps()) < 40


def test_a_step_runs_from_its_forward_to_its_last_phase():
    loop = Loop().run("nfbo nfbo x")
    (_, _, start, end, number, _), (_, _, start2, _, number2, _) = loop.steps()
    assert (start, end, number) == (30, 80, 0)
    assert (start2, number2) == (110, 1)
    assert [loop.count(phase) for phase in (DATALOADER_WAIT, FORWARD, BACKWARD, OPTIMIZER)] == [2, 2, 2, 2]


def test_a_wait_belongs_to_the_step_of_its_batch():
    loop = Loop().run("nn fbo n fbo x fbo")
    assert [record[4] for record in loop.records if record[0] == DATALOADER_WAIT] == [0, 1, 2]


def test_steps_are_numbered_per_mode():
    loop = Loop().run("fbo fbo e e fbo")
    assert [(record[0], record[4]) for record in loop.steps()] == [
        ("Step:ModeKeys.TRAIN", 0),
        ("Step:ModeKeys.TRAIN", 1),
        ("Step:ModeKeys.EVAL", 0),
        ("Step:ModeKeys.EVAL", 1),
        ("Step:ModeKeys.TRAIN", 2),
    ]
    assert loop.tracker.global_step == 4


@pytest.mark.parametrize(
    ("actions", "steps"), [("nbo nbo nbo x", 3), ("bo bo bo", 3), ("nb nb x", 2), ("no no x", 2), ("b b b", 3)]
)
def test_steps_are_detected_without_visible_forwards(actions, steps):
    assert len(Loop(compiles=True).run(actions).steps()) == steps


def test_an_evaluation_loop_in_the_middle_of_an_epoch():
    loop = Loop().run("nfbo nfbo")
    train, loop.stream = loop.stream, Stream("eval", lambda: loop)
    loop.run("nenene x")
    loop.stream = train
    loop.run("nfbo x")
    assert [record[0][14:] for record in loop.steps()] == ["TRAIN", "TRAIN", "EVAL", "EVAL", "EVAL", "TRAIN"]


def test_a_nested_backward_is_part_of_the_outermost():
    loop = Loop()
    loop.run("nf")
    loop.tracker.backward_begins(loop.tick())
    loop.tracker.backward_begins(loop.tick())  # re-entrant checkpointing
    loop.tracker.backward_ends(loop.tick())
    assert loop.tracker.in_backward == 1
    loop.tracker.backward_ends(loop.tick())
    assert loop.count(BACKWARD) == 1


def test_a_failed_optimizer_step_does_not_hide_the_next():
    loop = Loop().run("nfb")
    loop.tracker.optimizer_begins(OPTIMIZER_ID, loop.tick())  # raises: no end is reported
    loop.run("nfbo nfbo x")
    assert loop.count(OPTIMIZER) == 2


def test_sparse_phases_keep_every_step():
    loop = Loop()
    loop.tracker.every = 4
    loop.run("nfbo" * 16 + "x")
    assert len(loop.steps()) == 16
    assert [loop.count(phase) for phase in (DATALOADER_WAIT, FORWARD, BACKWARD, OPTIMIZER)] == [4, 4, 4, 4]


def test_an_optimizer_that_calls_the_model_is_recorded_between_the_calls():
    loop = Loop()
    for _ in range(2):  # a closure called twice, as LBFGS does; Lightning calls it once
        loop.run("n")
        loop.tracker.optimizer_begins(OPTIMIZER_ID, loop.tick(), "LBFGS")
        loop.run("fbfb")
        loop.tracker.optimizer_ends(OPTIMIZER_ID, "LBFGS", loop.tick())
    steps = loop.steps()
    spans = [record[2:5] for record in loop.records if record[0] == OPTIMIZER]
    assert spans == [(70, 80, 0), (110, 120, 0), (190, 200, 1), (230, 240, 1)]
    assert [step[2:5] for step in steps] == [(40, 120, 0), (160, 240, 1)]


def test_what_a_closure_does_is_not_the_optimizers_own_work():
    """Lightning runs training_step in a closure: a sample of what it does before the model is none of the optimizer."""
    loop, seen = Loop(), []
    for _ in range(2):
        loop.run("n")
        loop.tracker.optimizer_begins(OPTIMIZER_ID, loop.tick(), "SGD")
        seen.append(loop.tracker.in_optimizer)
        loop.run("f")
        seen.append(loop.tracker.in_optimizer)
        loop.run("b")
        seen.append(loop.tracker.in_optimizer)
        loop.tracker.optimizer_ends(OPTIMIZER_ID, "SGD", loop.tick())
    assert seen == [False, False, True] * 2
    loop.run("nfb")
    loop.tracker.optimizer_begins(OPTIMIZER_ID, loop.tick(), "SGD")
    assert loop.tracker.in_optimizer


def test_the_optimizers_work_is_its_own_if_the_next_batch_was_fetched_in_the_step():
    loop = Loop().run("nfnb")
    loop.tracker.optimizer_begins(OPTIMIZER_ID, loop.tick(), "SGD")
    assert loop.tracker.in_optimizer


def test_a_call_that_builds_the_model_before_an_owners_loop_is_no_step():
    loop = Loop().run("f")
    loop.tracker.claim("keras")
    loop.tracker.begin_step(loop.tick(), gradients=True)
    assert loop.tracker.number == 0
    assert len(loop.steps()) == 1


def test_a_step_before_an_owners_loop_counts():
    loop = Loop().run("nfbo")
    loop.tracker.claim("keras")
    loop.tracker.begin_step(loop.tick(), gradients=True)
    assert loop.tracker.number == 1
    assert len(loop.steps()) == 2


@pytest.mark.parametrize(
    ("name", "actions", "steps"),
    [
        ("a forward failed in the first step", "nf", 0),
        ("in a later one", "nfbo nfbo nf", 2),
        ("without a loader", "fbo fbo f", 2),
        ("the batch was missing", "nfbo nfbo n", 2),
        ("after the optimizer's step", "nfbo nfbo", 2),
        ("an evaluation failed", "nfbo nfbo ne", 2),
        ("between backward and optimizer", "nfbo" * 20 + "nfb", 20),
        ("accumulation: a backward is a micro-batch", "nfb nfb nfbo nfb", 4),
        ("accumulation: a forward failed", "nfb nfb nfbo nf", 3),
    ],
)
def test_steps_that_were_completed_when_the_training_failed(name, actions, steps):
    assert Loop().run(actions).tracker.completed == steps, name


def test_without_optimizer_and_backward_each_forward_is_a_step():
    assert Loop(has_optimizer=False).run("n f n f n f").tracker.completed == 3


def test_a_step_in_whose_optimizer_the_training_failed_is_not_completed():
    loop = Loop().run("nfbo nfb")
    loop.tracker.optimizer_begins(OPTIMIZER_ID, loop.tick())
    assert loop.tracker.completed == 1
