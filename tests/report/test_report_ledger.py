"""The ledger of a profile: every second of each step in one activity, for any recording."""

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.ledger import Ledger, RankLedger
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.ledger import SeenCode, ledger_of, rows_of_rank, totals_of
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.formats import event_names
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from tests.support.reports import metrics_of, training

NAME = "algo-1-0"
STEP = 0.0102
times = st.floats(0, 0.03)


def of(rows, **more):
    """Return metrics, ledger and sums of a loop."""
    metrics = attrs.evolve(metrics_of(rows), **more)
    return metrics, ledger_of(metrics).ranks[0], totals_of(metrics).ranks[0].seconds


def sampled(line, seconds, *, leaf="", phase="outside", function="main"):
    """Return samples of one line."""
    stack = Sampled(NAME, phase, False, (Place("train.py", 9, function),), leaf, seconds, 50)
    return Samples((stack,), {("train.py", 9): line})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    wait=times, forward=times, backward=times, outside=times, stall=st.floats(0, 1), every=st.integers(2, 30),
    steps=st.integers(15, 80), saves=st.lists(st.tuples(st.floats(0, 3), st.floats(-1, 2)), max_size=8),
    logs=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1)), max_size=8), written=st.floats(0, 3),
)  # fmt: skip
def test_each_second_is_in_one_activity(steps, saves, logs, written, **loop):
    rows = training(steps, **loop)
    rows += [(event_names.SAVE, "torch.save", 1 + at, length, NAME, 0, {"calls": 1}) for at, length in saves]
    rows += [(event_names.LOG, "print", 1 + at, length, NAME, 0, {"calls": 7}) for at, length in logs]
    metrics, ledger, sums = of(rows, samples=sampled("file.write(text)", written))
    rank = metrics.ranks[0]
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.length)
    assert ledger.length == pytest.approx(rows_of_rank(rank).seconds.sum(axis=0), abs=1e-9)
    assert all((row >= 0).all() for row in ledger.seconds.values())
    assert sum(sums.values()) == pytest.approx(rank.loop)


def test_saves_have_their_time_if_the_phases_of_few_steps_are_recorded():
    """A third of it was in other code: between the phases of a step and outside of them were divided one by one."""
    shift, moved = 0.0, []
    for phase, name, start, length, node, step in training(400, forward=0.007):
        if phase.startswith("Step") or step % 8 == 0:
            spent = length * 0.3 if phase == "Forward" else length
            moved.append((phase, name, start + shift, spent, node, step))
        if phase.startswith("Step") and step % 8 == 7:
            moved.append(
                (event_names.SAVE, "torch.save", start + length + shift + 1e-5, 0.06, NAME, step, {"calls": 1})
            )
            shift += 0.0601
    _, _, sums = of(moved)
    assert sums["saving"] == pytest.approx(50 * 0.06, rel=0.03)


def test_the_innermost_wins():
    rows = training(100, outside=0.0502)
    start = 1.0 + 10 * 0.0602 + 0.0102
    rows.append((event_names.CALLBACK, "Saver.on_batch_end", start, 0.04, NAME, 10, {"calls": 1}))
    rows.append((event_names.SAVE, "torch.save", start + 0.01, 0.03, NAME, 10, {"calls": 1}))
    _, ledger, _ = of(rows)
    assert ledger.seconds["saving"].sum() == pytest.approx(0.03)
    assert ledger.seconds["callbacks"].sum() == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("line", "leaf", "name"),
    [
        ("grid.save(path)", "PIL.ImageFile._encode_tile", "saving"),
        ("with open(path, 'wb') as file:", "", "saving"),
        ("journal.write(line)", "", "logging"),
        ("log.info(x)", "logging.Handler.emit", "logging"),
        ("average.update(model)", "", None),
        ("history = model.fit(data); print(history)", "", None),
    ],
)
def test_samples_name_what_no_record_times(line, leaf, name):
    _, ledger, sums = of(training(200, outside=0.0102), samples=sampled(line, 1.5, leaf=leaf))
    found = {"saving", "logging"} & set(sums)
    assert found == ({name} if name else set())
    if name:
        assert ledger.seconds[name].sum() == pytest.approx(200 * 0.0102, rel=0.02)  # all samples of that time are there


def test_lines_that_were_timed_count_once():
    rows = training(200, outside=0.0102)
    place = {"file": "/code/train.py", "line": 9, "function": "main"}
    rows.append((event_names.LOG, "print", 1.5, 1.0, NAME, 10, {"calls": 100, **place}))
    _, _, sums = of(rows, samples=sampled("print(loss)", 1.0))
    assert sums["logging"] == pytest.approx(1.0, rel=0.05)


def test_a_file_that_is_flushed_after_text_was_written_is_a_log():
    rows = training(200, outside=0.0102)
    place = {"file": "/code/train.py", "line": 12, "function": "note"}
    rows += [(event_names.SAVE, "os.fsync", 1.0103 + step * 0.0202, 0.004, NAME, step, {"calls": 1, **place}) for step in range(200)]  # fmt: skip
    metrics, ledger, _ = of(rows, samples=sampled("self.file.write(row)", 0.6, function="Journal.note"))
    assert "saving" not in ledger.seconds
    assert ledger.seconds["logging"].sum() == pytest.approx(200 * 0.0102, rel=0.02)  # samples show nothing else there
    assert decide(Case(metrics, {})).kind is Class.LOGGING


def test_images_that_are_saved_after_an_evaluation_are_found():
    """A generator draws samples every 20 steps: a forward pass without gradients, and 0.3 s to write them."""
    rows, now = [], 1.0
    for step in range(240):
        rows += training(1, at=now, number=step, wait=0)
        now += 0.0092
        if step % 20 == 19:
            rows += training(1, at=now, mode="EVAL", wait=0, backward=0, optimizer=0, number=step // 20)
            now += 0.3
    metrics = attrs.evolve(
        metrics_of(rows), samples=sampled("grid.save(path)", 3.2, leaf="PIL.ImageFile._encode_tile", phase="evaluation")
    )
    verdict = decide(Case(metrics, {}))
    assert verdict.kind is Class.CHECKPOINTING
    assert "saving files, mostly in main()" in verdict.main.headline
    assert (
        verdict.main.gain.speedup.low
        < (240 * 0.0092 + 12 * 0.3) / (240 * 0.0092 + 12 * 0.0032)
        < verdict.main.gain.speedup.high
    )
    without = decide(Case(attrs.evolve(metrics, samples=Samples()), {}))
    assert without.kind is Class.PERIODIC_STALL
    assert "Every 20 steps" in without.main.headline


def test_repairs_never_save_a_second_twice():
    loop = Loop.of(ledger_of(metrics_of(training(100, wait=0.02))))
    every = Saving(loop.now * 2)
    after, share, certain = loop.gain(every)
    assert share.high <= 0.99
    assert certain <= 0.99
    assert after.gain(every)[1].value < 0.011
    waits = Saving(loop.of_activity("waiting for data"), taken=("waiting for data",), strict=True)
    after, share, _ = loop.gain(waits)
    assert share.value == pytest.approx(0.99 * 0.02 / 0.0292, rel=0.01)
    assert after.of_activity("forward") == pytest.approx(loop.of_activity("forward"))
    assert after.gain(waits)[1].value < 0.01


def test_exceptions_are_no_property_of_an_activity():
    loop = Loop.of(ledger_of(metrics_of(training(100, wait=0.02))))
    long = np.zeros(len(loop.index), np.bool_)
    long[10] = True
    stalled = attrs.evolve(loop, left={**loop.left, "waiting for data": np.where(long, 1.0, 0.02)}, long=long)
    assert stalled.usual("waiting for data").max() == pytest.approx(0.02)
    late = attrs.evolve(loop, least={"waiting for data": np.full(len(loop.index), 0.001)})
    assert late.usual("waiting for data").max() == pytest.approx(0.001)


def test_callbacks_that_no_record_times_are_found_in_samples():
    """As those of Lightning: the trainer calls them, and the script's line is below one of their methods."""
    places = (
        Place("train.py", 9, "main"),
        Place("train.py", 30, "Histogram.on_train_batch_end"),
        Place("train.py", 12, "kde"),
    )
    stack = Sampled(NAME, "outside", False, places, "scipy.stats._kde.gaussian_kde.evaluate", 3.0, 60)
    metrics = attrs.evolve(metrics_of(training(300, outside=0.0102)), samples=Samples((stack,)))
    verdict = decide(Case(metrics, {}))
    assert (verdict.kind, verdict.also) == (Class.SLOW_CALLBACK, ())
    assert "The callback Histogram takes" in verdict.main.headline
    assert verdict.main.where[0].line == 12
    timed = (event_names.CALLBACK, "Histogram.on_train_batch_end", 1.5, 0.0001, NAME, 0, {"calls": 1})
    known = attrs.evolve(metrics_of([*training(300, outside=0.0102), timed]), samples=Samples((stack,)))
    assert decide(Case(known, {})).kind is Class.SYNC_BOUND


@pytest.mark.parametrize("waits", [True, False])
def test_a_launch_of_jax_that_waits_is_no_slow_dispatch(waits):
    """A CPU's queue is full: one operation of a line takes as long as a step, or hundreds of them are launched."""
    stacks = [Sampled(NAME, "outside", False, (Place("train.py", 9, "main"),), leaf, seconds, count) for leaf, seconds, count in (
        ("jax._src.dispatch.apply_primitive", 2.9 if waits else 1.2, 60), ("jax._src.core.bind", 0.1 if waits else 1.8, 40),
    )]  # fmt: skip
    metrics = attrs.evolve(
        metrics_of(training(300, outside=0.0102), metadata=({"framework": "jax"},)), samples=Samples(tuple(stacks))
    )
    verdict = decide(Case(metrics, {}))
    assert (verdict.kind is Class.BALANCED) is waits


def test_ranks_that_meet_pay_for_what_one_of_them_saves():
    saving = np.zeros(40)
    saving[::8] = 0.1
    first = RankLedger.of(
        "0", np.arange(40), np.full(40, 0.01) + saving, {"backward": np.full(40, 0.01), "saving": saving}
    )
    other = RankLedger.of("1", np.arange(40), first.length, {"backward": first.length})
    apart, together = (Loop.of(Ledger((first, other)), in_step=meet) for meet in (False, True))
    assert apart.of_activity("saving") == pytest.approx(saving / 2)
    assert together.of_activity("saving") == pytest.approx(saving)
    assert together.now == pytest.approx(apart.now)


def test_what_prepares_a_log_line_is_logging_but_not_the_loop_that_calls_it():
    lines = {
        ("train.py", 9): "journal.write(text)",
        ("train.py", 5): "text = describe(model)",
        ("train.py", 20): "note(model)",
    }
    loop, write, prepare = Place("train.py", 20, "main"), Place("train.py", 9, "note"), Place("train.py", 5, "note")
    stacks = tuple(
        Sampled(NAME, phase, False, places, "", seconds, 20)
        for phase, places, seconds in (
            ("forward", (loop,), 1.0),
            ("outside", (loop, write), 0.3),
            ("outside", (loop, prepare), 0.2),
            ("outside", (loop,), 0.1),
        )
    )
    seen = SeenCode(Samples(stacks, lines), training=frozenset({("train.py", "main")}))
    assert [seen.activity(one) for one in stacks] == ["", "logging", "logging", ""]


def test_what_happens_once_is_not_saved():
    loop = Loop.of(ledger_of(metrics_of(training(100, wait=0.02))))
    waits = Saving(loop.of_activity("waiting for data"), taken=("waiting for data",), strict=True)
    start = attrs.evolve(loop, once=loop.whole / 4).gain(waits)[1]
    for end in ("low", "value", "high"):
        assert getattr(start, end) == pytest.approx(getattr(loop.gain(waits)[1], end) * 0.75)
    along = attrs.evolve(loop, once=loop.whole / 4).gain(attrs.evolve(waits, once=(0.0, 0.0, loop.whole / 8)))[1]
    assert (along.low, along.high) == pytest.approx((start.low, start.high + 1 / 8))


def test_gains_are_wider_if_little_was_seen():
    loop = Loop.of(ledger_of(metrics_of(training(100, wait=0.02))))
    few, many = (loop.gain(Saving(loop.now * 0.4, error=error))[1] for error in (0.2, 0.01))
    assert few.high - few.low > 2 * (many.high - many.low)
    bound = loop.gain(Saving(loop.now * 0.4, error=0.2, bound=float(loop.now.sum()) * 0.42))[1]
    assert (bound.low, bound.value) == (few.low, few.value)
    assert bound.high < few.high - 0.08  # there is no more to be seen


def called(function, phase="optimizer", *, line="trainer.fit(model, data)", seconds=2.0, leaf="numpy.histogram"):
    """Return samples of a phase: what a trainer runs, and a function of the script that it calls in the phase."""
    main, inside = Place("train.py", 9, "main"), Place("train.py", 30, function)
    stacks = (
        Sampled(NAME, phase, False, (main, inside), leaf, seconds, 40),
        Sampled(NAME, phase, False, (main,), "torch.optim.sgd._single_tensor_sgd", 0.1, 3),
        Sampled(NAME, "forward", False, (main, Place("train.py", 50, "Net.training_step")), "torch.nn.linear", 1.0, 20),
    )
    return Samples(stacks, {("train.py", 9): line, ("train.py", 30): "counts = np.histogram(grad)"})


@pytest.mark.parametrize(
    ("function", "line", "kind"),
    [
        ("Net.on_before_optimizer_step", "trainer.fit(model, data)", Class.SLOW_CALLBACK),
        ("measure", "optimizer.step()", Class.SLOW_CALLBACK),  # a hook of the optimizer
        ("closure", "optimizer.step(closure)", Class.SLOW_CALLBACK),
        ("Own.step", "optimizer.step()", Class.OPTIMIZER_BOUND),
        ("Own.step", "trainer.fit(model, data)", Class.OPTIMIZER_BOUND),
        ("main", "fire.Fire(main)", Class.OPTIMIZER_BOUND),  # calls the step itself
    ],
)
def test_functions_that_an_optimizer_calls_are_not_the_optimizers(function, line, kind):
    rows = training(300, optimizer=0.012)
    metrics = attrs.evolve(metrics_of(rows), samples=called(function, line=line))
    verdict = decide(Case(metrics, {}))
    assert (verdict.kind, verdict.also) == (kind, ())
    if kind is Class.SLOW_CALLBACK:
        assert verdict.main.where[0].line == 30


def test_a_step_in_a_closure_is_neither_a_callback_nor_the_optimizer():
    rows = training(300, optimizer=0.012)
    metrics = attrs.evolve(metrics_of(rows), samples=called("Net.training_step"))
    assert decide(Case(metrics, {})).kind is Class.BALANCED


def test_metrics_in_a_closure_are_not_the_optimizers():
    """Lightning calls training_step in optimizer.step(): what it computes after the model belonged to the optimizer."""
    seen = called("Net.training_step", leaf="torchmetrics.metric.Metric.forward")
    after = attrs.evolve(seen.stacks[0], phase="between", seconds=3.0)
    code = SeenCode(attrs.evolve(seen, stacks=(*seen.stacks, after)))
    assert (code.edge(after), code.activity(after)) == ("", "")


def test_what_a_step_of_the_scripts_own_optimizer_calls_is_the_optimizer():
    """A loop over parameters by hand was other code, though the line that called it names it."""
    loop, own = Place("train.py", 20, "main"), Place("train.py", 9, "MyAdam.step")
    stacks = (
        Sampled(NAME, "backward", False, (loop,), "torch.autograd.graph._engine_run_backward", 1.0, 20),
        Sampled(NAME, "outside", False, (loop, own), "", 4.0, 40),
    )
    samples = Samples(stacks, {("train.py", 20): "optimizer.step()", ("train.py", 9): "p -= lr * m / (v.sqrt() + eps)"})
    rows = training(300, optimizer=0, outside=0.012)
    main = decide(Case(attrs.evolve(metrics_of(rows), samples=samples), {})).main
    assert (main.kind, main.confidence, main.where[0].line) == (Class.OPTIMIZER_BOUND, "medium", 9)
    assert "code that is not torch's" in main.next_step


@pytest.mark.parametrize(
    ("source", "updates"),
    [
        ("p -= lr * p.grad", True),
        ("params = [p - lr * g for p, g in zip(params, grads)]", True),
        ("loss, gradients = train_step(x, y)", False),
        ('curves.add(step, f"{v.name}/gradient", norm)', False),
    ],
)
def test_a_line_that_names_gradients_is_no_update_by_itself(source, updates):
    """A table that a script wrote at each step was its optimizer, because the table had a column of gradients."""
    loop = Place("train.py", 20, "main")
    stacks = (Sampled(NAME, "outside", False, (loop,), "", 4.0, 40),)
    code = SeenCode(Samples(stacks, {("train.py", 20): source}), by_hand=True)
    assert code.activity(stacks[0]) == ("optimizer" if updates else "")


@pytest.mark.parametrize(
    ("calls", "samples", "kind"), [(64, 64, Class.HOST_BOUND), (64, 2048, Class.BALANCED), (2, 2, Class.BALANCED)]
)
def test_a_model_that_is_called_for_each_sample_is_named(calls, samples, kind):
    """Gradients of each sample, one after the other, were a healthy model that computed 98 % of the time."""
    metrics = attrs.evolve(metrics_of(training(300)), calls_per_step=calls, samples_per_step=samples)
    main = decide(Case(metrics, {})).main
    assert main.kind is kind
    if kind is Class.HOST_BOUND:
        assert main.headline.startswith("The model is called 64 times a step, with one sample each")
        assert main.confidence == "medium"


def forward_of(leaf, count=40, function="normalized_adjacency"):
    """Return samples of a forward pass: most in one function of the script, the rest in a module."""
    model, inside = Place("train.py", 12, "Net.forward"), Place("train.py", 5, function)
    return Samples(
        (
            Sampled(NAME, "forward", False, (MAIN, model, inside), leaf, count / 10, count),
            Sampled(NAME, "forward", False, (MAIN, model), "torch.nn.modules.linear.Linear.forward", 0.8, 8),
        ),
        {
            ("train.py", 20): "loss = model(x)",
            ("train.py", 12): "h = normalized_adjacency(roads)",
            ("train.py", 5): "a[i, j] = 1",
        },
    )


@pytest.mark.parametrize(
    ("forward", "leaf", "count", "kind"),
    [
        (0.03, "", 40, Class.HOST_BOUND),
        (0.03, "torch.functional.norm", 40, Class.HOST_BOUND),
        (0.03, "torch.nn.modules.linear.Linear.forward", 40, Class.BALANCED),  # a teacher, or a frozen encoder
        (0.006, "", 40, Class.BALANCED),  # no longer than the backward pass
        (0.03, "", 5, Class.BALANCED),  # few samples are chance
    ],
)
def test_what_a_forward_pass_takes_beyond_the_backward_pass_is_no_model(forward, leaf, count, kind):
    """An adjacency matrix built element by element at each step was a healthy model that computed 100 % of the time."""
    metrics = attrs.evolve(metrics_of(training(300, forward=forward)), samples=forward_of(leaf, count))
    main = decide(Case(metrics, {})).main
    assert main.kind is kind
    if kind is Class.HOST_BOUND:
        assert "no gradient flows through it" in main.headline
        assert (main.confidence, main.where[0].line) == ("medium", 5)


@pytest.mark.parametrize(("seconds", "kind"), [(0.05, Class.HOST_BOUND), (0.001, Class.BALANCED)])
def test_what_is_computed_between_the_passes_without_gradients_is_named(seconds, kind):
    """Words sampled one after the other for a reward took four fifths of the steps, and the training was healthy."""
    answer, encode = Place("train.py", 9, "Model.answer"), Place("train.py", 5, "Model.encode")
    samples = Samples(
        (
            Sampled(NAME, "between", False, (MAIN, answer, encode), "torch.nn.modules.linear.Linear.forward", 9.0, 30),
            Sampled(NAME, "backward", False, (MAIN,), "torch.autograd.graph._engine_run_backward", 4.0, 12),
        ),
        {("train.py", 20): "reward = model.answer(x)", ("train.py", 9): "memory = self.encode(x)"},
    )
    rows = [
        (*row[:3], 0.005, *row[4:]) if row[0] == "Forward" else row for row in training(300, forward=0.005 + seconds)
    ]
    main = decide(Case(attrs.evolve(metrics_of(rows), samples=samples), {})).main
    assert main.kind is kind
    if kind is Class.HOST_BOUND:
        assert main.headline.startswith("Model.answer() computes for")
        assert main.where[0].line == 9


@pytest.mark.parametrize(("function", "found"), [("report", True), ("Clip.backward", False), ("Net.forward", False)])
def test_hooks_of_gradients_are_callbacks(function, found):
    rows = training(300, backward=0.02)
    metrics = attrs.evolve(metrics_of(rows), samples=called(function, "backward", line="loss.backward()"))
    ledger = ledger_of(metrics).ranks[0]
    assert ("callbacks" in ledger.seconds) is found
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.length)


def test_an_optimizer_in_hooks_of_parameters_is_no_callback():
    """`register_post_accumulate_grad_hook` with an optimizer a parameter was a slow callback, `update`."""
    update = Place("train.py", 7, "update_in_backward.<locals>.update")
    samples = Samples(
        (
            Sampled(NAME, "backward", False, (MAIN, update), "torch.optim.adam._single_tensor_adam", 6.0, 35),
            Sampled(NAME, "backward", False, (MAIN,), "torch.autograd.graph._engine_run_backward", 3.0, 20),
        ),
        {("train.py", 20): "loss.backward()", ("train.py", 7): "optimizers[p].step()"},
    )
    rows = [row for row in training(300, backward=0.03, optimizer=0.0) if row[0] != "Optimizer"]
    verdict = decide(Case(attrs.evolve(metrics_of(rows), samples=samples), {}))
    assert (verdict.kind, verdict.main.confidence) == (Class.OPTIMIZER_BOUND, "medium")
    assert verdict.main.where[0].line == 7
    assert Class.SLOW_CALLBACK not in {one.kind for one in verdict.also}


def hooked(*places, line="logits = model(x)", called="", others=()):
    """Return samples of a forward pass, outermost place first, with the text of the caller's line and of the next one."""
    stack = Sampled(NAME, "forward", False, places, "torch.nn.modules.module._call_impl", 2.0, 40)
    sources = {(places[0].file, places[0].line): line, (places[1].file, places[1].line): called}
    return Samples((stack, *others), sources)


MAIN, HOOK = Place("train.py", 20, "main"), Place("train.py", 8, "statistics_hook")


def test_the_work_of_a_modules_hook_is_a_callback_and_named_with_its_line():
    """`register_forward_hook` calls it: no line of the script does."""
    metrics = attrs.evolve(metrics_of(training(300, forward=0.0102)), samples=hooked(MAIN, HOOK))
    verdict = decide(Case(metrics, {}))
    assert verdict.kind is Class.SLOW_CALLBACK
    assert "The callback statistics_hook takes" in verdict.main.headline
    assert "in the forward pass" in verdict.main.headline
    assert verdict.main.where[0].line == HOOK.line


@pytest.mark.parametrize(
    ("places", "line", "called"),
    [
        ((MAIN, Place("model.py", 5, "Net.forward")), "logits = model(x)", ""),
        ((MAIN, Place("model.py", 5, "attend")), "logits = attend(x)", ""),
        (
            (MAIN, Place("model.py", 5, "timed.<locals>.wrapper"), Place("model.py", 9, "attend")),
            "logits = attend(x)",
            "",
        ),
        ((MAIN, Place("model.py", 5, "Net.training_step")), "trainer.fit(net, loader)", ""),
        ((MAIN, Place("model.py", 5, "MyTrainer.compute_loss")), "trainer.train()", ""),
        ((MAIN, Place("model.py", 5, "<lambda>")), "logits = model(x)", ""),
        ((MAIN, Place("model.py", 5, "Layer.call"), Place("model.py", 9, "scale")), "logits = model(x)", "scale(x)"),
    ],
)
def test_what_a_script_calls_in_its_forward_pass_is_no_hook(places, line, called):
    samples = hooked(*places, line=line, called=called)
    assert all(SeenCode(samples).module_hook(one) is None for one in samples.stacks)


def test_the_function_that_runs_the_whole_step_is_no_hook():
    """As if a command line's library calls it."""
    train = Place("train.py", 8, "train")
    backward = Sampled(NAME, "backward", False, (MAIN, train), "", 2.0, 40)
    samples = hooked(MAIN, train, line="cli()", others=(backward,))
    assert SeenCode(samples).module_hook(samples.stacks[0]) is None


def stack(*places, node=NAME, phase="outside", leaf="", seconds=1.0, count=50):
    """Return samples of a stack of places, outermost first: line and function."""
    found = tuple(Place("train.py", line, function) for line, function in places)
    return Sampled(node, phase, False, found, leaf, seconds, count)


REDUCE = "torch.distributed.distributed_c10d.all_reduce"
BUFFERS = "torch.nn.parallel.distributed.DistributedDataParallel._distributed_broadcast_coalesced"


def judged(rows, *stacks, sources=()):
    """Return all findings about a loop with samples."""
    samples = Samples(stacks, {("train.py", line): text for line, text in sources})
    verdict = decide(Case(attrs.evolve(metrics_of(rows), samples=samples), {}))
    return [verdict.main, *verdict.also]


def test_collectives_that_a_script_calls_are_communication():
    """They were other code of each step (SYNC_BOUND)."""
    rows, stacks = [], []
    for node in (NAME, "algo-1-1"):
        rows += training(200, outside=0.03, node=node)
        stacks.append(stack((9, "average"), node=node, leaf=REDUCE, seconds=5.5))
    main, *also = judged(rows, *stacks, sources=[(9, "dist.all_reduce(p.grad)")])
    assert (main.kind, also) == (Class.COMMUNICATION_BOUND, [])
    assert (main.where[0].line, main.confidence) == (9, "medium")
    assert "one all_reduce for all gradients" in main.next_step


def test_packing_what_is_exchanged_is_communication():
    rows, stacks = [], []
    for node in (NAME, "algo-1-1"):
        rows += training(200, outside=0.03, node=node)
        stacks.append(stack((9, "gather"), node=node, leaf="numpy._core.multiarray._reconstruct", seconds=5.5))
    main, *_ = judged(rows, *stacks, sources=[(9, "dist.all_gather_object(found, scores)")])
    assert (main.kind, main.where[0].line) == (Class.COMMUNICATION_BOUND, 9)


@pytest.mark.parametrize(("count", "late"), [(3, False), (60, True)])
def test_a_rank_is_late_by_more_than_its_samples_vary(count, late):
    """Outside the phases, only samples distinguish work from waiting for others."""
    rows = [row for node in (NAME, "algo-1-1") for row in training(200, outside=0.03, node=node)]
    stacks = [
        stack((9, "gather"), leaf=REDUCE, seconds=4.0, count=2 * count),
        stack((8, "score"), leaf="", seconds=2.0, count=count),
        stack((9, "gather"), node="algo-1-1", leaf=REDUCE, seconds=1.5, count=count),
        stack((8, "score"), node="algo-1-1", leaf="", seconds=4.5, count=2 * count),
    ]
    found = judged(rows, *stacks)
    assert (Class.STRAGGLER in {one.kind for one in found}) is late, found


def test_a_rank_that_saves_is_late_and_the_one_in_the_forward_pass_waits():
    """The rank that waited for the broadcast of buffers was accused, with high confidence."""
    rows = [*training(200, outside=0.03), *training(200, forward=0.0328, outside=0.0002, node="algo-1-1")]
    stacks = [
        stack((9, "show"), leaf="PIL.ImageFile._encode_tile", seconds=5.8),
        stack((5, "main"), node="algo-1-1", phase="forward", leaf=BUFFERS, seconds=5.8),
        stack((5, "main"), node="algo-1-1", phase="forward", leaf="torch.nn.modules.conv.Conv2d.forward", seconds=0.6),
    ]
    found = [one for one in judged(rows, *stacks) if one.kind is Class.STRAGGLER]
    assert all(one.ranks == (NAME,) for one in found)
    assert "saving files" in found[0].headline
    assert found[0].where[0].line == 9


def test_a_forward_pass_in_a_callback_is_the_callbacks():
    stacks = [
        stack((5, "main"), phase="forward", leaf="torch.nn.modules.linear.Linear.forward", seconds=1.0),
        stack((5, "main"), (9, "Poet.on_step_end"), phase="forward", leaf="torch.nn.modules.linear.Linear.forward", seconds=3.0),
    ]  # fmt: skip
    main = judged(training(400, forward=0.01), *stacks)[0]
    assert (main.kind, main.where[0].line) == (Class.SLOW_CALLBACK, 9)


@pytest.mark.parametrize(
    ("leaf", "more", "name"),
    [
        ("torch.autograd.graph._engine_run_backward", {}, "backward"),
        ("torch.nn.functional.pad", {"forward": 0}, "forward"),
        ("torch.nn.functional.cross_entropy", {}, "other code"),  # a loss, or a metric
    ],
)
def test_phases_that_no_module_runs_are_phases(leaf, more, name):
    _, ledger, _ = of(training(100, outside=0.02, **more), samples=sampled("f(x)", 2.0, leaf=leaf, phase="between"))
    assert ledger.seconds[name].sum() == pytest.approx(97 * 0.02 + 97 * 0.005 * (name == "backward"), rel=0.02)


@pytest.mark.parametrize(
    ("leaf", "name"),
    [("torch._tensor.Tensor.__pow__", "forward"), ("torch._tensor.Tensor.__iter__", "")],
)
def test_a_loop_over_the_elements_of_a_tensor_is_no_loss(leaf, name):
    """The verdict named the line with a tenth of the time, as the line with half of it was that of a loss."""
    model, inside = stack((5, "main"), phase="forward"), stack((5, "main"), (9, "update"), phase="between", leaf=leaf)
    code = SeenCode(Samples((model, inside), {("train.py", 9): "for p, t in zip(a, b):"}))
    assert code.edge(inside) == name


def test_evaluation_is_named_where_it_calls_the_model():
    rows = []
    for first in range(0, 200, 20):
        at = 1.0 + first / 20 * 0.6
        rows += training(20, at=at, number=first)
        rows += training(20, forward=0.015, backward=0, optimizer=0, mode="EVAL", at=at + 0.205, number=first)
    stacks = [
        stack((3, "main"), (21, "forward"), phase="forward"),
        stack((4, "main"), phase="backward"),
        stack((7, "main"), (36, "quality"), (21, "forward"), phase="evaluation", seconds=2.0),
    ]
    found = next(one for one in judged(rows, *stacks) if one.kind is Class.EVALUATION_BOUND)
    assert (found.where[0].line, found.where[0].function) == (36, "quality")


def test_steps_whose_phases_were_not_recorded_are_as_those_of_their_length():
    """Long steps were recorded more often, and all of them had the shares of long ones."""
    rows = training(400, forward=0.009, every=10, stall=0.09)
    kept = [row for row in rows if row[0].startswith("Step") or row[5] % 10 in (0, 1)]
    _, ledger, sums = of([row for row in kept if row[0] != "DataLoaderWait"])
    assert sums["forward"] == pytest.approx(400 * 0.009, rel=0.1)
    assert ledger.seconds["forward"].sum() == pytest.approx(397 * 0.009, rel=0.1)


def test_anomaly_detection_that_was_left_on_is_named():
    stacks = [
        stack((5, "main"), phase="forward", leaf="linecache.checkcache", seconds=1.0),
        stack((5, "main"), phase="forward", leaf="torch.nn.modules.linear.Linear.forward", seconds=1.5),
    ]
    main = judged(training(400, forward=0.02), *stacks)[0]
    assert main.kind is Class.HOST_BOUND
    assert "anomaly detection is on" in main.headline


def test_collections_that_saving_causes_are_saved_with_it():
    rows = training(200, outside=0.02)
    rows += [
        ("GC", "generation 2", 1.0 + step * 0.03 + 0.015, 0.004, NAME, step, {"generation": 2}) for step in range(200)
    ]
    png = {"leaf": "PIL.ImageFile._encode_tile"}
    stacks = [stack((9, "show"), seconds=3.0, **png), stack((9, "show"), phase="gc", seconds=0.8, **png)]
    found = judged(rows, *stacks)
    assert [one.kind for one in found] == [Class.CHECKPOINTING]


def test_recorded_steps_represent_those_around_them():
    """Phases are recorded densely at first: a dataset that keeps what it reads in the first epoch waits in these steps."""
    rows, now = [], 1.0
    for step in range(2_000):
        slow = step < 60
        own = training(1, wait=0.006 if slow else 0.0005, at=now, number=step)
        now = max(start + length for _, _, start, length, _, _ in own) + 0.0002
        rows += [one for one in own if one[0].startswith("Step") or step < 200 or step % 50 == 0]
    truth = (60 * 0.006 + 1_940 * 0.0005) / (now - 1.0)
    metrics, ledger, sums = of(rows)
    rank = metrics.ranks[0]
    assert rank.share("wait") == pytest.approx(truth, rel=0.05)
    assert sums["waiting for data"] / rank.loop == pytest.approx(truth, rel=0.05)
    assert ledger.seconds["waiting for data"].sum() / ledger.length.sum() == pytest.approx(truth, rel=0.1)
    assert rank.share_of_iterations("wait") == pytest.approx(truth, rel=0.1)
    assert (rows_of_rank(rank).seconds.sum(axis=0)[:-1] <= 0.0171).all()
