"""Run a script until it iterates over its DataLoader, try the loader, and end: `python -m sm_profiler.trial SCRIPT ARGS`.

The process ends at that point without returning to the script: none of its `finally` blocks, handlers or exit functions
run, so it can neither train nor write a checkpoint.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

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
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
