"""A report as a row among many jobs: machines, the slow one among them, loader, losses."""

import attrs
import pytest

from sm_profiler._version import __version__
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.rows import read_report, row_of, with_bill
from sm_profiler.metrics.metric_folds import JobInfo
from sm_profiler.metrics.step_fold import LoaderSettings
from sm_profiler.render.view import glance
from sm_profiler.report.build import report_of
from sm_profiler.report.prices import Prices
from sm_profiler.report.write import to_json
from tests.support.reports import START_S, metrics_of, training


def row(metrics):
    report = report_of(metrics, decide(Case(metrics, {})), {})
    found = read_report(to_json(report).encode())
    assert found.version == __version__
    return row_of(found, {}, FleetJob("", judged="report"))


SPOT = {
    "EnableManagedSpotTraining": True, "TrainingTimeInSeconds": 7200, "BillableTimeInSeconds": 2400,
    "TrainingJobStatus": "Completed",
}  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "description"),
    [
        ({"wait": 0.05}, {}),
        ({"wait": 0.02, "every": 50, "stall": 1.0}, {}),  # several findings
        ({}, {}),  # healthy
        ({"wait": 0.05}, {**SPOT, "TrainingJobStatus": "Failed", "FailureReason": "exit code 1"}),
        ({"wait": 0.05}, SPOT),
    ],
)
def test_report_and_fleet_agree_on_the_money_that_is_lost(steps, description):
    """The report priced a share of the verdict's, and the fleet what all repairs save."""
    metrics = metrics_of(training(600, **steps), description=description, instance_type="ml.g5.2xlarge")
    metrics = attrs.evolve(metrics, nodes=("algo-1",))
    report = report_of(metrics, decide(Case(metrics, {})), {}, job=JobInfo())
    resources = {"ResourceConfig": {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 1}}
    described = {**description, **resources} if description else {}
    job = with_bill(row_of(read_report(to_json(report).encode()), described, FleetJob("")), Prices.of())
    assert report.cost.lost_usd == pytest.approx(job.lost_usd, abs=1e-4)
    assert report.cost.lost_per_hour == pytest.approx(job.lost_usd / job.bill_usd * job.price, rel=1e-3, abs=1e-4)


def test_the_slow_machine_of_a_job_is_named():
    rows = []
    for node in range(4):
        work, meets = (0.009, 0.001) if node == 2 else (0.005, 0.005)
        rows += training(200, forward=work, backward=meets, node=f"algo-{node + 1}-0")
    records = tuple(
        {"node": f"algo-{node + 1}", "rank": 0, "pid": 1, "host": f"i-{node}", "version": "1"} for node in range(4)
    )
    metrics = metrics_of(rows, metadata=records)
    found = row(attrs.evolve(metrics, loader=LoaderSettings(0, 1)))
    assert found.verdict == "STRAGGLER"
    assert [node.host for node in found.nodes] == ["i-0", "i-1", "i-2", "i-3"]
    (slow,) = [node for node in found.nodes if node.slow]
    assert (slow.host, slow.relative) == ("i-2", pytest.approx(12.2 / 8.2, rel=0.05))
    assert found.loader_workers == 0
    assert found.losses[0].cause == "STRAGGLER"
    assert 0 < found.lost_s <= found.billable_s
    assert found.step_ms == pytest.approx(12.2, rel=0.05)


def test_a_requeued_job_keeps_the_machines_of_all_attempts():
    """It was charged to its first machine, which its process kept, and the job's node had the last."""
    rows = training(100, node="algo-1-1")
    start, end = ((START_S + seconds) * 1e6 for seconds in (rows[0][2], rows[-1][2] + rows[-1][3]))
    records = tuple(
        {"node": "algo-1", "pid": pid, "start_us": begin, "end_us": until, "version": "1", "identity": {"host": host}}
        for pid, host, begin, until in (
            (1, "gpu01", start, end),
            (2, "gpu02", end + 60e6, end + 60e6 + (end - start) / 3),
        )
    )
    metrics = metrics_of(rows, metadata=records)
    written = report_of(metrics, decide(Case(metrics, {})), {})
    (interruptions,) = (note for name, _, note in glance(written) if name == "Interruptions")
    assert interruptions.endswith("algo-1 on gpu01, then gpu02")  # as the terminal has it; the page had the last
    report = read_report(to_json(written).encode())
    assert report.job.hosts == {"algo-1": "gpu02"}
    assert [rank.host for rank in report.job.ranks] == ["gpu02"]
    assert list(report.job.moved["algo-1"]) == ["gpu01", "gpu02"]
    assert row(metrics).machines == {"gpu01": pytest.approx(0.75, abs=0.01), "gpu02": pytest.approx(0.25, abs=0.01)}
