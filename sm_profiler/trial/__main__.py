"""Run a script until it iterates over its DataLoader, try the loader, and end: `python -m sm_profiler.trial SCRIPT ARGS`.

Fresh copies of the loader are measured under other settings. The process ends without returning to the script: none of
its `finally` blocks, handlers or exit functions run, so it can neither train nor write a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.processes import run_as_main
from sm_profiler.settings import TRIAL
from sm_profiler.trial import LoaderSetting, LoaderTrial, LoaderTrials, Plan

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset
except ImportError as missing:
    sys.exit(f"sm-profiler: PyTorch cannot be imported: {missing}")

MAX_FIRST_S = 60.0  # until a worker's first batch; a worker that needs longer is taken for dead
MAX_EPOCHS = 10_000  # in the measured time, for loaders that have hardly a batch

MEASURED, INTERRUPTED = 0, 130  # exit codes


def try_loader(loader: Any, plan: Plan, report: Callable[[LoaderTrials], object]) -> LoaderTrials:
    rounds = _Rounds(loader, plan, report)
    own = own_setting(loader)
    rounds.measure(own)
    for workers in plan.workers:
        rounds.measure(LoaderSetting(workers, plan.prefetch[0] if workers else None, own.pin_memory))
    if (best := rounds.outcome.best()) is not None and best.num_workers:
        for prefetch in plan.prefetch[1:]:
            rounds.measure(attrs.evolve(best.setting, prefetch_factor=prefetch))
    if torch.cuda.is_available() and (best := rounds.outcome.best()) is not None:
        rounds.measure(attrs.evolve(best.setting, pin_memory=True))
    return rounds.outcome


def own_setting(loader: Any) -> LoaderSetting:
    return LoaderSetting(
        loader.num_workers, loader.prefetch_factor if loader.num_workers else None, bool(loader.pin_memory)
    )


class _Rounds:
    """Trials so far; each setting is measured once."""

    def __init__(self, loader: Any, plan: Plan, report: Callable[[LoaderTrials], object]) -> None:
        self._loader = loader
        self._plan = plan
        self._report = report
        self._states = _random_states(loader)
        self._worker_bytes = 0
        self.outcome = _describe(loader)

    def measure(self, setting: LoaderSetting) -> None:
        """Measure a setting and report it."""
        if any(trial.setting == setting for trial in self.outcome.trials):
            return
        trial = LoaderTrial(**attrs.asdict(setting), current=setting == own_setting(self._loader))
        if self._plan.memory and setting.num_workers * self._worker_bytes > self._plan.memory:
            trial.problem = "left out: its workers would need too much memory"
        else:
            for restore, state in self._states:  # all settings load the same samples
                restore(state)
            self._worker_bytes = max(self._worker_bytes, _measure(self._loader, trial, self._plan.seconds))
        self.outcome = attrs.evolve(self.outcome, trials=(*self.outcome.trials, trial))
        self._report(self.outcome)


def _describe(loader: Any) -> LoaderTrials:
    return LoaderTrials(
        (),
        type(loader.dataset).__name__,
        loader.batch_size if isinstance(loader.batch_size, int) else None,
        bool(loader.persistent_workers),
        isinstance(loader.dataset, IterableDataset),
    )


def copy_of(loader: Any, setting: LoaderSetting) -> DataLoader[Any]:
    """Return a new loader of the same dataset, sampler and collate function with other settings."""
    arguments: dict[str, Any] = {
        "num_workers": setting.num_workers,
        "pin_memory": setting.pin_memory,
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if setting.num_workers:
        arguments["prefetch_factor"] = setting.prefetch_factor
        arguments["timeout"] = max(float(loader.timeout), MAX_FIRST_S)
        arguments["multiprocessing_context"] = loader.multiprocessing_context
    if isinstance(loader.dataset, IterableDataset):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": None, "sampler": loader.sampler}
    return DataLoader(loader.dataset, **arguments)


def _measure(loader: Any, trial: LoaderTrial, seconds: float) -> int:
    """Measure a setting and return the bytes that each of its workers took."""
    iterator: Any = None
    worker_bytes = 0
    # each worker delivers its first batch at about the same time; the rate is that of the batches after these
    first_round = max(trial.num_workers, 1)
    begin = time.perf_counter()
    try:
        own = _quietly(lambda: copy_of(loader, trial.setting))
        start = last = begin
        for _ in range(MAX_EPOCHS):
            iterator = _quietly(lambda: iter(own))
            before = trial.batches
            for _batch in iterator:
                last = time.perf_counter()
                trial.batches += 1
                if trial.first_s is None:
                    trial.first_s = last - begin
                if trial.batches == first_round:
                    start = last
                if trial.batches >= first_round and last - start >= seconds:
                    break
            worker_bytes = max(worker_bytes, _bytes_of_workers(iterator))
            if trial.batches == before or (trial.batches > first_round and last - start >= seconds):
                break
        if not trial.batches:
            trial.problem = "the loader has no batch"
        elif trial.batches > first_round and last > start:
            trial.per_second = (trial.batches - first_round) / (last - start)
        else:
            trial.per_second = trial.batches / max(last - begin, 1e-9)
    except Exception as error:  # the dataset's code may raise anything
        trial.per_second = None
        text = str(error).strip().splitlines()
        trial.problem = f"{type(error).__name__}: {text[-1] if text else ''}".rstrip(": ")
    finally:
        _end(iterator)
    return worker_bytes


def _quietly(make: Callable[[], Any]) -> Any:
    """Call a function without the warning about more workers than cores: the results show what they are worth."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return make()


def _end(iterator: Any) -> None:
    """Stop the workers of an iterator now."""
    with contextlib.suppress(Exception):
        stop = getattr(iterator, "_shutdown_workers", None)
        if stop is not None:
            stop()


def _bytes_of_workers(iterator: Any) -> int:
    """Return the private memory of the largest worker; 0 if it cannot be read."""
    sizes = [0]
    for worker in getattr(iterator, "_workers", ()):
        with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
            lines = Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines()
            sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:")]
    return max(sizes)


def _random_states(loader: Any) -> list[tuple[Callable[[Any], object], Any]]:
    """Return the random generators' states, each with the function that restores it."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    for owner in (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            states.append((generator.set_state, generator.get_state()))
    return states


class Watch:
    """Waits for the script to iterate over the loader of the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pid = os.getpid()
        self._seen: dict[int, Any] = {}  # loaders by id, kept so that no id is used twice
        self._busy = False

    def install(self) -> None:
        """Replace `DataLoader.__iter__`."""
        original: Any = DataLoader.__iter__

        def __iter__(loader: Any) -> Any:  # replaces the method
            if os.getpid() == self._pid and not self._busy and threading.current_thread() is threading.main_thread():
                self._arrive(loader)
            return original(loader)

        DataLoader.__iter__ = __iter__  # type: ignore[method-assign]

    def _arrive(self, loader: Any) -> None:
        """Try the loader and end the process, if the plan means this loader."""
        self._seen.setdefault(id(loader), loader)
        number = self._plan.loader
        if len(self._seen) < number if number else not torch.is_grad_enabled():
            return
        if number and list(self._seen).index(id(loader)) + 1 != number:
            return
        self._busy = True
        self._end(loader)

    def _end(self, loader: Any) -> None:
        say("the script has reached its DataLoader; it ends here, before any training")
        latest = LoaderTrials((), loaders=len(self._seen))

        def report(outcome: LoaderTrials) -> None:
            nonlocal latest
            latest = attrs.evolve(outcome, loaders=len(self._seen))
            write(self._plan, latest)
            trial = outcome.trials[-1]
            speed = f"{trial.per_second:.4g} batches/s" if trial.per_second else trial.problem
            say(f"num_workers={trial.num_workers}, prefetch_factor={trial.prefetch_factor}: {speed}")

        code = MEASURED
        try:
            try_loader(loader, self._plan, report)
        except KeyboardInterrupt:
            code = INTERRUPTED
            write(self._plan, attrs.evolve(latest, interrupted=True))
        leave(code)


def write(plan: Plan, outcome: LoaderTrials) -> None:
    Path(plan.result).write_text(json.dumps(attrs.asdict(outcome)))


def say(text: str) -> None:
    """Print one of our lines among the script's output."""
    sys.stderr.write(f"sm-profiler: {text}\n")
    sys.stderr.flush()


def leave(code: int) -> None:
    """End the process without running anything else of the script."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main() -> None:
    """Run `-m MODULE ARGS` or `SCRIPT ARGS` as `__main__`."""
    Watch(Plan(**json.loads(os.environ.pop(TRIAL.name)))).install()
    run_as_main()


if __name__ == "__main__":
    main()
