"""The holder of a container, and the lines that add to it."""

import threading
from collections import UserDict
from pathlib import Path

import pytest

from sm_profiler.hook.memory import lines_adding_to

HERE = Path(__file__).read_text().splitlines()
history = {"loss": []}


class Cache:
    """Keeps what it is given."""

    def __init__(self):
        self.store, self.batches = {}, []

    def put(self, key, value):
        self.store[key] = value  # STORE

    def keep(self, batch):
        self.batches += [batch]  # BATCHES


class Settings(UserDict):
    """Has no lines here that add to it."""


def log(value):
    history["loss"].append(value)  # HISTORY


def marked(mark):
    return [number for number, line in enumerate(HERE, 1) if line.endswith(f"# {mark}")]


def found(container):
    text, lines = lines_adding_to(container)
    assert all(Path(file) == Path(__file__) for file, _, _ in lines)
    return text, [line for _, line, _ in lines], [function for *_, function in lines]


def test_a_list_in_a_dict_of_a_module():
    log(3)
    assert found(history["loss"]) == (f"history in {__name__}", marked("HISTORY"), ["log"])


def test_attributes_of_an_object():
    cache = Cache()
    cache.put("a", 1)
    cache.keep(2)
    assert found(cache.store) == ("store of Cache", marked("STORE"), ["put"])
    assert found(cache.batches) == ("batches of Cache", marked("BATCHES"), ["keep"])


def test_a_local_variable_of_a_function_that_runs():
    kept = []

    def train():
        losses = []
        for number in range(3):
            losses.append(number)  # LOSSES
            if number > 1:
                begun.set()
                done.wait(10)
        kept.append(None)

    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=train)
    thread.start()
    begun.wait(10)
    _, lines = lines_adding_to([])
    done.set()
    thread.join()
    assert [line for file, line, _ in lines if file == __file__][:1] == marked("LOSSES")


@pytest.mark.parametrize("container", [Settings({"a": 1}).data, {}])
def test_without_a_line_that_adds_nothing_is_named(container):
    assert not lines_adding_to(container)[1]


def test_a_file_that_cannot_be_parsed_names_nothing(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:")
    space = {"__name__": "broken", "values": []}
    exec(compile("def add():\n    values.append(1)", str(tmp_path / "broken.py"), "exec"), space)  # noqa: S102
    assert lines_adding_to(space["values"])[1] == []
