"""Wrappers are pickled as the functions they replace, and found where no hook is installed."""

import copy
import inspect
import os
import pickle
import threading
from importlib import import_module
from multiprocessing.reduction import ForkingPickler

import pytest

torch = pytest.importorskip("torch")
cloudpickle = pytest.importorskip("cloudpickle")

from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.jax.calls import Call
from sm_profiler.hook.patches import Patches, after, timed
from sm_profiler.hook.pytorch.adapter import Hooks

load = pickle.loads
PICKLERS = [
    lambda value: pickle.dumps(value, 2),
    pickle.dumps,
    pickle._dumps,  # Python's own pickler in Python
    lambda value: bytes(ForkingPickler.dumps(value)),
    cloudpickle.dumps,
]
PLACES = [
    (torch, "save"), (torch.jit, "save"), (os, "fsync"), (os, "_exit"), (pickle, "dump"), (threading, "excepthook"),
    (torch.optim.SGD, "__init__"), (torch.autograd, "backward"),
]  # fmt: skip


@pytest.fixture
def patches():
    found = Patches(pass_on)
    yield found
    found.remove()


@pytest.mark.parametrize("pickler", PICKLERS)
@pytest.mark.parametrize(("owner", "name"), PLACES)
def test_a_replaced_function_is_pickled_by_the_name_of_its_place(patches, owner, name, pickler):
    original = vars(owner)[name]
    signature = inspect.signature(original)
    patches.replace(owner, name, lambda function: timed(function, lambda *_: None, None, pass_on))
    value = vars(owner)[name]
    assert value is not original
    assert inspect.signature(value) == signature
    text = pickler(value)
    assert load(text) is value
    patches.remove()
    assert load(text) is original
    assert b"sm_profiler" not in text


class Base:
    def method(self):
        """Return nothing."""


class Derived(Base):
    pass


def test_an_inherited_method_is_named_by_the_class_that_gets_the_wrapper(patches):
    patches.put(Derived, "method", after(Derived.method, lambda *_: None, pass_on))
    assert load(pickle.dumps(Derived.method)) is Derived.method
    assert load(pickle.dumps(Base.method)) is Base.method


class FakeJit:
    """A compiled function, which is pickled by value."""

    def __init__(self, function):
        self.function = function
        self.__name__ = "update"

    def __call__(self, *args):
        return self.function(*args)


@pytest.mark.parametrize("pickler", PICKLERS)
def test_what_the_script_compiles_is_pickled_as_what_jax_made(pickler):
    made = FakeJit(abs)
    call = Call(None, made, made, threading.Lock())
    found = load(pickler(call))
    assert (type(found), found(-2)) == (FakeJit, 2)
    assert type(copy.deepcopy(call)) is FakeJit
    assert call.__name__ == "update"


def test_a_compiled_method_is_bound():
    class Model:
        scale = 3
        call = Call(type("Function", (), {"part": None})(), None, lambda self, value: self.scale * value, None)

    assert Model().call(2) == 6


def test_an_optimizer_of_the_script_is_pickled_by_value_without_the_hooks(session):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    Own.__module__ = "__main__"
    optimizer = Own([torch.ones(1, requires_grad=True)], lr=0.1)
    assert isinstance(import_module("torch.optim.optimizer")._global_optimizer_pre_hooks, Hooks)
    text = cloudpickle.dumps(optimizer)
    assert b"sm_profiler" not in text
    assert load(text).param_groups[0]["lr"] == 0.1
