"""Verdicts on Keras trainings: what their input could do better, and steps whose phases cannot be seen."""

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.computing import launches_of
from sm_profiler.diagnosis.profile.ledger import LOOPS
from sm_profiler.formats import event_names
from sm_profiler.metrics.system_fold import Usage
from sm_profiler.render.flame import part_of
from tests.support.reports import cause_found, metrics_of, training, verdict_of

LINE = {"file": "/opt/ml/code/train.py", "line": 12, "function": "__getitem__"}


def compiled(steps, *, wait, length=0.01):
    """Return a loop whose steps are one compiled function each."""
    return [
        (event_names.COMPILED_STEP, "train_function", *row[2:]) if row[0] == "Forward" else row
        for row in training(steps, wait=wait, forward=length, backward=0, optimizer=0)
    ]


def fed(rows, kind, **args):
    return [(event_names.INPUT, kind, 1.0, 0.0, "algo-1-0", -1, {"kind": kind, "backend": "jax", **args}), *rows]


KERAS = ({"framework": "keras"},)


def test_a_compiled_step_is_no_time_between_phases():
    verdict = verdict_of(compiled(300, wait=0.0002))
    assert verdict.kind is Class.BALANCED


def worked(rows, optimizer, *frames):
    stacks = [{"frames": list(frames), "operation": "mul", "us": 9.5, "updates": True, "source": "tx.update(g)"}]
    args = {"optimizer": optimizer, "stacks": [*stacks, {"frames": [], "us": 2.0}, {"frames": ["x"], "us": "y"}]}
    return [(event_names.COMPILED_WORK, "compiled functions", 1.0, 0.1, "algo-1-0", -1, args), *rows]


@pytest.mark.parametrize(("optimizer", "kind"), [(0.9, Class.OPTIMIZER_BOUND), (0.2, Class.BALANCED)])
def test_an_optimizer_within_a_compiled_function_is_seen_in_its_operations(optimizer, kind):
    """Updates of a large embedding took nine tenths of a step that was called healthy."""
    rows = worked(compiled(300, wait=0.0002), optimizer, ["/job/train.py", 14, "step"])
    main = verdict_of(rows, metadata=KERAS).main
    assert main.kind is kind
    if kind is Class.OPTIMIZER_BOUND:
        assert main.confidence == "medium"
        assert [(place.line, place.share, place.source) for place in main.where] == [(14, 1.0, "tx.update(g)")]
        assert "compiled function already" in main.next_step
        assert "run_eagerly" not in main.next_step


@pytest.mark.parametrize("optimizer", [-3.0, float("nan"), 7.0, "much"])
def test_a_share_that_cannot_be_does_no_harm(optimizer):
    assert verdict_of(worked(compiled(300, wait=0.0002), optimizer), metadata=KERAS).kind in (
        Class.BALANCED, Class.OPTIMIZER_BOUND,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "said", "advised"),
    [
        ({"num_workers": 0}, "one after the other (workers=1)", "use_multiprocessing=True"),
        (
            {"num_workers": 2, "processes": False},
            "2 threads of the PyDataset cannot keep up",
            "use_multiprocessing=True",
        ),
        ({"num_workers": 3, "processes": True}, "3 processes of the PyDataset cannot keep up", "instead of 3"),
        ({"num_workers": "many"}, "one after the other (workers=1)", "max_queue_size"),
    ],
)
def test_advises_workers_for_a_slow_dataset_and_names_its_line(args, said, advised):
    verdict = verdict_of(fed(compiled(300, wait=0.02), "PyDataset", **args, **LINE))
    assert verdict.kind is Class.INPUT_BOUND
    assert said in verdict.main.headline
    assert advised in verdict.main.next_step
    assert [(place.line, place.function) for place in verdict.main.where] == [(12, "__getitem__")]
    assert (
        part_of(verdict.main, verdict.main.where[0]) == "defined here"
    )  # which of its lines takes the time is unknown


def test_advises_a_dataset_instead_of_a_generator():
    verdict = verdict_of(fed(compiled(300, wait=0.02), "generator"))
    assert verdict.kind is Class.INPUT_BOUND
    assert "a generator prepares batches" in verdict.main.headline
    assert "PyDataset" in verdict.main.next_step


def test_other_inputs_keep_their_usual_advice():
    verdict = verdict_of(fed(compiled(300, wait=0.02), "arrays"))
    assert verdict.kind is Class.INPUT_BOUND
    assert "PyDataset" not in verdict.main.next_step


@pytest.mark.parametrize("framework", ["keras", "tensorflow", "jax"])
def test_no_advice_names_another_framework(framework):
    metadata = ({"framework": framework},)
    slow = compiled(100, wait=0) + training(300, at=2.5, forward=0.008, backward=0, optimizer=0, mode="EVAL")
    saved = [(event_names.SAVE, "save", 1.05 + 0.1 * one, 0.05, "algo-1-0", 10 * one, {}) for one in range(20)]
    rows = (slow, compiled(300, wait=0, length=0.0001), [*compiled(300, wait=0, length=0.01), *saved])
    verdicts = [verdict_of(one, metadata=metadata) for one in rows]
    kinds = [one.kind for one in verdicts]
    assert kinds == [Class.EVALUATION_BOUND, Class.HOST_BOUND, Class.CHECKPOINTING]
    assert all("torch" not in one.main.next_step for one in verdicts)


def test_advises_options_of_keras():
    tiny = verdict_of(compiled(300, wait=0, length=0.0002), metadata=KERAS)
    assert "steps_per_execution" in tiny.main.next_step


@pytest.mark.parametrize(("own", "confidence"), [(3.6, "high"), (0.8, "medium")])
def test_is_not_sure_of_slow_loading_threads_while_others_hold_the_cores(own, confidence):
    rows = fed(compiled(600, wait=0.01), "arrays")
    samples = [(at, 97.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for at in range(1, 14) for core in range(4)]
    metrics = metrics_of(rows, samples)
    at = np.arange(14.0)
    usage = {"algo-1-0": Usage(at + metrics.ranks[0].start - 1, at * own, np.zeros(14))}
    found = cause_found("INPUT_BOUND", Case(attrs.evolve(metrics, usage=usage), {}))
    assert (found.kind, found.confidence) == (Class.INPUT_BOUND, confidence)
    second = metrics_of([*rows, *((*row[:4], "algo-1-1", *row[5:]) for row in rows)], samples)
    found = cause_found("INPUT_BOUND", Case(attrs.evolve(second, usage=usage), {}))
    assert found.confidence == "high"  # what the other rank uses is not known


def test_others_hold_only_cores_that_the_training_may_use():
    """On three of the four cores, the others may run without being in the way."""
    rows = [*fed(compiled(600, wait=0.01), "arrays"), (event_names.THREADS, "threads", 2.0, 1.0, "algo-1-0", -1, {"threads": 9, "cores": 1.0})]  # fmt: skip
    samples = [(at, 97.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for at in range(1, 14) for core in range(4)]
    metrics = metrics_of(rows, samples)
    at = np.arange(14.0)
    usage = {"algo-1-0": Usage(at + metrics.ranks[0].start - 1, at * 0.8, np.zeros(14))}
    assert cause_found("INPUT_BOUND", Case(attrs.evolve(metrics, usage=usage), {})).confidence == "high"


def operators(rows, **args):
    return [(event_names.OPERATORS, "operators", 1.0, 0.0, "algo-1-0", 20, args), *rows]


def test_an_eager_loop_is_advised_to_use_tf_function():
    rows = operators(
        training(300, wait=0, forward=0.002, backward=0.002, optimizer=0.006),
        operators=300, fixed_us=20.0, step_us=10_000, eager=True,
    )  # fmt: skip
    verdict = verdict_of(rows, metadata=({"framework": "tensorflow"},))
    assert verdict.kind is Class.HOST_BOUND
    assert "without tf.function" in verdict.main.headline
    assert verdict.main.next_step.startswith("Decorate the function of a step with @tf.function")
    assert Class.OPTIMIZER_BOUND not in {one.kind for one in verdict.also}


def test_counted_operators_replace_the_fixed_limit_of_small_steps():
    for fixed_us, kind in ((0.1, Class.BALANCED), (2.0, Class.HOST_BOUND)):
        rows = operators(compiled(3000, wait=0, length=0.0007), operators=250, fixed_us=fixed_us, step_us=800)
        assert verdict_of(rows, metadata=KERAS).kind is kind


def test_a_counted_step_in_which_the_script_did_more_is_no_usual_one():
    rows = compiled(3000, wait=0, length=0.005)
    rows = operators(rows, operators=70, fixed_us=1.2, step_us=5_200)
    rows = operators(rows, operators=370, fixed_us=11.0, step_us=5_200)
    verdict = verdict_of(rows, metadata=KERAS)
    assert Class.HOST_BOUND not in {verdict.kind, *(one.kind for one in verdict.also)}
    assert launches_of(Case(metrics_of(rows), {})).operators == 70


def test_launches_take_a_smaller_share_of_a_loop_with_long_steps():
    rows = compiled(3000, wait=0, length=0.0007)
    found = {}
    for name, more in (("usual", []), ("long", training(10, at=6.0, number=3000, wait=0, forward=0.5))):
        rows = operators(rows + more, operators=250, fixed_us=2.0, step_us=800)
        finding = cause_found("HOST_BOUND", Case(metrics_of(rows), {}))
        found[name] = finding.share_of_time
        assert finding.headline.startswith("About 62 % of a step of 800 µs")
    assert found["usual"] == pytest.approx(0.625, rel=0.05)
    assert found["long"] < 0.4 * found["usual"]


def test_a_line_that_prints_what_a_whole_loop_returns_writes_nothing():
    assert LOOPS.search("print(model.fit(x, y).history)")
    assert LOOPS.search("print(model.predict_proba(x))") is None


def test_the_input_is_the_one_that_most_training_steps_read():
    short, long = compiled(1, wait=0), training(300, at=3.0, number=1, wait=0.02)
    first, second, evaluated = (
        (event_names.INPUT, kind, at, 0.0, "algo-1-0", -1, {"kind": kind, **more})
        for kind, at, more in (("tf.data", 0.9, {}), ("PyDataset", 2.0, LINE), ("generator", 12.0, {}))
    )
    evaluation = training(5, at=12.1, mode="EVAL")
    verdict = verdict_of([first, *short, second, *long, evaluated, *evaluation])
    assert verdict.kind is Class.INPUT_BOUND
    assert [(place.line, place.function) for place in verdict.main.where] == [(12, "__getitem__")]
