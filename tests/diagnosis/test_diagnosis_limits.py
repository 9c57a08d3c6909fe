"""Numbers that decide a verdict have a name and a reason in `limits.py`; elsewhere are units, counts and formulas."""

import ast
import re
from pathlib import Path

import pytest

from sm_profiler.diagnosis import limits

FOLDER = Path(limits.__file__).parent
DIVIDES = {
    0,
    1,
    2,
    60,
    100,
    3600,
    1e3,
    1e6,
    1e9,
    *(10.0**-power for power in (6, 9, 12)),
}  # units, and guards of divisions
FORMULAS = {
    "** 0.5",
    "**0.5",
    "(lengths, 0.5)",
    "inv_cdf(0.75)",
    "np.exp(-6 *",
}  # a standard error, a median, Pettitt's test
MOST = 58


def names():
    """Return each name of `limits.py` and the rest of its line, with that of the lines of a table."""
    text = Path(limits.__file__).read_text(encoding="utf-8")
    return {
        node.targets[0].id: ast.get_source_segment(text, node) + text.splitlines()[node.lineno - 1]
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
    }


def test_few_numbers_decide_and_each_has_its_reason():
    found = names()
    assert len(found) <= MOST
    assert [name for name, line in found.items() if not re.search(r"# \w.{8}", line)] == []


@pytest.mark.parametrize(
    "path",
    [
        FOLDER / "gpu.py",
        FOLDER / "repairing.py",
        *sorted((FOLDER / "profile").glob("*.py")),
        *(FOLDER / "table" / f"{name}.py" for name in ("causes", "operations", "patterns", "verdict", "whatif")),
    ],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_no_other_number_decides(path):
    text = path.read_text(encoding="utf-8")
    tree, shown = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("round", "shorten"):
            shown |= set(node.args[1:])
        if isinstance(node, ast.Subscript):
            shown |= set(ast.walk(node.slice))
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id.startswith("MAX_")
        ):
            shown.add(node.value)  # what is shown, or computed, of more
    found = [
        text.splitlines()[node.lineno - 1].strip()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and node not in shown
        and node.value not in DIVIDES
    ]
    assert [line for line in found if not any(part in line for part in FORMULAS)] == []
