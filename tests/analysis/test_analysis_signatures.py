"""Arguments of smdebug's functions and classes, which programs may pass by name."""

import importlib
import inspect
import json
from pathlib import Path

import pytest

import sm_profiler

DATA = Path(__file__).parent.parent / "data/analysis/smdebug-1.0.34-signatures.json"
KNOWN = [
    (module, label, names)
    for module, functions in json.loads(DATA.read_text()).items()
    for label, names in functions.items()
]


@pytest.mark.parametrize(("module", "label", "names"), KNOWN, ids=[f"{one[0]}:{one[1]}" for one in KNOWN])
def test_takes_the_arguments_of_smdebug_by_name(module, label, names):
    sm_profiler.install_as_smdebug()
    found = importlib.import_module(module)
    for part in label.split("."):
        found = getattr(found, part)
    parameters = inspect.signature(found).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    assert takes_any or set(names) <= set(parameters)
