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


class _Loads:
    """A loader whose objects take no attributes."""

    __slots__ = ()

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.value = 1


class _Statically:
    """A loader that is a class, as that of modules that are built into Python."""

    @staticmethod
    def create_module(_spec):
        return None

    @staticmethod
    def exec_module(module):
        module.value = 1


class _Finds:
    def __init__(self, loader):
        self.loader, self.fails = loader, False

    def find_spec(self, name, path=None, target=None):
        if self.fails and name == "awaited_module":
            raise ImportError("not now")
        mine = name in {"awaited_module", "another_module"}
        return importlib.util.spec_from_loader(name, self.loader) if mine else None


@pytest.fixture
def finds(module, request):
    found = _Finds(request.param)
    sys.meta_path.insert(0, found)
    yield found
    sys.modules.pop("another_module", None)


@pytest.mark.parametrize("finds", [_Loads(), _Statically], indirect=True)
def test_a_loader_that_takes_no_attribute_loads_its_module(module, finds):
    seen = []
    when_loaded(module, lambda: seen.append(sys.modules[module].value))
    assert importlib.util.find_spec(module) is not None
    imported = importlib.import_module(module)
    assert seen == [1]
    assert imported.__loader__ is imported.__spec__.loader is finds.loader
    assert importlib.reload(imported).value == 1


@pytest.mark.parametrize("finds", [type("_Shared", (_Loads,), {})()], indirect=True)
def test_a_loader_of_several_modules_reports_the_awaited_one(module, finds):
    seen = []
    when_loaded(module, lambda: seen.append(sys.modules[module].value))
    for _ in range(2000):
        importlib.util.find_spec(module)
    importlib.import_module("another_module")
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]
    assert not vars(finds.loader)


@pytest.mark.parametrize("finds", [_Loads()], indirect=True)
def test_an_import_that_failed_is_still_awaited(module, finds):
    seen = []
    when_loaded(module, lambda: seen.append(sys.modules[module].value))
    finds.fails = True
    with pytest.raises(ImportError, match="not now"):
        importlib.import_module(module)
    finds.fails = False
    importlib.import_module(module)
    assert seen == [1]
