"""Time in which nothing happens: after the last step, and in pauses between steps."""

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.metrics.ends import EndFacts
from sm_profiler.metrics.system_fold import Usage, UsageFold
from sm_profiler.render.view import glance
from sm_profiler.report import Class
from tests.support.reports import START_S, cause_found, gpu_samples, metrics_of, report_from, training


def cpu(seconds, busy):
    """Return samples of a core for a job of some seconds; `busy(second)` is its use in percent."""
    return [(at, busy(at), "algo-1", "cpu", "cpu0", "CPUUtilization") for at in range(1, seconds)]


def used(seconds, cores):
    """Return the usage of a process that occupies `cores(second)` cores."""
    at = np.arange(seconds, dtype=float)
    return {"algo-1-0": Usage(at + START_S, np.cumsum([cores(second) for second in at]), np.zeros(seconds))}


def judged(rows, samples=(), usage=None):
    return cause_found("IDLE", Case(attrs.evolve(metrics_of(rows, samples), usage=usage or {}), {}))


def test_finds_an_idle_end():
    rows = training(600)  # until second 7
    found = judged(rows, cpu(60, lambda _: 90), used(60, lambda at: 1.0 if at < 8 else 0.01))
    assert found.kind is Class.IDLE
    assert "after the last step" in found.headline
    assert found.of == "job"
    assert found.confidence == "high"


def test_a_process_that_works_at_the_end_is_not_idle():
    assert judged(training(600), cpu(60, lambda _: 90), used(60, lambda _: 0.9)) is None


def test_a_short_end_is_usual():
    assert judged(training(600), cpu(11, lambda _: 2), used(11, lambda at: 1.0 if at < 8 else 0.01)) is None


def test_only_what_exceeds_a_usual_end_counts():
    rows, use = training(600), used(60, lambda at: 1.0 if at < 8 else 0.01)  # until second 7, then nothing
    assert judged(rows, cpu(13, lambda _: 2), use) is None  # a framework takes seconds to end
    assert judged(rows, cpu(30, lambda _: 2), use).kind is Class.IDLE


def test_without_samples_of_the_process_the_machine_decides():
    rows = training(600)
    assert judged(rows, cpu(60, lambda at: 90 if at < 8 else 2)).kind is Class.IDLE
    assert judged(rows, cpu(60, lambda at: 90 if at < 8 else 60)) is None


def test_few_samples_at_the_end_do_not_hide_a_wait_that_computes():
    rows = training(600)  # until second 7
    at = np.array([1.0, 5.0, 38.0, 39.0])  # none while results are computed and waited for
    usage = {"algo-1-0": Usage(at + START_S, np.array([1.0, 5.0, 37.0, 37.01]), np.zeros(4))}
    assert judged(rows, cpu(40, lambda _: 95), usage) is None
    assert judged(rows, cpu(40, lambda at: 95 if at < 8 else 1), usage).confidence == "medium"


@pytest.mark.parametrize("cores", [2, 64])
def test_one_busy_thread_of_a_large_machine_is_not_idle(cores):
    def machine(busy):
        return [
            (at, busy if core == 0 else 0.5, "algo-1", "cpu", f"cpu{core}", "CPUUtilization")
            for at in range(1, 40) for core in range(cores)
        ]  # fmt: skip

    assert judged(training(600), machine(98)) is None
    assert judged(training(600), machine(2)).kind is Class.IDLE


def test_an_idle_gpu_after_the_loop_is_lost_even_if_the_host_works():
    rows = training(1200)
    samples = gpu_samples(lambda tick: 95 if tick < 24 else 0, 60)
    assert judged(rows, samples, used(60, lambda _: 1.0)).kind is Class.IDLE
    assert judged(rows, gpu_samples(95, 60), used(60, lambda _: 0.01)) is None


def paused(length, at_step=150, steps=300):
    """Return a loop with one pause between two steps."""
    rows = training(at_step)
    resumed = rows[-1][2] + rows[-1][3] + length
    return rows + training(steps - at_step, at=resumed, number=at_step), resumed


def test_finds_a_pause_between_steps():
    rows, resumed = paused(20.0)
    idle = lambda at: 0.02 if 2.7 < at < resumed - 1 else 1.0  # noqa: E731
    verdict = decide(Case(attrs.evolve(metrics_of(rows, cpu(24, lambda _: 99)), usage=used(24, idle)), {}))
    assert verdict.kind is Class.IDLE
    assert "1 pause between steps" in verdict.main.headline


def test_a_long_step_that_computes_is_no_pause():
    rows, _ = paused(20.0)
    assert judged(rows, cpu(24, lambda _: 99), used(24, lambda _: 0.95)) is None


@pytest.mark.parametrize("phase", ["sm_profiler/save", "sm_profiler/compile"])
def test_a_pause_with_a_recorded_cause_is_not_idle(phase):
    rows, resumed = paused(20.0)
    rows.append((phase, "torch.save", resumed - 19, 18.5, "algo-1-0", 150, {}))
    assert judged(rows, cpu(24, lambda _: 5), used(24, lambda _: 0.02)) is None


def test_a_hang_is_not_idle():
    rows = [*training(600), ("sm_profiler/hang", "hang", 30.0, 0.0, "algo-1-0", 600, {})]
    assert judged(rows, cpu(60, lambda _: 1), used(60, lambda _: 0.0)) is None


def test_usage_merges_and_ignores_damaged_samples():
    first, second = UsageFold(), UsageFold()
    first._add("algo-1-0", 2.0, '{"cpu_s": 3, "major_faults": 1}')
    second._add("algo-1-0", 1.0, '{"cpu_s": 1, "major_faults": 0}')
    for text in (
        "",
        "[]",
        '{"cpu_s": "x"}',
        '{"cpu_s": 1e400, "major_faults": 0}',
        "[" * 10_000,
        '{"resident_bytes": 5}',
    ):
        second._add("algo-1-0", 1.5, text)
    first.merge(second)
    usage = first.result()["algo-1-0"]
    assert usage.cores(0, 3) == 2
    assert usage.fault_rate(0, 3) == 1
    assert usage.cores(1.5, 3) is None


STEPS = [("train.py", 9, "<module>"), ("train.py", 12, "<module>")]
FETCH, READ = ("train.py", 8, "<module>"), ("train.py", 3, "fetch")
LATER = ("train.py", 20, "<module>")


def ended(frames, phase="end", *, end="stopped", seconds=30.0, cores=0.01, run="stopped", more=(), **options):
    """Return the verdict on a loop of two seconds, whose process then waits, according to its samples, and is ended."""
    rows = training(200)
    over = rows[-1][2] + rows[-1][3]
    places = [*STEPS, *frames]
    stacks = [["forward", 0, 1500.0, 12, "", [number]] for number in range(len(STEPS))]
    if frames:
        stacks.append([phase, 0, seconds * 1e3, 30, "socket.recv", list(range(len(STEPS), len(places)))])
    args = {"rank": 0, "node": "algo-1", "start_us": START_S * 1e6, "end_step": 200, **options}
    record = {**args, "end": end, "end_us": (START_S + over + seconds) * 1e6}
    rows.append((SAMPLES, "samples", over + seconds, 0.0, "algo-1-0", -1, {"frames": places, "stacks": stacks}))
    facts = EndFacts(run=run) if run else None
    metrics = metrics_of([*rows, *more], cpu(int(over + seconds), lambda _: 50), metadata=[record], facts=facts)
    usage = used(int(over + seconds) + 2, lambda at: 1.0 if at < over else cores)
    return decide(Case(attrs.evolve(metrics, usage=usage), {}))


@pytest.mark.parametrize(
    ("end", "run", "how"), [("stopped", "stopped", "was stopped"), ("killed", "killed", "was ended by a signal"), ("crashed", "crashed", "failed")]
)  # fmt: skip
def test_a_training_that_is_ended_while_it_waits_is_not_idle(end, run, how):
    """The 40 s that a training had waited for its next batch were called idle time after its end."""
    main = ended([FETCH, READ], end=end, run=run).main
    assert main.kind is Class.HANG
    assert main.headline == (
        f"The training {how} while it waited at train.py:3 in fetch for 30 s; its usual step takes 10.2 ms."
    )
    assert (main.where[0].file, main.where[0].line) == ("train.py", 3)
    assert main.confidence == "medium"
    assert "joined" not in main.next_step


def test_a_thread_that_failed_before_the_wait_is_the_answer():
    """The producer's exception was in the log only, if the training was stopped before the hang was certain."""
    args = {"error": "AttributeError: 'NoneType' object has no attribute 'long'", "where": "train.py:30"}
    died = ("sm_profiler/thread_end", "producer", 2.9, 0.0, "algo-1-0", 199, args)
    main = ended([FETCH, READ], more=[died]).main
    assert main.kind is Class.HANG
    assert main.headline.endswith(
        " In algo-1-0, thread producer had ended with an exception: AttributeError: 'NoneType' object has no attribute 'long' "
        "(train.py:30)."
    )
    assert main.next_step.startswith("Fix that exception first")


@pytest.mark.parametrize(("step", "shown"), [(200, 200), (199, 199), (80, 200)])
def test_the_step_in_which_a_training_stopped_is_counted_nowhere(step, shown):
    """The first line had 42 training steps, and a tile 43 steps."""
    record = {"rank": 0, "node": "algo-1", "start_us": START_S * 1e6, "end": "stopped", "end_us": (START_S + 4) * 1e6}
    report = report_from(training(200), metadata=[{**record, "end_step": step}], facts=EndFacts(run="stopped"))
    (note,) = [note for label, _, note in glance(report) if label == "Training speed"]
    assert note == f"{shown} steps"


def test_a_wait_within_a_step_that_has_begun_is_found():
    assert ended([FETCH, READ], "between").main.headline.startswith(
        "The training was stopped while it waited at train.py:3"
    )


@pytest.mark.parametrize("seconds", [round(29.6 + 0.05 * each, 2) for each in range(12)])
def test_a_wait_is_found_if_its_end_lies_anywhere_in_the_spans_of_the_samples(seconds):
    """Ctrl-C in the first half of a span's time lost all samples of the wait, and the advice was to press Ctrl-C."""
    assert "while it waited at train.py:3" in ended([FETCH, READ], "between", seconds=seconds).main.headline


def test_a_line_after_the_loop_may_be_waited_at_when_it_is_over():
    main = ended([LATER]).main
    assert (main.kind, main.confidence) == (Class.HANG, "low")
    assert "If the loop was over by then" in main.next_step


def test_where_a_signal_found_the_process_is_the_line_if_its_samples_are_lost():
    main = ended((), end_place="train.py:3").main
    assert "while it waited at train.py:3 for 30 s" in main.headline
    main = ended(()).main
    assert main.headline.startswith(
        "The training was stopped when no step had ended for 30 s, and it did not compute; its usual step takes 10.2 ms"
    )
    assert main.confidence == "low"


def test_what_is_no_wait_in_the_loop_is_none():
    save = ("sm_profiler/save", "torch.save", 5.0, 28.0, "algo-1-0", 199, {})
    for verdict in (
        ended([FETCH, READ], cores=0.9),
        ended([FETCH, READ], seconds=0.15),
        ended([FETCH, READ], more=[save]),
    ):
        assert {one.kind for one in (verdict.main, *verdict.also)}.isdisjoint({Class.HANG, Class.IDLE})
    assert ended([LATER], end="completed", run="completed").kind is Class.IDLE
