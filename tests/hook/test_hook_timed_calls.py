"""Calls that save or log: what is recorded of them, and that the wrappers change nothing."""

import builtins
import inspect
import json
import logging
import os
import pickle
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sm_profiler.formats.event_names import SAVE
from sm_profiler.formats.recorded import Log, Save
from sm_profiler.hook import entry, timed_calls
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.timed_calls import Target, TimedCalls

WRAPPED = [
    (torch, "save"),
    (np, "save"),
    (np, "savez"),
    (pickle, "dump"),
    (builtins, "print"),
    (logging.Logger, "handle"),
]


@pytest.fixture
def wrapped(session, monkeypatch):
    """Return the functions of a module that are timed by a fake clock, and the records of their calls."""
    records, now = [], [0]
    module = sys.modules["made_up"] = type(sys)("made_up")

    def save(length, path=None):
        now[0] += length
        return length

    module.save = save
    module.outer = lambda what: module.save(what, "/inner") + 1
    monkeypatch.setattr(session, "append", records.append)
    monkeypatch.setattr(session, "later", lambda task: task())
    monkeypatch.setattr(type(session), "is_recording", True)
    collector = TimedCalls(session, clock=lambda: now[0])
    collector.install((Target("made_up", ("save",), Save, (1, "path")), Target("made_up", ("outer",), Save)))
    module.collector = collector
    yield module, records
    collector.remove()
    del sys.modules["made_up"]


def test_a_call_that_imports_a_library_is_marked(wrapped, monkeypatch):
    module, records = wrapped
    module.collector._wrap_in("made_up", [Target("made_up", ("imports",), Save)])  # nothing yet of this name

    def imports():
        for number in range(60):
            monkeypatch.setitem(sys.modules, f"made_up_{number}", sys)
        module.save(5_000_000)

    module.imports = imports
    module.collector._wrap_in("made_up", [Target("made_up", ("imports",), Save)])
    module.imports()
    module.imports()
    assert [record[5].get("imported") for record in records] == [60, None]


def test_a_long_call_is_an_event_with_its_file_and_line(wrapped, tmp_path):
    module, records = wrapped
    (file := tmp_path / "weights").write_bytes(b"x" * 321)
    assert module.save(5_000_000, path=file) == 5_000_000
    ((phase, name, start, end, _, args),) = records
    assert (phase, name, end - start) == (SAVE, "made_up.save", 5_000_000)
    assert args["path"] == str(file)
    assert args["bytes"] == 321
    assert args["file"] == __file__
    assert args["function"] == "test_a_long_call_is_an_event_with_its_file_and_line"


def test_short_calls_are_summed_up(wrapped):
    module, records = wrapped
    for _ in range(7):
        module.save(300_000)
    assert records == []
    module.collector.beat()
    ((phase, name, start, end, _, args),) = records
    assert (phase, name, end - start, args["calls"]) == (SAVE, "made_up.save", 2_100_000, 7)
    assert args["file"] == __file__
    module.collector.beat()
    assert len(records) == 1


def test_a_call_inside_another_is_part_of_it(wrapped):
    module, records = wrapped
    assert module.outer(2_000_000) == 2_000_001
    ((_, name, start, end, _, args),) = records
    assert (name, end - start, args["path"]) == ("made_up.outer", 2_000_000, "/inner")


def test_many_long_calls_are_summed_up_too(wrapped):
    module, records = wrapped
    for _ in range(timed_calls.MAX_LONG + 5):
        module.save(1_000_000)
    assert len(records) == timed_calls.MAX_LONG
    module.collector.beat()
    assert records[-1][5]["calls"] == 5


def test_other_threads_and_fetches_are_not_timed(wrapped, session):
    module, records = wrapped
    thread = threading.Thread(target=module.save, args=(9_000_000,))
    thread.start()
    thread.join()
    session.tracker.in_fetch = 1
    module.save(9_000_000)
    module.collector.beat()
    assert records == []


def test_exceptions_pass_through(wrapped):
    module, _ = wrapped
    with pytest.raises(TypeError, match="unsupported operand"):
        module.save("text")
    assert module.save(1) == 1


def test_a_failing_record_switches_the_collector_off(wrapped, session, monkeypatch):
    module, _ = wrapped
    monkeypatch.setattr(session, "append", lambda _: 1 / 0)
    assert module.save(5_000_000) == 5_000_000
    assert session.guard.is_off(TimedCalls.name)
    assert not hasattr(module.save, "__wrapped__")
    assert module.save(5_000_000) == 5_000_000


def test_a_line_that_cannot_be_found_harms_no_call(wrapped, session, monkeypatch):
    module, _ = wrapped
    monkeypatch.setattr(timed_calls, "user_line", lambda: 1 / 0)
    assert module.save(5) == 5
    assert session.guard.is_off(TimedCalls.name)


@pytest.mark.usefixtures("session")
def test_wrappers_look_like_the_functions_and_are_removed():
    originals = [getattr(owner, name).__wrapped__ for owner, name in WRAPPED]
    for (owner, name), original in zip(WRAPPED, originals, strict=True):
        wrapper = getattr(owner, name)
        assert (wrapper.__name__, wrapper.__doc__) == (name, original.__doc__)
        assert wrapper.__module__ in (original.__module__, owner.__name__)  # that it is found in
        try:
            expected = inspect.signature(original)
        except ValueError:
            continue
        assert inspect.signature(wrapper) == expected
    entry.uninstall()
    assert [getattr(owner, name) for owner, name in WRAPPED] == originals


def test_a_wrapper_inside_another_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    original = torch.save
    entry.install()
    ours = torch.save
    monkeypatch.setattr(torch, "save", mine := partial(ours))
    entry.uninstall()
    assert torch.save is mine
    torch.save(torch.ones(2), tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt"), torch.ones(2))
    monkeypatch.setattr(torch, "save", original)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", ["print", "save", "log"])
def test_compiled_code_breaks_at_the_call_only(session, tmp_path, what):
    done = {
        "print": lambda: print("inside"),  # noqa: T201
        "save": lambda: torch.save(1, tmp_path / "x"),
        "log": lambda: logging.getLogger("mine").warning("inside"),
    }[what]

    def step(x):
        y = x * 2
        done()
        return y + 1

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 2  # one before and one after the call, as without the hook
    assert len(counters["graph_break"]) == 1
    torch._dynamo.reset()


def test_logged_records_reach_their_handlers(session, caplog):
    with caplog.at_level("INFO"):
        logging.getLogger("mine").info("step %d", 3)
    assert "step 3" in caplog.text
    assert [record.funcName for record in caplog.records] == ["test_logged_records_reach_their_handlers"]
    assert Log in {target.kind for target in timed_calls.TARGETS}


def test_patches_restore_any_attribute_and_delete_what_was_not_there():
    class Base:
        inherited = 1

    class Owner(Base):
        value = property(lambda _: 2)

    before, patches = vars(Owner)["value"], Patches(pytest.fail)
    patches.put(Owner, "value", property(lambda _: 3))
    patches.put(Owner, "inherited", 4)
    patches.put(Owner, "missing", None)
    assert (Owner().value, Owner.inherited, Owner.missing) == (3, 4, None)
    patches.remove()
    assert vars(Owner)["value"] is before
    assert "inherited" not in vars(Owner)
    assert not hasattr(Owner, "missing")


def test_the_outermost_calls_count_as_beside_the_step(wrapped, session):
    module, _ = wrapped
    during = []
    module.save, save = lambda *args: during.append(session.aside.depth) or save(*args), module.save
    module.outer(5_000_000)
    module.save(3_000_000)
    assert during == [1, 0]
    assert (session.aside.depth, session.aside.ns) == (0, 8_000_000)


class Address(os.PathLike):
    def __fspath__(self):
        raise AssertionError("the hook runs code of the script")


class Broken(os.PathLike):
    def __fspath__(self):
        raise RuntimeError("not yet")

    __str__ = __fspath__

    @property
    def __class__(self):
        raise RuntimeError("a proxy without its object")


class Text(str):
    __slots__ = ()

    def __str__(self):
        raise TypeError("no text")

    __hash__ = None


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (Address, None),
        (Broken, None),
        (lambda: Text("/weights"), "/weights"),
        (lambda: b"/weights", "/weights"),
        (Path, "."),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_path_of_the_scripts_own_class_harms_no_call(make, shown, inside, wrapped, session):
    module, records = wrapped
    path = make()
    module.outer = lambda: module.save(5_000_000, path)
    if inside:
        module.collector._wrap_in("made_up", [Target("made_up", ("outer",), Save)])
    assert module.outer() == 5_000_000
    assert [record[5].get("path") for record in records] == [shown]
    assert type(records[0][5].get("path", "")) is str
    assert session.guard.failures == {}
