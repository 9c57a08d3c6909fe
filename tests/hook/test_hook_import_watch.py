"""Actions that run once a module is loaded."""

import importlib
import importlib.util
import sys

import pytest

from sm_profiler.hook.patches import LoadFinder, when_loaded


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "awaited_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, LoadFinder)]
    yield "awaited_module"
    sys.modules.pop("awaited_module", None)


def test_an_action_waits_for_the_import_and_not_for_the_question_whether_a_module_exists(module):
    seen = []
    when_loaded(module, lambda: seen.append(sys.modules[module].value))
    for _ in range(2):
        assert importlib.util.find_spec(module) is not None  # TensorFlow asks for Keras before anything imports it
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]


def test_a_loaded_module_calls_at_once(module):
    importlib.import_module(module)
    seen = []
    when_loaded(module, lambda: seen.append(True))
    assert seen == [True]
