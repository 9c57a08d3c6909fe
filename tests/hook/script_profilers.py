"""Profilers of a script, of all kinds, each in trainings whose detailed window begins at different steps.

Prints a line of JSON for each training: what the script's profiler recorded, without the hook and with it.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, schedule

from sm_profiler.config import load_profile
from sm_profiler.hook import entry
from sm_profiler.hook.settings import ConfigText

STEPS = 14
STARTS = (2, 4, 9)
OLDER = 6  # first step of the window if the script's profiler may be older than the hook
LINEAR = "aten::addmm"


def cycles(**kwargs):
    """A profiler with a schedule."""

    def run(train):
        seen = []

        def ready(of):
            seen.append(sum(event.name == LINEAR for event in of.events()))

        profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CPU], schedule=schedule(**kwargs), on_trace_ready=ready
        )
        with profiler:
            train(lambda _step: profiler.step())
        return seen

    return run


def at_steps(make, first, last):
    """A profiler from one step to another."""

    def run(train):
        seen, running = [], []

        def after(step):
            if step == first:
                running.append(make())
                running[0].__enter__()
            if step == last:
                running[0].__exit__(None, None, None)
                function_events = getattr(running[0], "function_events", None)
                found = function_events if function_events is not None else getattr(running[0], "events", list)()
                seen.append(sum(event.name == LINEAR for event in found))

        train(after)
        return seen

    return run


def prepared_long_before(train):
    """As callbacks of Lightning do: prepared, started and stopped in calls of their own."""
    profiler, seen = torch.profiler._KinetoProfile(activities=[ProfilerActivity.CPU]), []

    def after(step):
        if step == 1:
            profiler.prepare_trace()
        if step == 8:
            profiler.start_trace()
        if step == 11:
            profiler.stop_trace()
            seen.append(sum(event.name == LINEAR for event in profiler.events()))

    train(after)
    return seen


def on_a_thread(train):
    """On another thread than the training's."""
    seen, begins, ends = [], threading.Event(), threading.Event()

    def work():
        begins.wait()
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=2)
        ) as it:
            for _ in range(2):
                torch.nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2), torch.ones(2))
                it.step()
            ends.wait()
            torch.nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2), torch.ones(2))
        seen.append(sum(event.name == LINEAR for event in it.events()))

    thread = threading.Thread(target=work)
    thread.start()
    train(lambda step: begins.set() if step == 3 else ends.set() if step == 10 else None)
    thread.join()
    return seen


def stopped_twice(train):
    """Stopped once more than it was started: an error, as ever."""
    seen = []

    def after(_step):
        try:
            torch.autograd.profiler._disable_profiler()
        except RuntimeError as error:
            seen.append(str(error).partition("\n")[0])

    train(after)
    return seen


def annotated(train):
    """Annotations and an observer of execution traces, which are no profilers."""
    with autograd_profiler.record_function("all"), tempfile.NamedTemporaryFile(suffix=".json") as file:
        observer = torch.profiler.ExecutionTraceObserver().register_callback(file.name)
        observer.start()
        train(lambda _step: None)
        observer.stop()
        observer.unregister_callback()
        nodes = json.loads(Path(file.name).read_text())["nodes"]
    return [sum(node["name"] == LINEAR for node in nodes)]


KINDS = {
    **{
        f"schedule {wait} {warmup} {active} {repeat}": cycles(wait=wait, warmup=warmup, active=active, repeat=repeat)
        for wait, warmup in ((0, 1), (1, 1), (5, 2), (2, 4))
        for active, repeat in ((1, 0), (3, 2), (8, 1))
    },
    "skip_first": cycles(skip_first=4, wait=1, warmup=2, active=2),
    "whole run": at_steps(lambda: torch.profiler.profile(activities=[ProfilerActivity.CPU]), 0, STEPS - 1),
    "few steps": at_steps(lambda: torch.profiler.profile(activities=[ProfilerActivity.CPU]), 4, 5),
    "with stacks": at_steps(
        lambda: torch.profiler.profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True), 3, 6
    ),
    "autograd": at_steps(autograd_profiler.profile, 4, 7),
    "legacy": at_steps(torch.autograd.profiler_legacy.profile, 4, 7),
    "nvtx": at_steps(autograd_profiler.emit_nvtx, 4, 7),
    "itt": at_steps(autograd_profiler.emit_itt, 4, 7),
    "prepared long before": prepared_long_before,
    "stopped twice": stopped_twice,
    "annotated": annotated,
    # The last one: a script that stops once more than it started, after a profiler on another thread, may crash in torch.
    "on a thread": on_a_thread,
}


class Training:
    """Steps of a small model, with a hook that is installed before them."""

    def __init__(self):
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def seen(self, kind, install=lambda: None):
        def train(after):
            install()
            for step in range(STEPS):
                self.model(torch.ones(1, 2)).sum().backward()
                self.optimizer.step()
                after(step)

        try:
            return KINDS[kind](train)
        except (RuntimeError, AssertionError) as error:  # nothing to profile with here
            return [str(error).partition("\n")[0]]

    def hooked(self, kind, start):
        with tempfile.TemporaryDirectory() as folder:
            window = f'{{"StartStep": {start}, "NumSteps": 3, }}'
            text = json.dumps({"ProfilingParameters": {"LocalPath": folder, "DetailedProfilingConfig": window}})

            def install():
                entry.start(load_profile(text), ConfigText(text), here=True)

            if start == OLDER:
                found = self.seen(kind, install)
            else:
                install()
                found = self.seen(kind)
            session = entry.get_hook().session
            entry.uninstall()
            return {"found": found, "said": session.notes.get("detailed", ""), "failures": session.guard.failures}


def main():
    training = Training()
    for kind in sys.argv[1:] or KINDS:
        usual = training.seen(kind)
        for start in (*STARTS, OLDER):
            found = training.hooked(kind, start)
            print(json.dumps({"kind": kind, "start": start, "usual": usual, **found}), flush=True)  # noqa: T201


main()
