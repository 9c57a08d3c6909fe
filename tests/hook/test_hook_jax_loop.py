"""Steps of loops that call compiled functions: which calls begin one, and in which mode."""

import numpy as np
import pytest

from sm_profiler.hook.jax.calls import MIN_QUEUED_NS, _first_leaf, _is_pending, _queued, describe
from sm_profiler.hook.jax.compilations import COMPILED, LOWERED, NEW, SAME, TRACED, Compilations, difference
from sm_profiler.hook.jax.loop import Compiled, Loop
from sm_profiler.hook.steps import StepTracker, Stream


class Array:
    """An argument or a result."""


class Script:
    """A script that calls compiled functions; a call takes 1 ms, everything else none."""

    def __init__(self):
        self.records = []
        self.tracker = StepTracker(self.records.append)
        self.leaders = 0
        self.loop = Loop(self.tracker, self._lead, list)
        self.functions = {}
        self.differentiated = {"gradients_of", "second_gradients"}
        self.now = 1_000_000_000

    def _lead(self):
        self.leaders += 1

    def call(self, name, *arguments, results=1):
        function = self.functions.setdefault(name, Compiled(name))
        start = self.now
        self.loop.begins(function, start, arguments)
        if name in self.differentiated and not function.gradients:  # as JAX traces it
            self.loop.computes_gradients(function)
        self.now += 1_000_000
        self.loop.ended(function, name, start, self.now)
        outputs = [Array() for _ in range(results)]
        if not function.settled:
            self.loop.returned(function, outputs)
        return outputs

    def fetch(self, stream, got=True):
        self.tracker.fetch_begins()
        self.tracker.fetch_ends(stream, self.now, self.now + 500_000, got=got, gradients=True)
        self.now += 500_000

    def steps(self):
        self.tracker.end_step()
        return [
            (name.rpartition(".")[2], (end - start) // 1_000_000)
            for _, name, start, end, *_ in self.records
            if "Step:" in name
        ]

    def modes(self):
        return [mode for mode, _ in self.steps()]


@pytest.fixture
def script():
    return Script()


def loader(script):
    return Stream("Loader", lambda: script)


def test_each_call_of_the_only_function_is_a_step(script):
    (params,) = script.call("init", Array())
    for _ in range(5):
        params, _ = script.call("train_step", params, Array(), results=2)
    assert script.steps() == [("TRAIN", 1)] * 5
    assert script.leaders == 5


def test_what_prepares_the_training_is_no_step(script):
    params, state = script.call("init", Array())[0], script.call("init_optimizer", Array())[0]
    for _ in range(3):
        gradients = script.call("gradients", params, Array())[0]
        params, state = script.call("update", params, state, gradients, results=2)
    assert script.steps() == [("TRAIN", 2)] * 3


def test_a_single_call_is_no_step(script):
    script.call("init")
    script.call("train_step")
    assert script.steps() == []


def test_what_never_changes_its_parameters_evaluates(script):
    params = Array()
    for _ in range(2):
        for _ in range(4):
            (params,) = script.call("train_step", params, Array())
        for _ in range(3):
            script.call("accuracy", params, Array())
    assert script.modes() == (["TRAIN"] * 4 + ["EVAL"] * 3) * 2


def test_an_evaluation_without_any_training_is_recognized_by_its_arguments(script):
    params = [Array() for _ in range(4)]
    for _ in range(3):
        script.call("apply", *params, Array())
    assert script.modes() == ["EVAL"] * 3


def test_parameters_that_are_updated_outside_compiled_functions_train(script):
    for _ in range(3):
        script.call("gradients", Array(), Array())
    assert script.modes() == ["TRAIN"] * 3


def test_what_computes_gradients_trains_even_if_results_are_not_used_again(script):
    (params,) = script.call("init", Array())
    script.call("init_optimizer", params)
    for _ in range(4):
        script.call("gradients_of", params, Array())  # updated outside of compiled functions
        params = Array()
    assert script.modes() == ["TRAIN"] * 4


def test_what_prepares_the_batch_of_a_step_that_trains_is_part_of_it(script):
    for _ in range(2):
        for _ in range(5):
            (batch,) = script.call("augment", Array())
            script.call("gradients_of", Array(), batch)
        for _ in range(3):
            (batch,) = script.call("augment", Array())
            script.call("accuracy", Array(), batch)
    assert script.modes() == (["TRAIN"] * 5 + ["EVAL"] * 3) * 2


def test_metrics_of_each_step_are_part_of_it_and_others_evaluate(script):
    for _ in range(6):
        script.call("gradients_of", Array(), Array())
        script.call("error", Array(), Array())
    for _ in range(3):
        script.call("error", Array(), Array())
    assert script.steps() == [("TRAIN", 2)] * 6 + [("EVAL", 1)] * 3


def test_one_evaluation_after_each_epoch_is_a_step(script):
    for _ in range(4):
        for _ in range(5):
            script.call("gradients_of", Array(), Array())
        script.call("score", Array(), Array())
    script.call("gradients_of", Array(), Array())
    assert script.modes() == (["TRAIN"] * 5 + ["EVAL"]) * 4 + ["TRAIN"]


def test_what_acts_between_updates_evaluates(script):
    key = Array()
    params = [Array(), Array()]
    for _ in range(3):
        for _ in range(8):
            (key,) = script.call("act", *params, key, Array())
        script.call("gradients_of", *params, Array())
        params = [Array(), Array()]
    script.call("act", *params, key, Array())
    assert script.modes() == (["EVAL"] * 8 + ["TRAIN"]) * 3 + ["EVAL"]


def test_two_networks_that_train_in_turn_are_one_step(script):
    for number in range(8):
        script.call("gradients_of", Array())
        script.call("second_gradients", Array())
        if number % 4 == 3:
            script.call("sample", Array())
    assert [mode for mode in script.modes() if mode == "TRAIN"] == ["TRAIN"] * 8


def test_a_call_that_fails_is_no_step(script):
    for _ in range(4):
        failing = script.functions.setdefault("gradients_of", Compiled("gradients_of"))
        script.loop.begins(failing, script.now, ())
        script.loop.failed(failing)
        script.call("gradients_of", Array())
    assert script.steps() == [("TRAIN", 1)] * 4


def test_results_of_what_is_called_once_are_forgotten(script):
    script.call("init", Array(), results=9)
    for _ in range(40):
        script.call("gradients_of", Array())
    assert not script.loop._results


def test_the_mode_follows_from_a_name(script):
    params = Array()
    for _ in range(3):
        (params,) = script.call("eval_step", params)
    assert script.modes() == ["EVAL"] * 3


def test_a_function_that_is_called_now_and_then_is_no_step_of_its_own_at_first(script):
    params = Array()
    for number in range(6):
        (params,) = script.call("train_step", params, Array())
        if number == 3:
            script.call("summary", params)
    assert script.modes() == ["TRAIN"] * 6


def test_each_batch_of_a_loader_begins_one_step(script):
    stream, params = loader(script), Array()
    script.call("init", Array())
    for _ in range(4):
        script.fetch(stream)
        for _ in range(3):  # three updates with one batch
            (params,) = script.call("train_step", params, Array())
    script.fetch(stream, got=False)
    assert script.steps() == [("TRAIN", 3)] * 4
    waits = [record for record in script.records if record[0] == "DataLoaderWait"]
    assert [record[4] for record in waits] == [0, 1, 2, 3]


def test_batches_that_were_fetched_ahead_are_steps_too(script):
    stream, params = loader(script), Array()
    script.fetch(stream)
    script.fetch(stream)
    for number in range(5):
        if number < 3:
            script.fetch(stream)
        (params,) = script.call("train_step", params, Array())
    assert script.modes() == ["TRAIN"] * 5


def test_preparing_with_the_first_batch_takes_no_step(script):
    stream = loader(script)
    script.fetch(stream)
    (params,) = script.call("init", Array())
    (params,) = script.call("train_step", params, Array())
    for _ in range(2):
        script.fetch(stream)
        (params,) = script.call("train_step", params, Array())
    assert script.steps() == [("TRAIN", 1)] * 3


def test_steps_that_the_script_marks_hold_the_calls(script):
    script.tracker.claim("script")
    for _ in range(3):
        script.tracker.begin_step(script.now, gradients=True)
        script.call("train_step", Array())
        script.call("train_step", Array())
        script.tracker.end_step(script.now)
    assert script.steps() == [("TRAIN", 2)] * 3
    assert script.leaders == 0


def test_a_batch_fetched_inside_a_marked_step_comes_before_it(script):
    script.tracker.claim("script")
    stream = loader(script)
    for _ in range(2):
        script.tracker.begin_step(script.now, gradients=True)
        script.fetch(stream)
        script.call("train_step", Array())
        script.tracker.end_step(script.now)
    assert script.steps() == [("TRAIN", 1)] * 2
    assert [record[4] for record in script.records if record[0] == "DataLoaderWait"] == [0, 1]


def test_a_compilation_lasts_from_tracing_to_its_end_and_its_cause_is_named():
    now, records = [10**10], []
    found = Compilations(records.append, lambda: 7, dict, lambda: now[0])
    function = Compiled("step")
    found.start()
    for shape in ("f32[8]", "f32[9]"):
        found.running = function, {"argument 0": shape, "argument 1": "i32[]"}
        found.heard(TRACED, 0.1, fun_name="step")
        found.heard(LOWERED, 0.2, fun_name="jit(step)")
        found.heard(COMPILED, 0.5, fun_name="jit(step)")
        found.running = None
    found.heard(COMPILED, 0.5, fun_name="jit(add)")
    first, second, other = records
    assert (first[1], first[3] - first[2], first[4]) == ("step", 800_000_000, 7)
    assert (first[5]["again"], second[5]["again"], other[5]["again"]) == (False, True, False)
    assert second[5]["reason"] == "argument 0: f32[8] → f32[9]"


@pytest.mark.parametrize(("made", "reason"), [(1, SAME), (2, NEW)])
def test_the_cause_is_named_if_the_arguments_look_the_same(made, reason):
    records = []
    found = Compilations(records.append, lambda: 7, dict)
    function = Compiled("step", made=made)
    found.start()
    for _ in range(2):
        found.running = function, {"argument 0": "f32[8]"}
        found.heard(COMPILED, 0.5, fun_name="jit(step)")
    assert records[1][5]["reason"] == reason


def test_an_operation_of_jax_is_compiled_for_a_few_shapes_in_a_line_before_that_counts():
    records = []
    found = Compilations(records.append, lambda: 7, dict)
    found.start()
    for _ in range(12):
        found.heard(COMPILED, 0.5, fun_name="jit(add)")
    assert [record[5]["again"] for record in records] == [False] * 8 + [True] * 4


def test_compilations_before_the_first_step_are_recorded_with_it():
    records = []
    found = Compilations(records.append, lambda: -1, dict)
    found.heard(COMPILED, 0.5, fun_name="jit(init)")
    assert not records
    found.start()
    assert [record[1] for record in records] == ["init"]


def test_differences_are_few_and_short():
    before = {f"argument {at}": "f32[1]" for at in range(100)}
    now = {f"argument {at}": "f32[2]" for at in range(100)} | {"argument x": "new"}
    assert difference(before, now).count("→") == 5
    assert difference({"a": "1"}, {"b": "1"}) == "b is new, a is gone"
    assert not difference(before, before)


def test_a_call_waits_for_the_one_before_while_that_still_runs():
    function = Compiled("train_step")
    assert _queued(function, 200_000, behind=True) == 0  # the first: nothing to compare with
    assert _queued(function, 9_000_000, behind=False) == 0  # it computed by itself
    assert _queued(function, 9_000_000, behind=True) == 8_800_000
    assert _queued(function, 200_000 + MIN_QUEUED_NS // 2, behind=True) == 0


def test_looks_at_one_leaf_of_the_results():
    loss = Array()
    assert _first_leaf(({"loss": loss}, [Array()])) is loss
    assert _first_leaf(([], (), loss)) is loss
    assert _first_leaf(loss) is loss
    assert _first_leaf({}) is None


@pytest.mark.parametrize(
    ("deleted", "ready", "pending"), [(False, False, True), (False, True, False), (True, None, False)]
)
def test_an_array_is_pending_until_it_is_ready_or_deleted(deleted, ready, pending):
    array = Array()
    array.is_deleted, array.is_ready = lambda: deleted, lambda: ready
    assert _is_pending(array) is pending


def test_a_random_key_is_never_pending():
    key = Array()
    key.is_deleted = lambda: False  # jax.random.key() returns an array without is_ready()
    assert not _is_pending(key)


def test_a_sum_of_gradients_is_part_of_the_step_that_computed_them(script):
    params = script.call("init", results=4)
    for _ in range(5):
        total = script.call("gradients_of", *params, results=4)
        for _ in range(3):
            gradients = script.call("gradients_of", *params, results=4)
            total = script.call("add", *total, *gradients, results=4)
        params = script.call("apply", *params, *total, results=4)
    modes = script.modes()
    assert modes.count("TRAIN") == 20
    assert modes.count("EVAL") <= 2  # as long as it may be the first steps of an evaluation


def test_an_average_of_parameters_is_part_of_the_training(script):
    params = script.call("init", results=4)
    average = params
    for step in range(12):
        params = script.call("gradients_of", *params, results=4)
        if step % 3 == 2:
            average = script.call("average", *average, *params, results=4)
    modes = script.modes()
    assert modes.count("TRAIN") == 12
    assert modes.count("EVAL") <= 1


def test_the_batch_is_described_after_all_parameters_of_a_large_model():
    def flatten(arguments):
        return [
            ((place, number, at), leaf) for place, number, leaves in arguments for at, leaf in enumerate(leaves)
        ], None

    def called(length):
        state, batch = [np.zeros(1)] * 500, [np.zeros((2, length)), 0.5]
        return describe(flatten, lambda path: "".join(f"[{one}]" for one in path), [(0, 0, state), (0, 1, batch)])

    assert difference(called(3), called(4)) == "argument 1[0]: float64[2,3] → float64[2,4]"
    assert len(called(3)) < 100
