"""Comparisons as Markdown, rendered as GitHub does."""

import pytest
from markdown_it import MarkdownIt

from sm_profiler.cli import main
from sm_profiler.render.words import escape, to_markdown
from sm_profiler.report.compare import compare, summarize_comparison
from tests.support.jobs import make_job
from tests.support.reports import report_from, training

HOSTILE = "</td><script>alert(1)</script> | [x](http://evil.example) `code` ![i](http://e.x/i.png) @team\n# title\\"


def rendered(text):
    return MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text)


def test_a_summary_is_a_table_that_names_the_changed_part():
    found = compare(report_from(training(200)), report_from(training(200, forward=0.006)))
    page = rendered(to_markdown(summarize_comparison(found), "regression>5%"))
    assert page.count("<table>") == 2
    assert "<strong>Failed: regression&gt;5%.</strong> Steps take 29" in page
    assert "forward" in page


def test_hostile_names_stay_text():
    found = compare(report_from(training(50), name=HOSTILE), report_from(training(50)))
    page = rendered(to_markdown(summarize_comparison(found)))
    assert "<script" not in page
    assert "<a " not in page
    assert "<img" not in page
    assert "<code>" not in page
    assert page.count("<tr>") == 3 + 1 + len(found.changes)


@pytest.mark.parametrize(
    "text", [HOSTILE.replace("\n", " "), "a_b_c *x* ~~y~~ <b> &amp; |", "https://example.com 1. + - #"]
)
def test_escaped_text_reads_as_it_was(text):
    from html import unescape

    assert unescape(rendered(escape(text))).strip() == f"<p>{text.strip()}</p>"


def test_command_writes_the_summary(tmp_path, capsys):
    job = make_job(tmp_path / "job", "--scenario", "cpu-only", "--minutes", "2")
    target = tmp_path / "summary.md"
    assert main(["compare", str(job), str(job), "--markdown", str(target), "--fail-on", "regression>5%"]) == 0
    assert target.read_text().startswith("<!-- sm-profiler compare -->\n### sm-profiler\n\nNo significant difference")
    assert main(["compare", str(job), str(job), "--markdown", str(tmp_path / "none" / "summary.md")]) == 2
    assert "summary.md: No such file or directory" in capsys.readouterr().err
