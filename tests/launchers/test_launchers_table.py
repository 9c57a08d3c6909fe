"""The table of docs/launchers.md has a row for each launcher that is tested, and for each that cannot be."""

from pathlib import Path

from cases import CASES, NOT_RUN
from table import BEGIN, END, HEAD, rows, with_table

PAGE = Path(__file__).parents[2] / "docs" / "launchers.md"
RESULTS = """<testsuites><testsuite>
<testcase name="a"><properties><property name="launcher" value="`a`"/><property name="processes" value="one"/>
<property name="seen" value="12 of 12 steps"/><property name="missing" value="nothing"/></properties></testcase>
<testcase name="b"><properties><property name="launcher" value="`b`"/></properties><skipped message="no b"/></testcase>
<testcase name="c"><properties><property name="launcher" value="`c`"/></properties><failure message="x"/></testcase>
<testcase name="of the table itself"/>
</testsuite></testsuites>"""


def test_table_has_the_results_of_the_tests(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text(RESULTS)
    assert list(rows(path, {"`d`": "no d"})) == [
        ("`a`", "one", "12 of 12 steps", "nothing"),
        ("`b`", "-", "not run: no b", "-"),
        ("`c`", "-", "**the test failed**", "-"),
        ("`d`", "-", "not run: no d", "-"),
    ]
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_table(page, HEAD) == f"before\n{BEGIN}\n{HEAD}\n{END}\nafter\n"


def test_page_has_a_row_for_each_launcher():
    table = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert table.strip().startswith(HEAD.strip())
    names = [line.split(" | ")[0].removeprefix("| ") for line in table.strip().splitlines()[2:]]
    assert len(set(names)) == len(names)
    assert {*(case.name for case in CASES), *NOT_RUN} <= set(names)
    assert "failed" not in table
