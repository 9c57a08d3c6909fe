"""The sampler and the search for holders under any Python, without a framework: prints what was seen, as JSON."""

import json
import os
import sys
import threading
import time
from types import SimpleNamespace

from sm_profiler.hook.memory import lines_adding_to
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.sampler import Sampler


class Store:
    """Holds a list."""

    def __init__(self):
        self.values = []

    def keep(self, value):
        self.values.append(value)


def slow(seconds):
    until, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for number in range(400):
            total += number * number
    return total


def sampled(run):
    """Return the innermost function that was seen most while something ran."""
    tracker = SimpleNamespace(
        global_step=3, step_start=time.perf_counter_ns(), mode=ModeKeys.TRAIN, in_fetch=0, in_backward=0, forward_key=1,
        in_optimizer=False, is_open=True, after_last_phase=False, in_compiled=False, rest=None, train_number=-1,
        evaluates_after=-2, latest=(3, time.perf_counter_ns()),
    )  # fmt: skip
    records, errors = [], []
    sampler = Sampler(
        records.append, tracker, threading.main_thread().ident.__int__, is_recording=lambda: True,
        on_error=lambda _, error: errors.append(repr(error)),
    )  # fmt: skip
    sampler.begin()
    run()
    sampler.close()
    functions = {}
    for *_, args in records:
        for _, _, milliseconds, _, _, frames in args["stacks"]:
            name = args["frames"][frames[-1]][2].rpartition(".")[2] if frames else ""
            functions[name] = functions.get(name, 0) + milliseconds
    return {"function": max(functions, key=functions.get, default=""), "errors": errors}


def in_child():
    """Return what a forked child sees of itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, json.dumps(sampled(lambda: slow(0.5))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(os.read(reading, 65536))


def traced():
    """Run under a debugger's trace function."""

    def trace(*_):
        return None  # as a debugger without breakpoints in a function

    sys.settrace(trace)
    try:
        slow(0.5)
    finally:
        sys.settrace(None)


def beside_threads():
    """Run beside other threads that compute."""
    ended = threading.Event()
    others = [threading.Thread(target=lambda: [sum(range(99)) for _ in iter(ended.is_set, True)]) for _ in range(2)]
    for one in others:
        one.start()
    slow(0.5)
    ended.set()
    for one in others:
        one.join()


def main():
    store = Store()
    store.keep(1)
    holder, lines = lines_adding_to(store.values)
    found = {
        "alone": sampled(lambda: slow(0.5)),
        "traced": sampled(traced),
        "beside threads": sampled(beside_threads),
        "forked": in_child(),
    }
    sys.stdout.write(json.dumps({"seen": found, "holder": holder, "functions": [function for *_, function in lines]}))


main()
