"""The tool that tries versions: what it writes into the page, and what it makes of programs that fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import try_versions

    return try_versions


def test_every_table_has_its_place_in_the_page(tool):
    page = tool.PAGE.read_text()
    for table in {row.table for row in tool.ROWS}:
        _, _, rest = page.partition(f"\n<!-- {table} -->\n")
        shown, end, _ = rest.partition(f"<!-- end of {table} -->\n")
        assert end
        titles = (*tool.HEADS[table], "tried on", "outcome")
        assert not shown or shown.startswith(f"\n| {' | '.join(titles)} |\n|---|"), "no table without a row"
        assert not shown or "<!-- 3." in shown


def test_rows_of_a_table_have_names_of_their_own(tool):
    named = [(row.table, row.key) for row in tool.ROWS]
    assert len(set(named)) == len(named)


def test_row_is_replaced_in_the_order_of_the_tool(tool, tmp_path):
    page = tmp_path / "versions.md"
    page.write_text("above\n<!-- sdk -->\n<!-- end of sdk -->\nbelow\n")
    first, last = (row for row in tool.ROWS if row.key in {"3.11 sagemaker==2.257.7", "3.10 sagemaker==2.200.0"})
    for row, outcome in ((last, "1 failed"), (first, "2 passed"), (last, "3\n|passed")):
        tool.write(row, ["9.9"], outcome, page)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 3")]
    assert [line.split("|")[4].split("<")[0].strip() for line in rows] == ["2 passed", "3 /passed"]
    title = "| Python | SDK | tried on | outcome |\n|---|---|---|---|\n"
    assert page.read_text().startswith(f"above\n<!-- sdk -->\n\n{title}| 3.10 ")
    assert page.read_text().endswith("below\n")


@pytest.mark.parametrize(("stderr", "shown"), [("", "exited with 3 and printed nothing"), ("a\nlast\n", "last")])
def test_program_without_results_is_a_failed_row(tool, monkeypatch, stderr, shown):
    ended = subprocess.CompletedProcess([], 3, "", stderr)
    monkeypatch.setattr(tool.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(tool.RowError, match=f"does not run: .*{shown}"):
        tool.run_sdk3(sys.executable)


def test_unsupported_row_has_its_reason(tool):
    (row,) = (row for row in tool.ROWS if row.key == "3.12 sagemaker==3.0")
    assert tool.failure(row, tool.RowError("x")).startswith("not supported, installed by itself it has no `sagemaker")
    (row,) = (row for row in tool.ROWS if row.key == "3.11 sagemaker==2.257.7")
    assert tool.failure(row, tool.RowError("x")) == "**fails**: x"


def test_python_that_is_not_installed_is_no_failure(tool):
    with pytest.raises(tool.NotRun, match=r"Python 2\.1 is not installed"):
        tool.find_python("2.1")


def test_examples_and_docs_use_a_supported_pytorch(tool):
    tried = re.findall(
        r"^\| 3\.\d+ \| (\d+\.\d+)\S* \| \S+ \| \S+ \| (not supported)?", tool.PAGE.read_text(), re.MULTILINE
    )
    supported = {version for version, refused in tried if not refused}
    assert supported
    pages = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    texts = {page: page.read_text() for page in pages}
    used = {
        (page.name, version)
        for page, text in texts.items()
        for version in re.findall(r"pytorch-training:(\d+\.\d+)", text)
        + re.findall(r"\bPyTorch\((?:.|\n){0,800}?framework_version=\"(\d+\.\d+)", text)
    }
    assert len(used) > 5
    assert {(name, version) for name, version in used if version not in supported} == set()
