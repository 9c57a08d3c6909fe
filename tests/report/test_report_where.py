"""Lines of code behind findings: from made-up stacks, folded and judged."""

import json
import random

import numpy as np
import pytest

from sm_profiler.diagnosis.classes import Class
from sm_profiler.metrics.sample_fold import MAX_SPANS, MAX_STACKS, Place, SampleFold
from sm_profiler.report.report_json import plain
from tests.support.reports import START_S, FakeWindow, events, sampled, system, training, verdict_of

SAMPLES = "sm_profiler/samples"


def where(verdict, kind):
    finding = next(one for one in (verdict.main, *verdict.also) if one.kind is kind)
    return [(one.file, one.line, round(one.share, 2), one.phase) for one in finding.where]


def test_input_names_the_workers_lines():
    rows = training(200, wait=0.02)
    rows.append(sampled(("wait", 0, 4, 17), ("worker", 0, 6, 83, "data.py", "collate"), ("worker", 0, 2, 40)))
    verdict = verdict_of(rows)
    assert where(verdict, Class.INPUT_BOUND) == [("data.py", 83, 0.75, "worker"), ("train.py", 40, 0.25, "worker")]
    first = verdict.main.where[0]
    assert (first.function, first.source, first.rank) == ("collate", "source of line 83", "")


def test_a_single_sample_of_a_worker_may_be_chance():
    rows = [*training(200, wait=0.02), sampled(("wait", 0, 4, 17), ("worker", 0, 0.1, 273, "collate.py", "collate"))]
    assert where(verdict_of(rows), Class.INPUT_BOUND) == [("train.py", 17, 1.0, "wait")]


def test_input_without_workers_names_what_the_loop_runs_to_get_a_batch():
    rows = [*training(200, wait=0.02), sampled(("wait", 0, 4, 12), ("forward", 0, 9, 30))]
    assert where(verdict_of(rows), Class.INPUT_BOUND) == [("train.py", 12, 1.0, "wait")]


def test_time_outside_the_phases_names_lines_of_usual_steps():
    rows = training(200, outside=0.02)
    rows.append(sampled(("outside", 0, 6, 50), ("between", 0, 2, 51), ("outside", 1, 50, 90), ("end", 0, 99, 99)))
    rows.append(sampled(("log images", 0, 2, 52), ("wait", 0, 70, 17), ("start", 0, 70, 1)))
    assert where(verdict_of(rows), Class.SYNC_BOUND) == [
        ("train.py", 50, 0.6, "outside"), ("train.py", 51, 0.2, "between"), ("train.py", 52, 0.2, "log images"),
    ]  # fmt: skip


def test_stalls_name_the_lines_on_which_long_steps_spend_more():
    rows = training(400, every=50, stall=0.5)
    usual = ("outside", 0, 4, 20)
    rows.append(sampled(usual, ("outside", 1, 4, 90), ("outside", 1, 0.1, 20), ("forward", 1, 3, 30)))
    found = where(verdict_of(rows), Class.PERIODIC_STALL)
    assert found == [("train.py", 90, 1.0, "outside")]


def test_long_backward_passes_name_the_models_lines_if_the_forward_grew():
    rows, now = [], 1.0
    for number in range(200):
        times = 60 if number in (31, 77, 90, 150) else 1
        rows += training(1, forward=0.003 * times, backward=0.006 * times, at=now, number=number)
        now += 0.0022 + 0.009 * times
    usual = [("forward", 0, 0.6, 30), ("backward", 0, 1.2, 45)]
    rows.append(sampled(*usual, ("forward", 1, 0.7, 34), ("backward", 1, 1.4, 45)))
    verdict = verdict_of(rows)
    assert where(verdict, verdict.kind) == [("train.py", 34, 1.0, "forward")]


def test_a_stall_while_waiting_for_workers_names_the_workers_line():
    rows = []
    for block in range(8):
        start = 1 + block * (50 * 0.0102 + 0.599)
        rows += training(49, at=start, number=50 * block)
        rows += training(1, wait=0.6, at=start + 49 * 0.0102, number=50 * block + 49)
    rows.append(sampled(("wait", 1, 5, 17), ("worker", 1, 4, 61), ("worker", 0, 4, 60), ("wait", 0, 1, 17)))
    verdict = verdict_of(rows)
    found = where(verdict, verdict.kind)
    assert found[0][:2] == ("train.py", 61)


def test_collections_that_the_script_calls_are_to_be_left_out():
    """The advice was to freeze what is alive and to switch automatic collections off, which such a call ignores."""
    rows = training(200)
    rows += [("GC", "generation 2", 1 + 0.0102 * step, 0.002, "algo-1-0", -1) for step in range(200)]
    event = sampled(("gc", 0, 0.4, 44))
    event[-1]["lines"] = ["    gc.collect()"]
    finding = verdict_of([*rows, event]).main
    assert finding.kind is Class.GC_BOUND
    assert finding.next_step.startswith("Remove this call of gc.collect()")
    assert verdict_of([*rows, sampled(("gc", 0, 0.4, 44))]).main.next_step.startswith("Call gc.freeze()")


def test_collections_starts_and_evaluation_name_their_lines():
    rows = training(200)
    rows += [("GC", "generation 2", 1 + 0.0102 * step, 0.002, "algo-1-0", -1) for step in range(200)]
    rows.append(sampled(("gc", 0, 0.4, 44), ("forward", 0, 5, 30)))
    assert where(verdict_of(rows), Class.GC_BOUND) == [("train.py", 44, 1.0, "gc")]
    rows = [
        *training(100),
        *training(100, mode="EVAL", at=2.03),
        sampled(("evaluation", 0, 3, 71), ("outside", 0, 3, 9)),
    ]
    assert where(verdict_of(rows), Class.EVALUATION_BOUND) == [("train.py", 71, 1.0, "evaluation")]


def test_a_straggler_names_the_lines_on_which_it_differs():
    rows = []
    for rank in range(4):
        slow = rank == 2
        rows += training(
            200, forward=0.012 if slow else 0.003, backward=0.001 if slow else 0.010, node=f"algo-1-{rank}"
        )
        extra = [("forward", 0, 2, 66)] if slow else []
        rows.append(sampled(("forward", 0, 1, 30), ("backward", 0, 1, 31), *extra, node=f"algo-1-{rank}"))
    verdict = verdict_of(rows)
    assert where(verdict, Class.STRAGGLER) == [("train.py", 66, 1.0, "forward")]
    assert verdict.main.where[0].rank == "algo-1-2"


def test_a_declared_phase_names_the_lines_inside_it():
    rows = training(200, outside=0.006)
    for number in range(200):
        rows.append(("augment", "augment", 1.0101 + 0.016 * number, 0.0055, "algo-1-0", number, {"declared": True}))
    rows.append(sampled(("augment", 0, 3, 61), ("augment", 0, 1, 62), ("outside", 0, 9, 50), ("other", 0, 9, 70)))
    found = where(verdict_of(rows), Class.USER_PHASE)
    assert [one[:3] for one in found] == [("train.py", 61, 0.75), ("train.py", 62, 0.25)]


def fading_rows(*more, slow=0.02):
    """Return a loop whose steps take `slow` seconds longer from its middle on, and samples of each second."""
    rows, now = [], 1.0
    for number in range(400):
        forward = 0.003 + (slow if number >= 200 else 0)
        rows += training(1, forward=forward, at=now, number=number)
        now += forward + 0.0072
    change = 1 + 200 * 0.0102
    for second in range(1, int(now) + 1):
        late, usual = ([("forward", 0, 0.6, 66), *more], 0.06) if second > change else ([], 0.2)
        rows.append(sampled(("forward", 0, usual, 30), ("backward", 0, usual, 31), *late, at=float(second)))
    return rows


def test_a_loop_that_becomes_slow_names_what_its_steps_did_not_do_before():
    assert where(verdict_of(fading_rows()), Class.FAIL_SLOW) == [("train.py", 66, 1.0, "forward")]


def test_a_slow_loop_names_lines_of_the_part_that_takes_longer():
    rows = fading_rows(("wait", 0, 0.9, 17), ("worker", 0, 0.9, 80), ("end", 0, 0.9, 99), ("gc", 0, 0.9, 98))
    assert [one[1] for one in where(verdict_of(rows), Class.FAIL_SLOW)] == [66]


def test_a_loop_that_waits_longer_names_lines_that_wait():
    rows, now = [], 1.0
    for number in range(400):
        wait = 0.001 + (0.02 if number >= 200 else 0)
        rows += training(1, wait=wait, at=now, number=number)
        now += wait + 0.0092
    for second in range(1, int(now) + 1):
        late = [("wait", 0, 0.7, 17)] if second > 3 else []
        rows.append(sampled(("backward", 0, 0.3 if second > 3 else 0.1, 31), *late, at=float(second)))
    assert where(verdict_of(rows), Class.FAIL_SLOW) == [("train.py", 17, 1.0, "wait")]


def test_an_import_in_the_loop_is_no_cost_of_every_step():
    rows = training(200, outside=0.02)
    rows.append(sampled(("outside", 0, 9, 14, "train.py", "main", "import"), ("outside", 0, 3, 50)))
    assert [one[1] for one in where(verdict_of(rows), Class.SYNC_BOUND)] == [50]


def test_gradients_as_functions_are_no_time_beside_the_model():
    def loop(leaf):
        stacks = ("between", 0, 4, 21, "train.py", "main", leaf), ("between", 0, 2, 21), ("outside", 0, 1, 24)
        return [*training(200, optimizer=0, outside=0.02), sampled(*stacks)]

    for leaf in ("torch._functorch.vmap.wrapped", "torch.autograd.graph._engine_run_backward"):
        assert Class.SYNC_BOUND not in {one.kind for one in all_of(verdict_of(loop(leaf)))}
    assert Class.SYNC_BOUND in {one.kind for one in all_of(verdict_of(loop("torch.autograd.grad_mode.no_grad.clone")))}
    timed = [*loop("torch.autograd.graph._engine_run_backward"), sampled(("backward", 0, 4, 21))]
    assert Class.SYNC_BOUND in {one.kind for one in all_of(verdict_of(timed))}


def test_one_sample_of_gradients_does_not_hide_what_the_same_line_calls():
    """Line and innermost function of a sample may be of different moments: the call of `log` shows the backward pass."""
    rows = training(200, optimizer=0, outside=0.02)
    frames = [["train.py", 28, "<module>"], ["train.py", 17, "log"]]
    backward = "torch.autograd.graph._engine_run_backward"
    stacks = [["outside", 0, 4000, 800, "", [0, 1]], ["outside", 0, 5, 1, backward, [0]]]
    args = {"frames": frames, "lines": ["if log_ms: log()", "time.sleep(log_ms / 1000)"], "stacks": stacks}
    rows.append((SAMPLES, "samples", 2.0, 0.0, "algo-1-0", -1, args))
    assert [one[1] for one in where(verdict_of(rows), Class.SYNC_BOUND)] == [17]
    stacks[1][2:4] = [50, 10]  # the same again and again, of many steps
    assert [one[1] for one in where(verdict_of(rows), Class.SYNC_BOUND)] == [17]


def all_of(verdict):
    return verdict.main, *verdict.also


def test_collectives_name_their_calls_or_the_backward_pass():
    def rows_with(*stacks):
        rows = training(200, backward=0.001, outside=0.001)
        rows += [("NcclManager", "allreduce", 1.0002 + 0.0102 * step, 0.008, "algo-1-0", step) for step in range(200)]
        args = {"frames": [["train.py", 40, "main"], ["train.py", 41, "main"]], "lines": [], "stacks": list(stacks)}
        return [*rows, (SAMPLES, "samples", 2.0, 0.0, "algo-1-0", -1, args)]

    called = rows_with(
        ["outside", 0, 3000, 45, "torch.distributed.all_reduce", [0]], ["backward", 0, 3000, 45, "", [1]]
    )
    assert [one[1] for one in where(verdict_of(called), Class.COMMUNICATION_BOUND)] == [40]
    hidden = rows_with(["forward", 0, 3000, 45, "", [0]], ["backward", 0, 3000, 45, "torch.autograd.backward", [1]])
    assert [one[1] for one in where(verdict_of(hidden), Class.COMMUNICATION_BOUND)] == [41]


def test_growth_names_the_lines_that_add_to_what_grows():
    seconds = START_S + 1 + np.arange(0, 20.0)
    lines = [["/job/data/train.py", 36, "train"], ["x", "y", "z"], 7]
    objects = ("sm_profiler/objects", "objects", 9.0, 0.1, "algo-1-0", -1, {"types": {}, "lines": lines})
    rows = [*training(2000), objects, sampled(("forward", 0, 3, 36, "data/train.py", "train"))]
    verdict = verdict_of(rows, memory={"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))})
    (line,) = verdict.main.where
    assert (line.file, line.line, line.function, line.source) == ("data/train.py", 36, "train", "source of line 36")


def test_one_sample_shows_where_a_timed_wait_is():
    rows = [*training(200, wait=0.02), sampled(("wait", 0, 0.1, 12))]
    assert [line.line for line in verdict_of(rows).main.where] == [12]


@pytest.mark.parametrize("stacks", [(), (("forward", 0, 9, 12),)])
def test_without_useful_samples_a_finding_has_no_line(stacks):
    rows = training(200, wait=0.02)
    if stacks:
        rows.append(sampled(*stacks))
    assert verdict_of(rows).main.where == ()


def test_at_most_five_lines_and_none_that_hardly_costs():
    rows = training(200, wait=0.02)
    rows.append(sampled(*[("wait", 0, 10 - number, 10 + number) for number in range(8)], ("wait", 0, 0.5, 90)))
    assert [one[1] for one in where(verdict_of(rows), Class.INPUT_BOUND)] == [10, 11, 12, 13, 14]


def fold_of(rows):
    fold = SampleFold()
    fold.update(FakeWindow(0, events(rows), system([])))
    return fold


def test_folds_merge_in_any_order():
    rows = [sampled(("wait", number % 2, 0.1 * number + 0.3, number % 5 + 1), at=number) for number in range(40)]
    whole = fold_of(rows).result()
    shuffled = random.Random(3).sample(rows, len(rows))  # an order
    first, second = fold_of(shuffled[:11]), fold_of(shuffled[11:])
    second.merge(first)
    assert second.result() == whole
    assert whole.source(Place("train.py", 3, "main")) == "source of line 3"


def test_the_course_of_a_long_job_is_kept_in_wider_spans():
    fold, whole = SampleFold(), SampleFold()
    rows = [sampled(("wait", 0, 0.5, 12), at=float(at)) for at in range(1, 5000, 7)]
    for part in (rows[400:], rows[:400]):
        other = SampleFold()
        other.update(FakeWindow(0, events(part), system([])))
        fold.merge(other)
    whole.update(FakeWindow(0, events(rows), system([])))
    assert fold.result() == whole.result()
    course = fold.result().course["algo-1-0"]
    assert course.last - course.first < MAX_SPANS
    ((phase, place, seconds, _),) = course.within(0.0, 1e10)
    assert (phase, place.line, seconds) == ("wait", 12, pytest.approx(len(rows) / 2))
    ((*_, seconds, _),) = course.within(0.0, START_S + 2500.0)
    assert seconds == pytest.approx(len(rows) / 4, rel=0.05)


def test_memory_is_bounded_and_the_total_is_kept():
    fold = SampleFold()
    for number in range(30):
        frames = [["train.py", number * 1000 + line, "f"] for line in range(1000)]
        stacks = [["wait", 0, 1.0, 1, "", [line]] for line in range(1000)]
        fold.update(FakeWindow(0, events([(SAMPLES, "samples", 1.0, 0.0, "algo-1-0", -1, {"frames": frames, "stacks": stacks})]), system([])))  # fmt: skip
    found = fold.result()
    assert len(found.stacks) <= 2 * MAX_STACKS + 1
    assert sum(one.seconds for one in found.stacks) == pytest.approx(30.0)


@pytest.mark.parametrize(
    "args",
    [
        [], {"stacks": 3}, {"frames": [["a", "b", "c"]], "stacks": []}, {"frames": [], "stacks": [["wait", 0, 5, 1, "", [0]]]},
        {"frames": [["a", 1, "f"]], "stacks": [["wait", 0, -5, 1, "", [0]]]},
        {"frames": [["a", 1, "f"]], "stacks": [["wait", 0, 1e300, 1, "", [0]]]},
        {"frames": [["a", 1, "f"]], "stacks": [["wait", 0, 5, 1, "", [-1]]]},
    ],
)  # fmt: skip
def test_damaged_events_add_nothing(args):
    assert fold_of([(SAMPLES, "samples", 1.0, 0.0, "algo-1-0", -1, args)]).result().stacks == ()


def test_hostile_names_are_printable_and_short():
    name = "\x1b[31m<script>\u202e" + "x" * 5000
    rows = [*training(200, wait=0.02), sampled(("wait", 0, 4, 12, name, name))]
    found = verdict_of(rows).main.where[0]
    assert found.file.isprintable()
    assert found.function.isprintable()
    assert len(found.file) < 1000
    assert json.dumps(plain(found))
