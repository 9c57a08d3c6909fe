"""A report as a row among many jobs: machines, the slow one among them, loader, losses."""

import attrs
import pytest
from report_helpers import metrics_of, training

from sm_profiler._version import __version__
from sm_profiler.diagnosis.decide import decide
from sm_profiler.diagnosis.judges import JudgeContext
from sm_profiler.fleet.description import facts_of
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.report_json import read_report
from sm_profiler.fleet.rows import row_of
from sm_profiler.metrics.step_fold import LoaderSettings
from sm_profiler.report.build import report_of
from sm_profiler.report.write import to_json


def row(metrics):
    report = report_of(metrics, decide(JudgeContext(metrics, {})), {})
    found = read_report(to_json(report).encode())
    assert found.version == __version__
    return row_of(found, facts_of({}), FleetJob("", judged="report"))


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
