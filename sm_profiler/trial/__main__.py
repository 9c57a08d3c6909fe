"""Run a script until it iterates over its DataLoader, try the loader, and end: `python -m sm_profiler.trial SCRIPT ARGS`.

The process ends at that point without returning to the script: none of its `finally` blocks, handlers or exit functions
run, so it can neither train nor write a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys

from sm_profiler.processes import run_as_main
from sm_profiler.settings import TRIAL
from sm_profiler.trial.plan import Plan


def main() -> None:
    """Run `-m MODULE ARGS` or `SCRIPT ARGS` as `__main__`."""
    plan = Plan(**json.loads(os.environ.pop(TRIAL.name)))
    try:
        from sm_profiler.trial.loaders import Watch  # PyTorch may be missing
    except ImportError as error:
        sys.exit(f"sm-profiler: PyTorch cannot be imported: {error}")
    Watch(plan).install()
    run_as_main()


if __name__ == "__main__":
    main()
