"""Interruptions, the bill, and instances of several types."""

import json

import attrs
import pytest

from sm_profiler.formats.event_names import SAVE
from sm_profiler.formats.recorded import Save
from sm_profiler.metrics.metric_folds import JobInfo
from sm_profiler.metrics.startup import Billed, billed_time, repeated_work
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.render.view import glance
from sm_profiler.report.build import report_of
from sm_profiler.report.prices import cost_of, lost_time
from sm_profiler.report.report_json import report_json, to_json
from tests.support.reports import START_S, metrics_of, report_from, sampled, training

FIRST, SECOND = "algo-1-11", "algo-1-22"
METADATA = tuple(
    {"rank": None, "node": "algo-1", "pid": pid, "start_us": (START_S + at) * 1e6}
    for pid, at in ((11, 0.9), (22, 59.9))
)


def interrupted(*saves):
    """A job of two attempts of 100 steps of 10 ms each, and its checkpoints."""
    saved = [(SAVE, "torch.save", at, 0.001, FIRST, 1) for at in saves]
    return [*training(100, node=FIRST), *saved, *training(100, node=SECOND, at=60.0)]


def test_steps_since_the_last_checkpoint_are_done_again():
    metrics = metrics_of(interrupted(1.2, 1.5), metadata=METADATA)
    assert metrics.interruptions[0] == 1
    repeated = repeated_work(metrics)
    assert repeated.steps == pytest.approx((1.0 + 100 * 0.0102 - 1.501) / 0.0102, abs=1.5)
    assert repeated.seconds == pytest.approx(1.0 + 100 * 0.0102 - 1.501, abs=0.02)


def test_a_checkpoint_after_the_interruption_changes_nothing():
    before, after = (
        repeated_work(metrics_of(interrupted(*saves), metadata=METADATA)) for saves in ((1.5,), (1.5, 60.3))
    )
    assert before == after


@pytest.mark.parametrize("rows", [training(100, node=FIRST), interrupted(), interrupted(60.5)])
def test_nothing_is_claimed_without_a_checkpoint_or_an_interruption(rows):
    assert repeated_work(metrics_of(rows, metadata=METADATA)) is None


def test_page_terminal_and_json_name_what_an_interruption_cost():
    report = report_from(interrupted(1.5), metadata=METADATA, instance_type="ml.g5.xlarge")
    again = repeated_work(report.metrics)
    tile = next(tile for tile in glance(report) if tile[0] == "Interruptions")
    assert tile[1] == "1"
    assert f"{again.steps} steps done again" in tile[2]
    assert f"{again.steps} steps" in terminal_summary(report, width=100)
    assert "; 1 step (" in terminal_summary(report_from(interrupted(2.005), metadata=METADATA), width=100)
    found = json.loads(to_json(report))["job"]["interruptions"]
    assert found["repeated_steps"] == again.steps
    assert found["repeated_usd"] == pytest.approx(again.seconds * report.cost.per_hour / 3600, abs=1e-4)
    assert "interruptions" not in json.loads(to_json(report_from(training(100))))["job"]


def test_the_bill_of_a_spot_job_is_on_the_page():
    metrics = metrics_of(training(100))
    description = {"EnableManagedSpotTraining": True, "TrainingTimeInSeconds": 7200, "BillableTimeInSeconds": 2400}
    metrics = attrs.evolve(metrics, description=description)
    report = attrs.evolve(report_from(training(100)), metrics=metrics)
    assert report_json(report).job.billed == Billed(spot=True, training_s=7200.0, billable_s=2400.0)
    (tile,) = [tile for tile in glance(report) if tile[0] == "Billed"]
    assert tile[2].endswith("of training, spot")


def spot(*attempts, resumed=True):
    """Return the description of a spot job whose attempts trained from and to these seconds after the job's start."""
    rows = []
    for begin, end in attempts:
        rows.append({"Status": "Downloading", "StartTime": START_S + begin - 5, "EndTime": START_S + begin})
        rows.append({"Status": "Training", "StartTime": START_S + begin, **({"EndTime": START_S + end} if end else {})})
        rows.append({"Status": "Interrupted", "StartTime": START_S + (end or begin)})
    return {"SecondaryStatusTransitions": rows[:-1] if resumed else rows}


@pytest.mark.parametrize(
    ("attempts", "missing"),
    [
        ([(0.5, 50)], []),
        ([(0.5, 50), (59, 90)], []),
        ([(-60, -30), (0.5, 50), (59, 90)], [1]),  # the first trace file of the attempt was never closed
        ([(-60, -30), (0.5, 50), (52, 55), (59, 90)], [1, 3]),
        ([(0.5, 50), (59, 90), (95, None)], []),  # it has just begun
    ],
)
def test_attempts_whose_steps_are_not_stored_are_named(attempts, missing):
    report = report_from(interrupted(1.5), metadata=METADATA, description=spot(*attempts))
    assert json.loads(to_json(report))["job"]["interruptions"]["attempts_without_steps"] == missing
    named = {0: "", 1: "steps of attempt 1 are not stored", 2: "steps of attempts 1 and 3 are not stored"}[len(missing)]
    tile = next(tile for tile in glance(report) if tile[0] == "Interruptions")
    for text in (tile[2], " ".join(terminal_summary(report, width=100).split())):
        assert named in text
        assert bool(missing) == ("not stored" in text)


def test_an_attempt_that_recorded_its_end_before_its_first_step_has_lost_nothing():
    early = {"node": "algo-1", "rank": 0, "start_us": int((START_S - 50) * 1e6), "end": "stopped", "end_step": 0}
    early["end_us"] = int((START_S - 31) * 1e6)
    description = spot((-60, -30), (0.5, 50), (52, 55), (59, 90))
    report = report_from(interrupted(1.5), metadata=(early, *METADATA), description=description)
    text = " ".join(terminal_summary(report, width=100).split())
    assert "attempt 1 stopped before its first step; steps of attempt 3 are not stored" in text


def test_jobs_that_a_retry_strategy_starts_again_were_interrupted():
    rows = [{"Status": "Training"}, {"Status": "Restarting"}, {"Status": "Training"}]
    assert metrics_of(training(100), description={"SecondaryStatusTransitions": rows}).interruptions[0] == 1


@pytest.mark.parametrize("value", [None, "7200", True, -1, float("nan"), 1e300])
def test_a_damaged_bill_is_left_out(value):
    assert billed_time({"TrainingTimeInSeconds": 7200, "BillableTimeInSeconds": value}) is None


@pytest.mark.parametrize(("kind", "rough"), [("ml.p5e.48xlarge", True), ("ml.g5.xlarge", False)])
def test_money_of_an_estimated_price_is_marked(kind, rough):
    report = report_from(training(400, wait=0.1), instance_type=kind)
    assert report.cost.price_estimated is rough
    assert (f"the price of {kind} estimated" in report.cost.sentence) is rough
    (tile,) = [tile for tile in glance(report) if tile[0] == "Lost money"]
    assert tile[2].endswith("at an estimated price") is rough
    shown = " ".join(terminal_summary(report).split())
    assert "saves about $" in shown
    assert ("at an estimated price" in shown) is rough
    own = report_of(report.metrics, report.verdict, {}, job=JobInfo(prices={kind: 40.0}))
    assert "estimated" not in own.cost.sentence


def test_groups_of_instances_have_their_own_prices():
    rows = [*training(100, node="algo-1-0"), *training(100, node="algo-2-1"), *training(100, node="algo-3-2")]
    types = {"algo-1": "ml.p4d.24xlarge", "algo-2": "ml.c5.18xlarge", "algo-3": "ml.c5.18xlarge"}
    metrics = metrics_of(rows, instance_type="ml.p4d.24xlarge")
    mixed = attrs.evolve(metrics, types_by_node=types)
    prices = {"ml.p4d.24xlarge": 30.0, "ml.c5.18xlarge": 4.0}
    verdict = report_from(rows).verdict
    assert cost_of(metrics, verdict, prices).per_hour == 90.0
    cost = cost_of(mixed, verdict, prices)
    assert (cost.per_hour, cost.nodes) == (38.0, 3)
    assert cost.instance_type == "ml.p4d.24xlarge + ml.c5.18xlarge"
    assert "1 x ml.p4d.24xlarge + 2 x ml.c5.18xlarge" in cost.sentence
    types = report_json(attrs.evolve(report_from(rows), metrics=mixed)).job.instance_types
    assert types == {"ml.p4d.24xlarge": 1, "ml.c5.18xlarge": 2}
    assert cost_of(mixed, verdict, {"ml.p4d.24xlarge": 30.0}) is None


def lived(*spans):
    """Return the records of the processes of attempts without a rank, each from and to these seconds."""
    return tuple(
        {"rank": None, "node": "algo-1", "pid": pid, "process_us": (START_S + begin) * 1e6,
         "start_us": (START_S + begin + 0.9) * 1e6, "end_us": (START_S + end) * 1e6, "end": "stopped"}
        for pid, (begin, end) in zip((11, 22), spans, strict=False)
    )  # fmt: skip


def beats(*spans, every=0.5):
    """Return the samples of a monitor."""
    return [
        (begin + tick * every, 50.0, "algo-1", "cpu", "cpu0", "CPUUtilization")
        for begin, end in spans
        for tick in range(int((end - begin) / every) + 1)
    ]


@pytest.mark.parametrize(
    ("metadata", "samples", "between"),
    [
        (lived((0.0, 3.0), (50.0, 62.0)), [], 47.0),
        (lived((0.0, 3.0), (50.0, 62.0)), beats((1, 5), (54, 61)), 44.0),  # a bucket of the monitor is a second
        (lived((0.0, 3.0), (50.0, 62.0)), beats((1, 61)), 0.0),  # the job kept its machine
        (lived((0.0, 3.0), (50.0, 62.0)), beats((1, 61), every=15), 0.0),
        (lived((0.0, 58.5), (59.0, 62.0)), [], 0.0),
        (METADATA, [], 57.0),  # of a killed process, the steps are the last sign
    ],
)
def test_a_requeued_job_holds_no_machine_between_its_attempts(metadata, samples, between):
    report = report_from(interrupted(), samples, metadata=metadata, instance_type="ml.g5.xlarge")
    job = report_json(report).job
    assert job.between_attempts_s == pytest.approx(between, abs=1.5)
    assert job.interruptions.down_s == pytest.approx(58.0, abs=0.5)
    assert lost_time(report.metrics, report.verdict)[1] == pytest.approx(report.metrics.duration - between, abs=1.5)


def test_an_attempt_without_a_step_has_a_gap_behind_it_too():
    samples = beats((1, 20), (80, 91))
    metadata = lived((0.0, 1.0), (79.0, 92.0))[1:]
    metrics = metrics_of(training(100, node=SECOND, at=90.0), samples, metadata=metadata)
    assert metrics.interruptions[0] == 0
    assert metrics.between_attempts == pytest.approx(58.0, abs=1.5)


def two_scripts(rank=None, **end):
    """A job whose second training begins once the process of the first has ended."""
    names = (FIRST, SECOND) if rank is None else ("algo-1-0", "algo-1-0")
    rows = [
        *training(100, node=names[0]),
        (SAVE, "torch.save", 1.5, 0.001, names[0], 1),
        *training(80, node=names[1], at=60.0, forward=0.1),
        *(
            sampled(("forward", 0, 3.0, pid), node=name, at=at, pid=pid)
            for name, pid, at in zip(names, (11, 22), (2.0, 62.0), strict=True)
        ),
    ]
    metadata = tuple(
        {"rank": rank, "node": "algo-1", "pid": pid, "process_us": (START_S + at - 0.5) * 1e6} | more
        for pid, at, more in ((11, 0.9, {"end_us": (START_S + 3) * 1e6, "end_step": 100, **end}), (22, 59.9, {}))
    )
    metadata = tuple(one | {"start_us": one["process_us"] + 0.5e6} for one in metadata)
    return report_from(rows, metadata=metadata)


@pytest.mark.parametrize("rank", [None, 0])
def test_a_training_that_ended_by_itself_was_not_interrupted_by_the_next(rank):
    report = two_scripts(rank, end="exited")
    assert report.metrics.interruptions == (0, 0.0)
    assert [one.train_steps for one in report.metrics.ranks] == [80]
    assert not report.metrics.recorded(Save).count
    assert [one.places[-1].line for one in report.metrics.samples.stacks] == [22]
    assert "FAIL_SLOW" not in {one.kind.value for one in report.verdict.findings}
    text = " ".join(terminal_summary(report, width=100).split())
    assert "holds 2 trainings, one after the other; this is about the last" in text
    assert "interrupted" not in text


@pytest.mark.parametrize("end", [{"end": "killed"}, {"end": "stopped"}, {"end": "exited", "end_code": 3}])
def test_a_training_that_failed_or_was_stopped_goes_on_in_the_next(end):
    report = two_scripts(**end)
    assert report.metrics.interruptions[0] == 1
    assert not report.metrics.trainings
    assert {one.places[-1].line for one in report.metrics.samples.stacks} == {11, 22}
