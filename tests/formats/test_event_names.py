"""Event names are defined once."""

import ast
from pathlib import Path

import sm_profiler
from sm_profiler.formats import event_names

PACKAGE = Path(sm_profiler.__file__).parent
ALSO_WORDS = {"Forward", "Optimizer", "GC", "Prefetch"}  # labels and titles use these too
WITHOUT_FORMATS = {"config/explaining.py"}  # a package that may not import formats


def test_event_names_are_not_retyped() -> None:
    names = {value for key, value in vars(event_names).items() if key.isupper()} - ALSO_WORDS
    retyped = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "event_names.py" and path.relative_to(PACKAGE).as_posix() not in WITHOUT_FORMATS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not retyped
