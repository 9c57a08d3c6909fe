"""The report of a training on a machine without a GPU: names, colours and sections that concern such a machine."""

import json
import re

import attrs
import numpy as np
import pytest
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Location
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.diagnosis.words import ADVICE, FRAGMENTS
from sm_profiler.formats.event_names import CALLBACK, COMPILE, COMPILED_STEP
from sm_profiler.formatting import unbroken
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.render.page import render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.render.words import readable_processes
from sm_profiler.report.report_json import to_json
from tests.support.reports import metrics_of, report_from, sampled, training
from tests.support.stored import assert_as_stored, words_of

WITHOUT_GPU = {
    "RuleTriggered": 0,
    "Datapoints": 0,
    "RuleParameters": "",
    "Details": {"not_evaluated": "no GPU metrics"},
}


def laptop(rank=None, pid=3895, rules=None, **times):
    name = f"algo-1-{pid if rank is None else rank}"
    metadata = ({"node": "algo-1", "rank": rank, "pid": pid},)
    return report_from(training(200, node=name, **times), rules=rules, metadata=metadata)


@pytest.mark.parametrize(("rank", "shown"), [(None, "process 3895"), (0, "rank 0")])
def test_processes_of_one_node_have_plain_names(rank, shown):
    report = laptop(rank)
    where = Location("train.py", 5, "main", 0.9, rank=report.metrics.ranks[0].name)
    main = replace(report.verdict.main, where=(where,))
    report = attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main))
    for text in (render_html(report), terminal_summary(report, width=100)):
        assert f"on {shown}" in text
        assert not re.search(r"algo-1-\d", text)
    assert json.loads(to_json(report))["job"]["ranks"][0]["name"].startswith("algo-1-")


def test_a_name_after_the_word_rank_is_not_doubled():
    named = readable_processes(laptop(0).metrics)
    text = "Rank algo-1-0 is late, by rank algo-1-0 alone: node algo-1, process algo-1-0; see algo-1-0"
    assert named(text) == "Rank 0 is late, by rank 0 alone: node algo-1, rank 0; see rank 0"


def test_processes_of_several_nodes_keep_their_names():
    rows = training(200, node="algo-1-0") + training(200, node="algo-2-1")
    metadata = tuple({"node": f"algo-{rank + 1}", "rank": rank, "pid": 7} for rank in (0, 1))
    assert "algo-2-1" in render_html(report_from(rows, metadata=metadata))


@pytest.mark.parametrize("width", [50, 60, 100])
def test_each_letter_of_the_bar_is_in_its_legend(width):
    report = report_from(training(400, wait=0.03, outside=0.004), metadata=({"framework": "pytorch"},))
    lines = terminal_summary(report, width=width).splitlines()
    bar = next(line for line in lines if len(line) > 40 and set(line.strip()) <= set("WFBO?"))
    legend = " ".join(lines[lines.index(bar) + 1 :])
    assert all(f"{letter} " in legend for letter in set(bar.strip()))


def test_sections_are_folded_unless_a_rule_fired():
    quiet = render_html(laptop(rules={"CPUBottleneck": WITHOUT_GPU}))
    assert '<details open><summary><h3 id="rules-title">' not in quiet
    assert '<details><summary><h3 id="rules-title">' in quiet
    fired = {**WITHOUT_GPU, "RuleTriggered": 2, "Details": {}}
    assert '<details open><summary><h3 id="rules-title">' in render_html(laptop(rules={"Dataloader": fired}))


def test_a_missing_gpu_is_stated_once():
    rules = dict.fromkeys(
        ("CPUBottleneck", "IOBottleneck", "LowGPUUtilization", "BatchSize", "GPUMemoryIncrease"), WITHOUT_GPU
    )
    page = render_html(laptop(rules=rules))
    (sentence,) = re.findall(r"<p>([^<]*): no GPU metrics\.</p>", page)
    assert sentence == "GPU utilization analysis, Batch size, CPU bottlenecks, I/O bottlenecks, GPU memory"
    assert "Not judged: no GPU metrics" not in page
    assert_as_stored(words_of(page, "rules"), "rules_without_gpus")


def test_a_loop_without_a_loader_has_none_to_watch():
    found = laptop(wait=0)
    assert "no loader to watch in this loop" in render_html(found)
    assert ("waiting for data over the whole loop", "no loader to watch in this loop") in found.verdict.not_judged
    assert "dataloader window" not in render_html(found)


def test_numbers_stay_with_their_units():
    assert unbroken("31 % of 1.5 ms, 2 GB, 4 sheep") == "31\xa0% of 1.5\xa0ms, 2\xa0GB, 4 sheep"
    page = render_html(laptop(wait=0.02))
    assert re.search(r'id="verdict-title">The loop waits for data \d+\xa0% of the time: \d+\xa0ms', page)


def test_the_terminal_shows_the_source_of_the_first_line():
    report = laptop(wait=0.02)
    where = Location("train.py", 5, "main", 0.9, source="    total += slow(batch)")
    main = replace(report.verdict.main, where=(where,))
    text = terminal_summary(attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main)), width=100)
    assert "\n      total += slow(batch)\n" in text


def test_a_long_line_is_cut_at_its_end():
    """It lost its middle: `return torch.tensor(row[cols].to_numpy(dtype…, torch.tensor(row["label"], …`."""
    report = laptop(wait=0.02)
    source = 'return torch.tensor(row[cols].to_numpy(dtype="float32")), torch.tensor(row["label"], dtype=torch.float32)'
    main = replace(report.verdict.main, where=(Location("train.py", 5, "main", 0.9, source=source),))
    report = attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main))
    assert f"\n      {source[:73]}…\n" in terminal_summary(report, width=80)


def looping_loss(batch_size, readers, *, source="", leaf="", operators=660):
    """Return a job whose loss takes 1.2 ms of a step of 4.5 ms, from the end of the forward pass to the backward pass."""
    rows = []
    for phase, *rest in training(400, forward=0.0005, backward=0.0033, optimizer=0.0002, wait=0.0004):
        start, length, node, step = rest[1:]
        if phase.startswith("Backward"):  # its first part is the loss
            start, length = start + 0.0012, length - 0.0012
        rows.append((phase, phase, start, length, node, step))
    args = {"operators": operators, "fixed_us": 4.2, "step_us": 4500.0, "readers": readers}
    rows.append(("sm_profiler/operators", "operators", 1.5, 0.0, "algo-1-0", 10, args))
    stacks = sampled(("between", False, 0.3, 10, "train.py", "weighted_loss", *([leaf] if leaf else [])))
    stacks[-1]["lines"] = [source] if source else stacks[-1]["lines"]
    return report_from([*rows, stacks], metadata=({"batch_size": batch_size},))


def test_operators_of_a_loop_over_samples_do_not_go_away_with_a_larger_batch():
    """4.6 to 6.2 times as fast was promised, with high confidence, where a batch 8 times as large gained 6 %."""
    found = looping_loss(64, 64).verdict.main
    assert found.kind is Class.HOST_BOUND
    assert not found.larger_batch
    assert found.confidence != "high"
    assert found.gain.share_of_loop.high < 0.6
    assert "Vectorize the loss" in found.next_step
    assert "for each sample in weighted_loss() (train.py:10)" in found.headline
    assert found.where[0].line == 10


def test_operators_that_are_too_few_for_a_loop_over_samples_go_away_with_a_larger_batch():
    assert looping_loss(512, 512).verdict.main.larger_batch


def test_a_loss_that_is_longer_than_its_forward_pass_is_no_loop_over_samples():
    """A step with 75 operators at any size of the batch was to be vectorized, as it was already."""
    assert looping_loss(64, 3).verdict.main.larger_batch
    assert looping_loss(4, None).verdict.main.larger_batch
    assert not looping_loss(64, None, source="loss = sum(one(y, t) for y, t in zip(ys, ts))").verdict.main.larger_batch


def test_gradients_of_gradients_are_no_operators_that_the_script_launches_one_by_one():
    engine = "torch.autograd.graph._engine_run_backward"
    assert looping_loss(
        4, 4, source="g, = torch.autograd.grad(u.sum(), p, create_graph=True)", leaf=engine
    ).verdict.main.larger_batch


def test_logging_that_a_slow_sampler_saw_a_few_times_is_found():
    """The page's ledger had 18 % of logging, which no finding named; one that saves "0 to 22 %" led instead."""
    rows = training(300, outside=0.0042)
    stack = Sampled("algo-1-0", "outside", False, (Place("train.py", 15, "main"),), "json.encoder.dumps", 1.2, 4)
    metrics = attrs.evolve(metrics_of(rows), samples=Samples((stack,), {("train.py", 15): "f.write(json.dumps(row))"}))
    found = decide(Case(metrics, {})).main
    assert (found.kind, found.confidence) == (Class.LOGGING, "low")
    assert found.doubt == "only 4 samples"


@pytest.mark.parametrize(("written", "kind"), [(3, Class.LOGGING), (1, Class.BALANCED)])
def test_three_of_four_samples_show_what_the_time_between_the_phases_is_for(written, kind):
    """That the phases take the rest is measured: of 400 steps in 6 s, which few samples show, nothing was named."""
    rows = training(400, wait=0.0012, outside=0.0022)
    loop = metrics_of(rows).ranks[0].loop
    stacks = [
        ("outside", 3, "json.encoder.dumps", 29),
        ("outside", 1, "torch.functional.norm", 28),
        ("forward", 9, "", 24),
    ]
    if written == 1:
        stacks[0], stacks[1] = ("outside", 1, *stacks[0][2:]), ("outside", 3, *stacks[1][2:])
    found = tuple(
        Sampled("algo-1-0", phase, False, (Place("train.py", line, "main"),), leaf, 0.18 * loop * count / 4, count)
        for phase, count, leaf, line in stacks
    )
    metrics = attrs.evolve(metrics_of(rows), samples=Samples(found, {}))
    main = decide(Case(metrics, {})).main
    assert main.kind is kind
    assert main.confidence == "low" or kind is Class.BALANCED


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_a_listed_finding_saves_the_least_worth_naming(spread):
    random, rows, now = np.random.default_rng(3), [], 1.0
    for step in range(240):  # a machine whose pace changes
        pace = 1 + spread * (-1) ** (step // 30)
        rows += training(1, forward=0.004 * pace, backward=0.005 * pace * random.uniform(0.9, 1.1), at=now, number=step)
        now = rows[-1][2] + rows[-1][3] + 0.0002
        if step % 8 == 0:
            rows.append(("sm_profiler/save", "torch.save", now, 0.008, "algo-1-0", step, {"calls": 1}))
            now += 0.008
    verdict = report_from(rows).verdict
    found = [one for one in (verdict.main, *verdict.also) if one.gain]
    assert [one.kind for one in found] == [Class.CHECKPOINTING]
    assert all(one.gain.share_of_loop.low >= limits.FLOOR for one in found)


def with_callbacks(every, *, length=0.1, early=0.002, steps=400):
    """Return a loop with a callback whose calls begin a moment before the step is over, at every few steps."""
    rows, now = [], 1.0
    for step in range(steps):
        rows += training(1, at=now, number=step)
        now = rows[-1][2] + rows[-1][3]
        if step % every == 0:
            args = {"calls": 1, "file": "/code/train.py", "line": 15, "function": "Watch.on_train_batch_end"}
            rows.append((CALLBACK, "Watch.on_train_batch_end", now - early, length + early, "algo-1-0", step, args))
            now += length
        now += 0.0002
    return rows


def test_a_callback_that_works_now_and_then_is_no_stall():
    """Its calls begin in one step, and their time lies in the next, which was called a stall for other reasons."""
    verdict = report_from(with_callbacks(5)).verdict
    assert verdict.kind is Class.SLOW_CALLBACK
    assert Class.PERIODIC_STALL not in {one.kind for one in verdict.also}
    assert verdict.main.gain.share_of_loop.value == pytest.approx(0.66, abs=0.06)


def test_what_a_callback_compiles_goes_with_it():
    rows = with_callbacks(1, length=0.04, steps=200)
    for row in [row for row in rows if row[0] == CALLBACK]:
        rows.append((COMPILE, "predict", row[2] + 0.005, 0.02, *row[4:6], {"again": False, "calls": 1}))
    found = report_from(rows).verdict.main
    assert found.kind is Class.SLOW_CALLBACK
    assert found.gain.share_of_loop.value > 0.7


def test_the_trainer_is_not_given_an_argument_of_the_data_loader():
    assert "pin_memory" not in FRAGMENTS["loader_of_trainer"] + ADVICE["input_no_workers"]  # it pins by default


def with_finding(**changes):
    report = laptop(wait=0.02)
    main = replace(report.verdict.main, **changes)
    return attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main))


def test_the_next_step_ends_with_a_sentence():
    """It was cut in the middle of a word."""
    step = " ".join(
        f"Sentence {number} names something to do, and it takes about half of a line." for number in range(12)
    )
    where = tuple(Location("train.py", line, "main", 0.2) for line in range(3))
    lines = terminal_summary(with_finding(next_step=step, where=where), width=80).splitlines()
    advice = " ".join(" ".join(lines).partition("Next: ")[2].partition("WWW")[0].split())
    assert advice.endswith("half of a line.")
    assert 2 <= advice.count("Sentence") < 12


def test_a_next_step_of_one_long_sentence_ends_with_a_clause():
    """It ended with "other load on the …"."""
    step = (
        "Check what coincides: "
        + ", ".join(f"a cause of long steps that is number {number}" for number in range(24))
        + "."
    )
    lines = terminal_summary(with_finding(next_step=step), width=80).splitlines()
    advice = " ".join(" ".join(lines).partition("Next: ")[2].partition("WWW")[0].split())
    assert re.search(r"a cause of long steps that is number \d+ …$", advice), advice


def test_evidence_that_the_headline_has_is_not_repeated():
    found = with_finding()
    fact, other = found.verdict.main.evidence[:2]
    assert fact.unit == "share"
    text = terminal_summary(found, width=100)
    assert f"{fact.metric}:" not in text
    assert f"{fact.metric}:" in terminal_summary(with_finding(headline="The loop waits."), width=100)
    assert other.metric


@pytest.mark.parametrize(("framework", "compiled", "shown"), [("jax", "compiled", False), ("jax", "forward", True)])
def test_a_compiled_loop_is_not_advised_to_compile(framework, compiled, shown):
    rows = training(300, backward=0, optimizer=0, forward=0.01)
    if compiled == "compiled":
        rows = [(COMPILED_STEP, "step", *row[2:]) if row[0] == "Forward" else row for row in rows]
    main = decide(Case(metrics_of(rows, metadata=({"framework": framework},)), {})).main
    assert main.kind is Class.BALANCED
    assert ("jax.jit" in main.next_step) is shown
