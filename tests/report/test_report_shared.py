"""Verdicts on machines that others use, and causes that only the sampled lines show; from made-up rows."""

import json
import random

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.inputs import workers_of
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.metrics.stalls import find_period
from sm_profiler.metrics.step_fold import LoaderSettings
from sm_profiler.metrics.system_fold import Usage
from sm_profiler.render.page import render_html
from sm_profiler.report import Class, terminal_summary
from sm_profiler.report.build import report_of
from sm_profiler.report.report_json import to_json
from tests.support.reports import START_S, cause_found, metrics_of, sampled, training, verdict_of

NAME = "algo-1-0"
SOURCES = {
    ("train.py", 20): "for x, y in batches(files):",
    ("train.py", 21): "    loss = model(x)",
    ("train.py", 8): "        rows.append(parse(line))",
    ("train.py", 30): "    parameter -= 0.1 * parameter.grad",
    ("train.py", 31): "    histogram(parameter)",
}


def stack(phase, seconds, *places, long=False, leaf=""):
    """Return samples with lines as `line` or `(line, function)`, and the innermost function of a library."""
    found = tuple(Place("train.py", *(one if isinstance(one, tuple) else (one, "<module>"))) for one in places)
    return Sampled(NAME, phase, long, found, leaf, seconds, max(round(seconds * 15), 1))


def judged(rows, *stacks, waiting=0.0, cores=1.0, **changes):
    """Return the context of a loop with samples, in which the main thread waits for a core for a part of the time."""
    metrics = metrics_of(rows)
    (rank,) = metrics.ranks
    ticks = np.linspace(rank.start, rank.end, 30)
    usage = Usage(ticks, cores * ticks, np.zeros(30), waiting * (ticks - ticks[0]))
    samples = Samples(tuple(stacks), dict(SOURCES))
    return Case(attrs.evolve(metrics, samples=samples, usage={NAME: usage}, **changes), {})


def by_hand(outside=0.005):
    return training(400, wait=0, optimizer=0, outside=outside)


@pytest.mark.parametrize(
    ("update", "rest", "found"),
    [(0.15, 1.85, True), (1.85, 0.15, False), (0.0, 2.0, False)],
    ids=["little", "most", "unknown"],
)
def test_lines_that_update_parameters_are_not_the_rest_of_a_loop_by_hand(update, rest, found):
    stacks = [stack("outside", seconds, line) for seconds, line in ((update, 30), (rest, 31)) if seconds]
    verdict = decide(judged(by_hand(), *stacks))
    assert (verdict.kind is Class.SYNC_BOUND) is found
    if found:
        assert verdict.main.share_of_time == pytest.approx(0.005 / 0.013 * rest / (rest + update), abs=0.02)


def test_batches_of_a_generator_are_input():
    making = stack("outside", 6.0, 20, (8, "batches"))
    rows = training(400, wait=0, outside=0.008)
    verdict = decide(judged(rows, making, stack("forward", 2.0, 21)))
    assert verdict.kind is Class.INPUT_BOUND
    assert "batches() makes in the training process" in verdict.main.headline
    assert "turn batches() into a Dataset" in verdict.main.next_step
    assert (verdict.main.where[0].line, verdict.main.where[0].function) == (8, "batches")
    assert verdict.also == ()
    one_core = (event_names.THREADS, "threads", 2.0, 1.0, NAME, -1, {"threads": 9, "cores": 1.0})
    assert (
        "worker processes would share them"
        in decide(judged([*rows, one_core], making, stack("forward", 2.0, 21))).main.next_step
    )
    beside = stack("outside", 6.0, 31, (8, "metrics"))
    assert decide(judged(rows, beside, stack("forward", 2.0, 21))).kind is Class.SYNC_BOUND


@pytest.mark.parametrize(("of_function", "of_loop", "found"), [(2.0, 0.1, True), (0.3, 1.8, False)])
def test_a_function_of_an_otherwise_healthy_loop_is_named(of_function, of_loop, found):
    """A loop may spend as much on its own Python, which cannot be left out; what it calls can be called less often."""
    learning = stack("backward", 3.0, 21)
    seen = stack("outside", of_function, 21, (8, "histograms")), stack("outside", of_loop, 21), learning
    verdict = decide(judged(training(400, outside=0.0017), *seen))
    assert (verdict.kind is Class.SYNC_BOUND) is found
    if found:
        assert "histograms() takes 13 % of each training step" in verdict.main.headline
        assert verdict.main.where[0].function == "histograms"


@pytest.mark.parametrize(("phase", "said"), [("between", "no worker can do it ahead"), ("outside", "loader workers")])
def test_what_follows_the_models_pass_is_nothing_for_loader_workers(phase, said):
    """An environment acts on what the model put out."""
    rows = training(400, wait=0, outside=0.008)
    main = decide(judged(rows, stack(phase, 3.0, 31, (8, "act")), stack("forward", 1.2, 21))).main
    assert main.kind is Class.SYNC_BOUND
    assert said in main.next_step


def test_the_order_within_short_steps_is_not_taken_for_known():
    """A batch made before the forward pass in steps of 2 ms was reported as following it, so that no worker could make it ahead."""
    rows = training(1500, wait=0, outside=0.002, forward=3e-4, backward=3e-4, optimizer=1e-4)
    main = decide(judged(rows, stack("between", 3.0, 31, (8, "read_batch")), stack("forward", 0.5, 21))).main
    assert main.kind is Class.SYNC_BOUND
    assert "no worker" not in main.next_step
    assert "does not need an output of the model in the same step, loader workers can do ahead" in main.next_step


def test_batches_of_a_generator_are_input_though_no_sample_hit_a_phase():
    """The loop of a short job whose phases take a fiftieth of a step was not known, and its data loading other code."""
    at = (event_names.LOOP, "<module>", 1.0, 0.0, NAME, 1, {"frames": [["train.py", 20, "<module>"]]})
    rows = [*training(200, wait=0, forward=1e-4, backward=1e-4, optimizer=1e-4, outside=0.012), at]
    making = attrs.evolve(stack("outside", 2.4, 20, (8, "batches")), count=4)
    main = decide(judged(rows, making)).main
    assert main.kind is Class.INPUT_BOUND
    assert main.where[0].function == "batches"
    assert decide(judged(rows[:-1], making)).main.kind is Class.SYNC_BOUND


@pytest.mark.parametrize("phase", ["compiled", "between"])
def test_batches_of_a_generator_are_input_of_a_compiled_step_too(phase):
    making, call = stack("outside", 6.0, 20, (8, "batches")), stack(phase, 0.2, 21)
    rows = training(400, wait=0, outside=0.008)
    main = decide(judged(rows, making, call, metadata=({"framework": "jax"},))).main
    assert main.kind is Class.INPUT_BOUND
    assert "batches() makes in the training process" in main.headline
    assert "grain" in main.next_step
    assert "Dataset" in main.next_step
    assert decide(judged(rows, making, stack("start", 0.2, 21))).kind is Class.SYNC_BOUND


@pytest.mark.parametrize(("waiting", "wait", "found"), [(0.0, 0.0025, True), (0.5, 0.0025, False), (0.5, 0.008, True)])
def test_a_ready_batch_that_waits_for_a_core_is_no_slow_input(waiting, wait, found):
    verdict = decide(judged(training(400, wait=wait), waiting=waiting))
    assert (verdict.kind is Class.INPUT_BOUND) is found


@pytest.mark.parametrize(("outside", "found"), [(0.0009, True), (0.0004, False)])
def test_batches_of_a_generator_are_input_if_they_take_longer_than_taking_them_from_a_worker(outside, found):
    making, call = stack("outside", 6.0, 20, (8, "batches")), stack("forward", 6.0, 21)
    rows = training(400, wait=0, forward=0.0003, backward=0.0003, optimizer=0.0002, outside=outside)
    verdict = decide(judged(rows, making, call))
    assert Class.SYNC_BOUND not in {one.kind for one in (verdict.main, *verdict.also)}
    assert (Class.INPUT_BOUND in {one.kind for one in (verdict.main, *verdict.also)}) is found


@pytest.mark.parametrize(
    ("step", "line", "leaf", "kind"),
    [
        (0.004, 40, "Trainer.fit", Class.HOST_BOUND),
        (0.004, 41, "", Class.SYNC_BOUND),
        (0.004, 40, "", Class.SYNC_BOUND),
        (0.04, 40, "Trainer.fit", Class.SYNC_BOUND),
    ],
    ids=["the trainer's own", "the script's", "a script's step on one line", "of long steps"],
)
def test_what_a_trainer_does_beside_small_steps_is_their_fixed_cost(step, line, leaf, kind):
    counted = event_names.OPERATORS, "operators", 1.0, 0.0, NAME, 20, {"operators": 60, "fixed_us": 3.0}
    parts = {"forward": 0.3, "backward": 0.2, "optimizer": 0.1, "outside": 0.4}
    rows = [*training(600, wait=0, **{name: part * step for name, part in parts.items()}), counted]
    inside = [stack(phase, seconds, 40) for phase, seconds in (("forward", 3.0), ("backward", 2.0))]
    context = judged(rows, *inside, stack("outside", 4.0, line, leaf=leaf))
    verdict = decide(context)
    assert verdict.kind is kind
    if kind is Class.HOST_BOUND:
        assert "the trainer's own code" in verdict.main.headline


@pytest.mark.parametrize(("outside", "found"), [(0.008, Class.INPUT_BOUND), (0.0012, Class.BALANCED)])
def test_batches_of_an_iterator_that_a_library_calls_are_input(outside, found):
    """The script's line calls trainer.fit(), whose loop is no code of the script."""
    making = stack("outside", 6.0, (40, "main"), (8, "Recordings.__iter__"))
    phases = [stack(phase, 2.0, (40, "main"), (21, "Net.training_step")) for phase in ("forward", "backward")]
    verdict = decide(judged(training(400, wait=0, outside=outside), making, *phases))
    assert (verdict.kind, verdict.also) == (found, ())


def test_a_loop_outside_the_training_loop_is_no_iterator():
    nested = stack("outside", 6.0, (20, "report"), (8, "rows"))
    verdict = decide(judged(training(400, wait=0, outside=0.008), nested, stack("forward", 2.0, 21)))
    assert verdict.kind is Class.SYNC_BOUND


@pytest.mark.parametrize(("waiting", "warned"), [(0.1, False), (0.3, True), (0.86, True)])
def test_every_finding_warns_that_others_stretched_its_times(waiting, warned):
    """Only a healthy verdict did: a slow input showed seven times its milliseconds without a word."""
    context = judged(training(400, wait=0.05), waiting=waiting)
    report = report_of(context.metrics, decide(context), {})
    assert report.verdict.kind is Class.INPUT_BOUND
    text = f"waiting for a CPU core {100 * waiting:.0f} % of the loop"
    assert (text in (report.load_alarm or "")) is warned
    assert (text in " ".join(terminal_summary(report, width=100).split())) is warned
    assert (text in render_html(report)) is warned
    assert json.loads(to_json(report))["verdict"]["shared_wait"] == pytest.approx(waiting, abs=0.01)


def test_a_thread_that_waits_for_others_of_its_own_process_waits_for_no_other_program():
    """On one core of several: the others were busy with something else, and the process had its core for 85 % of the time."""
    rows = training(400)
    rows.append((event_names.THREADS, "threads", 2.0, 1.0, NAME, -1, {"threads": 9, "cores": 1.0}))
    assert judged(rows, waiting=0.39, cores=0.85).shared_wait == pytest.approx(0.15, abs=0.01)
    assert judged(training(400), waiting=0.39, cores=0.85).shared_wait == pytest.approx(0.39, abs=0.01)


@pytest.mark.parametrize(("waiting", "confidence"), [(0.0, "medium"), (0.1, "medium"), (0.3, "low"), (0.7, "low")])
def test_health_on_a_machine_that_others_use_is_a_guess(waiting, confidence):
    verdict = decide(judged(training(400), waiting=waiting))
    assert (verdict.kind, verdict.main.confidence) == (Class.BALANCED, confidence)
    assert (verdict.main.label == "Machine shared with other processes") is (waiting >= limits.NOTICEABLE)


@pytest.mark.parametrize(("busy", "blamed"), [(90, True), (55, False)], ids=["others", "its own threads"])
def test_only_other_programs_that_run_can_keep_a_core_busy(busy, blamed):
    rows = training(400)
    cores = [(at, busy, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for at in range(1, 6) for core in (0, 1)]
    verdict = decide(judged(rows, waiting=0.3, cores=1.1, system=metrics_of(rows, cores).system))
    assert ("Other processes use the machine" in verdict.main.headline) is blamed
    assert verdict.main.confidence == ("low" if blamed else "medium")


@pytest.mark.parametrize(
    ("wait", "waiting", "confidence"),
    [(0.006, 0.0, "high"), (0.006, 0.7, "low"), (0.06, 0.7, "high")],
)
def test_other_programs_may_move_a_share_across_its_threshold_but_not_far(wait, waiting, confidence):
    main = decide(judged(training(400, wait=wait, forward=0.02), waiting=waiting)).main
    assert (main.kind, main.confidence) == (Class.INPUT_BOUND, confidence)


def test_waits_for_a_core_in_any_part_do_not_hide_a_cause():
    """A thread without a core waits in one part of a step or another, three times as long as the step computes."""
    lengths = {"wait": 0.0002, "forward": 0.001, "backward": 0.001, "optimizer": 0.0003, "outside": 0.0015}
    rows, now, chance = [], 1.0, random.Random(0)
    for step in range(400):
        part = chance.choice(list(lengths))
        one = training(1, **{**lengths, part: lengths[part] + 0.012}, at=now, number=step)
        rows += one
        now = one[-1][2] + one[-1][3] + lengths["outside"] + (0.012 if part == "outside" else 0.0)
    assert decide(judged(rows, waiting=0.7)).kind is Class.SYNC_BOUND


def test_long_steps_that_the_machine_may_have_caused_are_a_guess():
    rng = np.random.default_rng(2)
    chosen, rows, now = {int(one) for one in rng.choice(np.arange(10, 400), 12, replace=False)}, [], 1.0
    for step in range(400):
        one = training(1, forward=0.2 if step in chosen else 0.003, at=now, number=step)
        rows, now = rows + one, one[-1][2] + one[-1][3] + 0.0002
    assert cause_found("STEP_OUTLIERS", judged(rows)).confidence == "high"
    share = cause_found("STEP_OUTLIERS", judged(rows)).share_of_time
    assert 0.35 < share < 0.7  # waits of half of that may be of those that the main thread does not see
    assert cause_found("STEP_OUTLIERS", judged(rows, waiting=0.35)).confidence == "low"
    assert cause_found("STEP_OUTLIERS", judged(rows, waiting=0.1)).confidence != "low"


def test_long_waits_are_not_listed_a_second_time_as_waiting():
    rng = np.random.default_rng(4)
    chosen, rows, now = {int(one) for one in rng.choice(np.arange(10, 400), 12, replace=False)}, [], 1.0
    for step in range(400):
        one = training(1, wait=0.3 if step in chosen else 0.002, at=now, number=step)
        rows, now = rows + one, one[-1][2] + one[-1][3] + 0.0002
    verdict = verdict_of(rows)
    assert (verdict.kind, verdict.also) == (Class.STEP_OUTLIERS, ())


def test_a_period_is_found_if_noise_hides_some_of_its_steps():
    longer = np.arange(7, 300, 7)
    long = longer[::2]  # the noise makes the limit too high for the others
    assert find_period(long, np.ones(len(long)), 299)[0] != 7
    assert find_period(long, np.ones(len(long)), 299, longer=longer)[0] in (7, 14)
    irregular = np.delete(longer, [3, 4, 9, 14, 15, 16])
    chosen = irregular[[0, 1, 2, 5, 8, 9, 13, 20]]
    assert find_period(chosen, np.ones(8), 299)[0] is None
    assert find_period(chosen, np.ones(8), 299, longer=irregular) == (7, True)


def used(slope):
    return [(1 + second, 25.0 + slope * second, "algo-1", "memory", "MemoryUsedPercent", "") for second in range(20)]


@pytest.mark.parametrize(
    ("own", "workers", "found"), [(0.0, 0, False), (0.9, 0, True), (0.0, 2, True), (None, 0, True)]
)
def test_memory_that_other_programs_take_is_not_the_jobs(own, workers, found):
    seconds = np.arange(20) + START_S + 1.0
    memory = None if own is None else {NAME: (seconds, 1e9 + own * 0.01 * 16e9 * np.arange(20))}
    metrics = metrics_of(training(2000), used(1.0), memory=memory, metadata=({"memory_total": 16e9},))
    verdict = decide(Case(attrs.evolve(metrics, loader=LoaderSettings(workers, 0)), {}))
    assert (Class.MEMORY_GROWTH in {verdict.kind, *(one.kind for one in verdict.also)}) is found


@pytest.mark.parametrize(("cores", "waiting", "idle"), [(0.2, 0.0, True), (1.0, 0.0, False), (0.3, 0.7, False)])
def test_other_programs_do_not_count_as_the_loading_of_this_one(cores, waiting, idle):
    busy = [(1 + second, 99.0, "algo-1", "cpu", "cpu0", "CPUUtilization") for second in range(10)]
    rows = training(300, wait=0.03)
    system = metrics_of(rows, busy).system
    context = judged(rows, cores=cores, waiting=waiting, loader=LoaderSettings(0, 0), system=system)
    assert workers_of(context).idle is idle


def test_loaders_that_no_window_saw_are_known_from_the_process():
    seen = metrics_of(training(100), metadata=({"num_workers": 2}, {"num_workers": None}))
    assert seen.loader.num_workers == 2
    assert metrics_of(training(100), metadata=({"num_workers": "2"},)).loader.num_workers == -1


def test_a_log_that_is_flushed_to_disk_is_no_checkpoint():
    rows = training(400, outside=0.0075)
    ends = [row[2] + row[3] for row in rows if row[0].startswith("Step")]
    args = {"calls": 1, "file": "/code/train.py", "line": 9, "function": "note"}
    saves = [(event_names.SAVE, "os.fsync", end + 0.001, 0.006, NAME, step, args) for step, end in enumerate(ends)]
    context = judged([*rows, *saves], stack("outside", 6.0, 21, (9, "note")))
    assert decide(context).kind is Class.CHECKPOINTING
    samples = attrs.evolve(context.metrics.samples, sources={("train.py", 9): "log.write(json.dumps(row))"})
    verdict = decide(Case(attrs.evolve(context.metrics, samples=samples), {}))
    assert (verdict.kind, verdict.also) == (Class.LOGGING, ())
    assert "mostly in note()" in verdict.main.headline


def test_the_advice_starts_with_the_function_that_takes_the_time():
    rows = training(400, outside=0.009)
    known = decide(judged(rows, stack("outside", 6.0, 21, (9, "augment")), stack("outside", 1.0, 31))).main
    assert known.next_step.startswith("Look at augment() (train.py:9) first. ")
    module = decide(judged(rows, stack("outside", 6.0, 31))).main
    assert module.next_step.startswith("Look at train.py:31 first. ")
    lines = (stack("outside", 3.0, 31), stack("outside", 3.0, 30), stack("outside", 4.0, 21, (9, "augment")))
    assert decide(judged(rows, *lines)).main.next_step.startswith("Look at augment() (train.py:9) first. ")
    assert decide(judged(rows)).main.next_step.startswith("Check what runs")


def test_the_next_step_follows_the_gain_and_no_line_is_in_a_module():
    rows = training(400, outside=0.009)
    context = judged(rows, stack("outside", 6.0, 31))
    report = report_of(context.metrics, decide(context), {}, source="/data")
    lines = terminal_summary(report, width=100).splitlines()
    gain = next(number for number, line in enumerate(lines) if "times as fast" in line)
    assert lines[gain - 2] == "  train.py:31 \N{EM DASH} 100 % of the lost time, in 90 samples"
    assert lines[gain + 1].startswith("  Next: Look at train.py:31 first.")
    page = render_html(report)
    assert page.index("times as fast") < page.index("Next step") < page.index("Evidence")
    assert "in <code></code>" not in page


def busy_machine(metrics, *, own, children, waiting, percent=100.0):
    """Return metrics of a job with loader workers on a machine of two cores, of which it may use one."""
    (rank,) = metrics.ranks
    ticks = np.linspace(rank.start, rank.end, 30)
    since = ticks - ticks[0]
    usage = Usage(ticks, own * since, np.zeros(30), waiting * since, children * since)
    rows = [
        (1 + tick / 2, percent, "algo-1", "cpu", f"cpu{core}", "CPUUtilization")
        for tick in range(60)
        for core in (0, 1)
    ]
    machine = metrics_of([], rows)
    return attrs.evolve(metrics, usage={NAME: usage}, system=machine.system)


@pytest.mark.parametrize(("children", "others"), [(0.8, 0.0), (0.0, 0.6)], ids=["workers", "other programs"])
def test_workers_of_the_loader_are_no_other_programs(children, others):
    threads = [(event_names.THREADS, "threads", 1.0, 20.0, NAME, -1, {"threads": 4, "library_threads": 1, "cores": 1.0 if children else 2.0,
               "waited_ns": 0, "switches": 0})]  # fmt: skip
    case = Case(
        busy_machine(metrics_of(training(600, wait=0.02) + threads), own=0.2, children=children, waiting=0.6), {}
    )
    assert case.core_wait == pytest.approx(0.6)
    assert case.shared_wait == pytest.approx(others, abs=0.01)


@pytest.mark.parametrize(("own", "disk"), [(0.3, True), (0.97, False)], ids=["waits", "computes"])
def test_a_loader_that_computes_does_not_wait_for_the_disk(own, disk):
    """The machine's cores wait for a disk that other programs read from, too."""
    metrics = metrics_of(training(600, wait=0.04))
    (rank,) = metrics.ranks
    ticks = np.linspace(rank.start, rank.end, 30)
    waits = [(1 + tick / 2, 40.0, "algo-1", "cpu", "cpu0", "I/OWaitPercentage") for tick in range(60)]
    usage = {NAME: Usage(ticks, own * ticks, np.zeros(30))}
    system = metrics_of([], waits).system
    found = cause_found(
        "INPUT_BOUND", Case(attrs.evolve(metrics, usage=usage, system=system, loader=LoaderSettings(0, 0)), {})
    )
    assert ("wait for the disk" in found.headline) is disk


def test_waits_for_a_core_are_no_more_than_sleeps_leave():
    rows = [*training(200, outside=0.0102), sampled(("outside", False, 2.0, 7))]
    metrics = metrics_of(rows)
    (rank,) = metrics.ranks
    seconds = rank.start + np.arange(0.0, 4.0, 0.5)
    usage = {"algo-1-0": Usage(seconds, 0.3 * (seconds - seconds[0]), np.zeros(8), 0.8 * (seconds - seconds[0]))}
    awake, slept = (
        attrs.evolve(metrics, usage=usage, samples=attrs.evolve(metrics.samples, sources={("train.py", 7): text}))
        for text in ("work()", "time.sleep(0.01)")
    )
    assert Case(awake, {}).core_wait == pytest.approx(0.8)
    assert Case(slept, {}).core_wait == pytest.approx(1 - 2.0 / rank.loop)


@pytest.mark.parametrize(
    ("trains", "loader"), [("trainer.train()", "TrainingArguments(dataloader_"), ("loss.backward()", "DataLoader(…, ")]
)
def test_a_trainer_that_makes_its_loader_is_advised_its_own_setting(trains, loader):
    rows = training(200, wait=0.05)
    rows += [
        sampled(
            ("backward", False, 2.0, 9, "train.py", "main", "torch.autograd.graph"),
            ("forward", False, 2.0, 9, "train.py", "main", "transformers.models.bert"),
        )
    ]
    metrics = metrics_of(rows)
    samples = attrs.evolve(metrics.samples, sources={("train.py", 9): trains})
    found = cause_found("INPUT_BOUND", Case(attrs.evolve(metrics, samples=samples, loader=LoaderSettings(0, 0)), {}))
    assert loader + "num_workers=" in found.next_step


@pytest.mark.parametrize(
    ("leaf", "trains", "setting"),
    [
        ("transformers.models.bert", "trainer.train()", "eval_steps of TrainingArguments"),
        ("lightning.pytorch.loops", "trainer.fit(model)", "val_check_interval"),
        ("transformers.models.bert", "loss.backward()", "torch.inference_mode()"),
    ],
)
def test_a_trainer_that_evaluates_is_advised_its_own_settings(leaf, trains, setting):
    """A user of a Trainer, whose script has one line, was advised to use torch.inference_mode()."""
    rows = [
        *training(50),
        *training(200, mode="EVAL", backward=0, optimizer=0, at=2.0),
        *training(50, at=4.0, number=50),
    ]
    rows.append(
        sampled(
            ("backward", False, 2.0, 9, "train.py", "main", "torch.autograd.graph"),
            ("forward", False, 2.0, 9, "train.py", "main", leaf),
        )
    )
    metrics = metrics_of(rows)
    samples = attrs.evolve(metrics.samples, sources={("train.py", 9): trains})
    found = cause_found("EVALUATION_BOUND", Case(attrs.evolve(metrics, samples=samples), {}))
    assert setting in found.next_step
