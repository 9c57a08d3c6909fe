"""Run keras_loops.py with phases of every 7th step only, so that the hook rests in between: run by test_keras.py."""

import json
import runpy
import sys
from pathlib import Path

import keras  # arms the hook
from keras.src.callbacks.callback_list import CallbackList

from sm_profiler.hook import entry, overhead

hook = entry.get_hook()
assert hook is not None
assert keras.backend.backend() == "tensorflow"
session = hook.session
overhead.UNDER = sys.maxsize  # phases would become frequent again
session.tracker.every = session.controller._every_for_time = 7
adapter, ours = session.find("keras"), set()
begins = adapter._rests


def rests(*args):
    begun = begins(*args)
    if begun:
        code = {name: getattr(method, "__code__", None) for name, method in vars(CallbackList).items()}
        ours.update(
            name for name, of in code.items() if "train_batch" in name and of and "sm_profiler" in of.co_filename
        )
    return begun


adapter._rests = rests
session.find("tensorflow")._operators._due = []  # steps in which operators are counted are observed
runpy.run_path(str(Path(__file__).with_name("keras_loops.py")), run_name="__main__")
sys.stdout.write(json.dumps({"rested": session.tracker.rested, "wrapped": sorted(ours)}) + "\n")
