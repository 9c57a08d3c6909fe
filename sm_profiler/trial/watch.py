"""Wait for a script to iterate over its DataLoader, try the loader, and end the process."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.utils.data import DataLoader

from sm_profiler.trial.loaders import try_loader
from sm_profiler.trial.plan import Outcome, Plan

MEASURED, INTERRUPTED = 0, 130  # exit codes


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

        def __iter__(loader: Any) -> Any:  # noqa: N807 - replaces the method
            if os.getpid() == self._pid and not self._busy and threading.current_thread() is threading.main_thread():
                self._arrive(loader)
            return original(loader)

        DataLoader.__iter__ = __iter__  # type: ignore[method-assign]

    def _arrive(self, loader: Any) -> None:
        """Try the loader and end the process, if it is the one to try."""
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
        latest = Outcome((), loaders=len(self._seen))

        def report(outcome: Outcome) -> None:
            nonlocal latest
            latest = attrs.evolve(outcome, loaders=len(self._seen))
            write(self._plan, latest)
            trial = outcome.trials[-1]
            speed = f"{trial.per_second:.4g} batches/s" if trial.per_second else trial.problem
            say(f"num_workers={trial.setting.num_workers}, prefetch_factor={trial.setting.prefetch_factor}: {speed}")

        code = MEASURED
        try:
            try_loader(loader, self._plan, report)
        except KeyboardInterrupt:
            code = INTERRUPTED
            write(self._plan, attrs.evolve(latest, interrupted=True))
        leave(code)


def write(plan: Plan, outcome: Outcome) -> None:
    """Write the results so far for the command."""
    Path(plan.result).write_text(json.dumps(outcome.as_dict()))


def say(text: str) -> None:
    """Print a line of our own among the script's output."""
    sys.stderr.write(f"sm-profiler: {text}\n")
    sys.stderr.flush()


def leave(code: int) -> None:
    """End the process without running anything else of the script."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
