"""Run a script with the hook armed: `python -m sm_profiler.hook.launch`, for source checkouts without the `.pth` file."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from sm_profiler.hook.auto import arm


def main() -> None:
    """Run `-m MODULE ARGS` or `SCRIPT ARGS` as `__main__`."""
    arm()
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
