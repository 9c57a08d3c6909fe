"""Damaged and cut-off files of a job that is over: a warning beside the verdict, and less confidence in it."""

import html
import json

import pytest

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.damage import damage_of, doubted
from sm_profiler.diagnosis.model import Finding, Verdict
from sm_profiler.formats.system_writer import Measurement, SystemWriter
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.render.page import render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.report import build_report
from sm_profiler.report.build import data_quality
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from sm_profiler.source.profile import FileQuality
from tests.support.reports import verdict_of

START = 1_700_000_000
STEP = "Step:ModeKeys.TRAIN"
TRACE = "framework/pevents/2023111422/5_0-algo-1_pythontimeline.json"


@pytest.fixture
def job(tmp_path):
    """Write a job of two trace files and two minutes."""
    process = {"version": "1", "node": "algo-1", "rank": 0, "pid": 1, "start_us": START * 1_000_000}
    writer = TraceWriter(tmp_path, "0-algo-1", metadata=lambda: process)
    for step in range(400):
        at, args = START * 1_000_000 + 200_000 * step, json.dumps({"pid": 1, "step_num": str(step)})
        writer.write([TraceEvent(STEP, STEP, at, 190_000, args), TraceEvent("Forward", "Net", at, 189_000, args)])
        if step == 200:
            writer.finish()
    writer.close()
    system = SystemWriter(tmp_path, "algo-1")
    for second in range(80):
        system.write(START + second, [Measurement("cpu", "CPUUtilization", "cpu0", 50.0)])
    system.finish()
    for folder in ("system", "framework"):
        (tmp_path / folder / "training_job_end.ts").touch()
    return tmp_path


def report_on(job):
    return build_report(open_source(job, cache=False))


def test_an_intact_job_has_no_alarm(job):
    report = report_on(job)
    assert report.damage_alarm is None
    assert report.quality.damage is None


@pytest.mark.parametrize(
    ("pattern", "change", "parts"),
    [
        ("*pythontimeline.json", lambda data: data[: len(data) // 2], ["1 of ", " is damaged or cut off (", "steps are missing"]),
        ("*pythontimeline.json", lambda data: data[:0], ["without any content that can be read", "steps are missing", "1 of them is empty: the profile reached SM_PROFILER_LOCAL_MAX"]),
        ("*pythontimeline.json", lambda data: data[: data.rindex(b",\n")], ["steps are missing"]),
        ("*.algo-1.json", lambda data: data[:-20], ["system metrics are missing"]),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_beside_a_verdict_of_less_confidence(job, pattern, change, parts):
    before = report_on(job).verdict.main
    path = min(job.rglob(pattern))
    path.write_bytes(change(path.read_bytes()))
    report = report_on(job)
    assert path.name in report.damage_alarm
    assert all(part in report.damage_alarm for part in parts), report.damage_alarm
    shown = " ".join(terminal_summary(report, width=100).split())
    assert report.damage_alarm in shown
    assert html.escape(report.damage_alarm) in render_html(report)
    order = ["low", "medium", "high"]
    assert order.index(report.verdict.main.confidence) < max(order.index(before.confidence), 1)
    assert json.loads(to_json(report))["data_quality"]["damage"]["files"] == 1


def test_findings_from_gaps_have_low_confidence():
    def finding(kind, confidence):
        return Finding(kind, "x", (), "y", 0.2, confidence=confidence)

    verdict = Verdict(
        finding(Class.INITIALIZATION_BOUND, "high"), (finding(Class.GC_BOUND, "high"), finding(Class.LOGGING, "low"))
    )
    found = doubted(verdict, "a file is missing")
    assert [(one.confidence, one.doubt) for one in (found.main, *found.also)] == [
        ("low", "a file is missing"), ("medium", "a file is missing"), ("low", "")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        (TRACE, "repaired", "control characters replaced"), (TRACE, "repaired", "ends without a begin: 3"), (TRACE, "refused", "no records"),
        ("framework/pevents/2023111422/5_0-algo-1_horovod_timeline.json", "repaired", "array not closed"),
        (TRACE, "refused", "named by a time in the future"),
    ],
)  # fmt: skip
def test_intact_files_are_no_damage(path, status, reason):
    assert not damage_of([FileQuality(path, status, 0, reason)], 1).paths


FULL = "No space left on device (/data)"


def test_a_full_disk_is_the_reason_why_no_step_is_there():
    metadata = (
        {"node": "algo-1", "rank": 0, "pid": 1, "dropped": 0, "disk_error": ""},
        {"node": "algo-1", "rank": 0, "pid": 1, "dropped": 998, "disk_error": FULL},
        {"node": "algo-1", "rank": 1, "pid": 2, "dropped": 2, "disk_error": FULL},
    )
    main = verdict_of(metadata=metadata).main
    assert main.headline == "The hook was on, but no training step could be stored: the disk was full."
    sentence = data_quality([], metadata).damage.sentence
    assert sentence == f"The disk was full: 1,000 events of the loop could not be written, and are lost ({FULL})."


@pytest.mark.parametrize("error", ["", None])
def test_a_disk_that_was_slow_is_no_failure(error):
    metadata = ({"node": "algo-1", "rank": 0, "pid": 1, "dropped": 5, "disk_error": error},)
    assert data_quality([], metadata).damage is None
    assert "disk" not in verdict_of(metadata=metadata).main.headline
