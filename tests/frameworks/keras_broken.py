"""Run keras_loops.py with every method of the hook's adapters and collectors raising an error: run by test_keras.py."""

import runpy
import sys
from functools import wraps
from pathlib import Path

import keras  # arms the hook

from sm_profiler.hook import entry
from sm_profiler.hook import keras as hooked
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.session import Session
from sm_profiler.hook.steps import StepTracker

KEPT = {"install", "remove", "failed", "forked", "close", "finish", "exit"}  # called as the hook starts, fails or ends


def breaking(name, wraps_one):
    @wraps(wraps_one)
    def fails(*_args, **_kwargs):
        raise RuntimeError(f"broken on purpose: {name}")

    return fails


def break_methods(kind):
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("__") and name not in KEPT and not name.startswith("_wrap"):
            setattr(kind, name, breaking(name, method))


hook = entry.get_hook()
assert hook is not None
assert keras.backend.backend()
for name in (
    "_begin", "_end", "_finish", "_settle", "_epoch_begins", "_epoch_ends", "_correct", "_count", "_compiles_again",
    "_compiled_again", "_apply_begins", "_apply_ends",
):  # fmt: skip
    setattr(hooked.KerasAdapter, name, breaking(name, getattr(hooked.KerasAdapter, name)))
for kind in (hooked.Callbacks, hooked.Inputs):
    break_methods(kind)
found = hook.session.find("keras")
found.remove()
hooked.KerasAdapter.__init__(found, hook.session)
found.install()  # with wrappers around the broken methods
break_methods(StepTracker)
if keras.backend.backend() == "tensorflow":
    from sm_profiler.hook.tensorflow import compilations, pipelines, stopwatch

    parts = {
        stopwatch.Stopwatch: ("rows", "batches", "_find_graph", "_record"),
        stopwatch.Table: ("create", "add"),
        compilations.Retracing: ("_describe", "start"),
        pipelines.Stages: ("beat", "iterator_ended", "batch", "close", "_look"),
    }
elif keras.backend.backend() == "jax":
    from sm_profiler.hook.jax import compilations, loop

    parts = {
        kind: [name for name in vars(kind) if callable(getattr(kind, name)) and name[:2] != "__" and name != "reset"]
        for kind in (loop.Loop, compilations.Compilations)
    }
else:
    parts = {}
for kind, names in parts.items():
    for name in names:
        setattr(kind, name, breaking(name, vars(kind)[name]))
Session.fail = lambda _session, _error: None  # nothing is switched off, so that all calls break
Session.switch_off = lambda _session, _collector, _error: None
Guard.is_off = lambda _guard, _collector: False
sys.argv[0] = "keras_loops.py"
runpy.run_path(str(Path(__file__).with_name("keras_loops.py")), run_name="__main__")
