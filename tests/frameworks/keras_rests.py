"""Run keras_loops.py with phases of every 7th step only, so that the hook rests in between: run by test_keras.py."""

import json
import runpy
import sys
from pathlib import Path

import keras  # arms the hook

from sm_profiler.hook import entry, overhead

hook = entry.get_hook()
assert hook is not None
assert keras.backend.backend() == "tensorflow"
session = hook.session
overhead.UNDER = sys.maxsize  # phases would become frequent again
session.tracker.every = session.controller._every_for_time = 7
session.find("tensorflow")._operators._due = []  # steps in which operators are counted are observed
runpy.run_path(str(Path(__file__).with_name("keras_loops.py")), run_name="__main__")
sys.stdout.write(json.dumps({"rested": session.tracker.rested}) + "\n")
