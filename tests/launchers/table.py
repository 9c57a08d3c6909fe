"""Run the tests of the launchers and write what they found into docs/launchers.md: `python tests/launchers/table.py`.

Given the file of an earlier `pytest --junitxml=FILE -o junit_family=xunit1`, do not run them again.  The row of a test that
was skipped has the reason.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "launchers.md"
BEGIN, END = "<!-- table: python tests/launchers/table.py -->\n", "<!-- end of table -->"
HEAD = "| started by | processes | seen | not seen |\n|---|---|---|---|\n"


def rows(results: Path, not_run: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each launcher."""
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - pytest wrote it
        found = {one.get("name", ""): one.get("value", "") for one in case.iter("property")}
        name = found.get("launcher")
        if name is None:
            continue
        skipped = case.find("skipped")
        if skipped is not None:
            yield name, "-", f"not run: {skipped.get('message', '')}", "-"
        elif case.find("failure") is not None or case.find("error") is not None:
            yield name, "-", "**the test failed**", "-"
        else:
            yield name, found["processes"], found["seen"], found["missing"]
    for name, reason in not_run.items():
        yield name, "-", f"not run: {reason}", "-"


def with_table(page: str, table: str) -> str:
    """Return a page with its table replaced."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert pattern.search(page)
    return pattern.sub(lambda _: f"{BEGIN}\n{table}\n{END}", page)


def main(results: str = "") -> None:
    sys.path.insert(0, str(HERE))
    from cases import NOT_RUN

    with tempfile.TemporaryDirectory() as folder:
        path = Path(results or f"{folder}/results.xml")
        if not results:
            options = ("-q", "-m", "long", f"--junitxml={path}", "-o", "junit_family=xunit1")
            subprocess.run([sys.executable, "-m", "pytest", *options, str(HERE)], check=False)
        lines = [f"| {' | '.join(cells)} |\n" for cells in rows(path, NOT_RUN)]
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), HEAD + "".join(lines)), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
