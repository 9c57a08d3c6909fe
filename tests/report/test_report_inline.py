"""The report in a notebook's cell."""

import html
import re
from types import SimpleNamespace

from sm_profiler.formatting import unbroken
from sm_profiler.report import show_report
from sm_profiler.report.write import ShownReport
from sm_profiler.source import open_source
from tests.support.jobs import make_job
from tests.support.reports import report_from, training


def test_the_page_is_in_a_frame_without_rights(tmp_path):
    job = make_job(tmp_path / "job", "--scenario", "dataloader-slow", "--minutes", "2", "--gpus", "1")
    shown = show_report(job)
    frame = shown._repr_html_()
    assert 'sandbox="allow-scripts"' in frame
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
    assert page.startswith("<!")
    assert unbroken(shown.report.verdict.main.headline) in html.unescape(page)
    assert "INPUT_BOUND" in repr(shown) or shown.report.verdict.main.headline in repr(shown)
    assert show_report(open_source(job)).report.verdict.kind is shown.report.verdict.kind
    of_notebook = SimpleNamespace(name="job", profiler_s3_output_path=str(job))
    assert show_report(of_notebook).report.verdict.kind is shown.report.verdict.kind


def test_names_cannot_leave_the_frame():
    frame = ShownReport(report_from(training(50), name='"></iframe><script>alert(1)</script>'))._repr_html_()
    assert frame.count("<") == 2
    assert frame.count('"') == 8
